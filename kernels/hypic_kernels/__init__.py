"""Triton kernels of the assembled forward, each with its torch reference beside it."""
