"""Iterations: block Lanczos, filtered block Lanczos and Jacobi-Davidson."""
