"""Triton kernels for a GPU, each registered as an operator of torch."""
