"""The CUDA backend: CuPy arrays on one GPU."""
