"""Operators: their interface, those of matrices and functions, rows split over processes, factors."""
