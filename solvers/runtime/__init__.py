"""Run-time services of a solve: checkpoints, interrupts and memory."""
