"""Generalised, shifted and folded problems as standard Hermitian ones."""
