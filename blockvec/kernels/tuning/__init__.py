"""Kernel selection: timing variants and storing the fastest."""
