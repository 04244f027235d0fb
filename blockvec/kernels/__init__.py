"""Kernels: problem descriptions, rooflines, measurement, and what runs on the devices."""
