"""Kernel families of dense products: TSMTTSM, TSMM and sweeps."""
