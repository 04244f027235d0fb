"""Tuning on a GPU: operands and reference results for the kernels that are timed."""
