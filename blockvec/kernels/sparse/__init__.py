"""Kernel families of sparse products (SpMMV) and the matrix formats they read."""
