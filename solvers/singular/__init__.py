"""Singular values: A with its adjoint, the methods for either end of the values, and their result."""
