"""The host backend: NumPy arrays, nothing to compile, all cores."""
