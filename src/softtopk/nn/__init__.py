"""Modules built on the operators, and attention."""

from ._attention import soft_topk_attention
from ._modules import SoftTopK, SortedSoftTopK
from ._multihead import SoftTopKAttention
from ._pooling import Nodes, Pooled, TopKPool
from ._pruning import TopKPruning, finish_pruning_, topk_prune_
from ._router import Routing, TopKRouter
from ._temperature import WidthSchedule
from ._tokens import SelectedTokens, TokenSelector

__all__ = [
    "Nodes",
    "Pooled",
    "Routing",
    "SelectedTokens",
    "SoftTopK",
    "SoftTopKAttention",
    "SortedSoftTopK",
    "TokenSelector",
    "TopKPool",
    "TopKPruning",
    "TopKRouter",
    "WidthSchedule",
    "finish_pruning_",
    "soft_topk_attention",
    "topk_prune_",
]
