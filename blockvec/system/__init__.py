"""The process and its surroundings: output files, memory limits, installation, the frame of commands."""
