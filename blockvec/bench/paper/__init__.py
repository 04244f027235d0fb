"""Reproduction of the figures of Ernst et al. (2021); nothing else needs this package."""
