"""Kernels for accelerators, in Triton. Importing this package imports triton."""

from ._launch import Quantity, Triton

__all__ = ["Quantity", "Triton"]
