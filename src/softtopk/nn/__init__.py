"""Modules built on the operators, and attention."""

from ._attention import soft_topk_attention
from ._modules import SoftTopK, SortedSoftTopK

__all__ = ["SoftTopK", "SortedSoftTopK", "soft_topk_attention"]
