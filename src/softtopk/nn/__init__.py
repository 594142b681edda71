"""Modules built on the operators, and attention."""

from ._attention import soft_topk_attention
from ._modules import SoftTopK, SortedSoftTopK
from ._multihead import SoftTopKAttention
from ._pooling import TopKPool
from ._pruning import TopKPruning, finish_pruning_, topk_prune_
from ._temperature import WidthSchedule

__all__ = [
    "SoftTopK",
    "SoftTopKAttention",
    "SortedSoftTopK",
    "TopKPool",
    "TopKPruning",
    "WidthSchedule",
    "finish_pruning_",
    "soft_topk_attention",
    "topk_prune_",
]
