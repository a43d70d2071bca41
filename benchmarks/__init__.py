"""Experiments of our own, run from a checkout: ``python -m benchmarks.<name>``."""
