"""Kernel selection: timing variants and keeping the fastest on record."""
