"""The relaxations of top-k that the paper compares with, beside its own, under one signature.

``relaxation(scores, k, *, eps, mask) -> A``, of the k largest along the last dimension.
"""

from ..functional import soft_topk
from ._hard import hard_topk
from ._neural_sort import neural_sort
from ._registry import Relaxation, get, names, register
from ._relaxed_subset import relaxed_subset
from ._sinkhorn_sort import sinkhorn_sort
from ._successive_softmax import successive_softmax

__all__ = [
    "Relaxation",
    "get",
    "hard_topk",
    "names",
    "neural_sort",
    "register",
    "relaxed_subset",
    "sinkhorn_sort",
    "soft_topk",
    "successive_softmax",
]
