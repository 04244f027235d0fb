"""Sparse factorisations: inertia counts and shifted solves."""
