"""Times of operations over widths, beside other libraries, as fractions of a measured roofline."""

from .cases import OPERATIONS, Case, Measured, heading, make_cases, measure_case

__all__ = ["OPERATIONS", "Case", "Measured", "heading", "make_cases", "measure_case"]
