"""Modules built on the operators, and attention."""

from ._attention import soft_topk_attention
from ._modules import SoftTopK, SortedSoftTopK
from ._multihead import SoftTopKAttention

__all__ = ["SoftTopK", "SoftTopKAttention", "SortedSoftTopK", "soft_topk_attention"]
