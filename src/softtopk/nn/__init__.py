"""Modules built on the operators, and attention."""

from ._attention import soft_topk_attention
from ._modules import SoftTopK, SortedSoftTopK
from ._multihead import SoftTopKAttention
from ._pool import PooledNodes, TopKPool
from ._pruning import TopKPruning, finish_pruning, topk_prune_
from ._router import Routing, TopKRouter
from ._temperature import WidthSchedule
from ._tokens import SelectedTokens, TokenSelector

__all__ = [
    "PooledNodes",
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
    "finish_pruning",
    "soft_topk_attention",
    "topk_prune_",
]
