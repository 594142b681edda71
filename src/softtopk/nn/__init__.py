"""Modules built on the operators, and attention."""

from ._attention import soft_topk_attention
from ._modules import SoftTopK, SortedSoftTopK
from ._multihead import SoftTopKAttention
from ._temperature import WidthSchedule
from ._tokens import SelectedTokens, TokenSelector

__all__ = [
    "SelectedTokens",
    "SoftTopK",
    "SoftTopKAttention",
    "SortedSoftTopK",
    "TokenSelector",
    "WidthSchedule",
    "soft_topk_attention",
]
