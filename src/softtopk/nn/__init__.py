"""Modules built on the operators."""

from ._modules import SoftTopK, SortedSoftTopK

__all__ = ["SoftTopK", "SortedSoftTopK"]
