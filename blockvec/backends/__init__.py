"""Backends: what runs the block operations on one kind of device."""
