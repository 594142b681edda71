"""The operators: scores in, soft selection out."""

from ._balanced import BalancedTopK, balanced_soft_topk
from ._order import soft_quantile, soft_rank, soft_sort
from ._rows import Normalize
from ._select import TopKIndices, select_topk
from ._sinkhorn import EntropicPlan, Sinkhorn, Solver, entropic_plan
from ._softmax import soft_topk_softmax
from ._sorted import sorted_soft_topk
from ._temperature import Sharpness, eps_for, sharpness
from ._unsorted import log_soft_topk, soft_topk, topk_threshold
from ._warnings import ConvergenceWarning

__all__ = [
    "BalancedTopK",
    "ConvergenceWarning",
    "EntropicPlan",
    "Normalize",
    "Sharpness",
    "Sinkhorn",
    "Solver",
    "TopKIndices",
    "balanced_soft_topk",
    "entropic_plan",
    "eps_for",
    "log_soft_topk",
    "select_topk",
    "sharpness",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "soft_topk",
    "soft_topk_softmax",
    "sorted_soft_topk",
    "topk_threshold",
]
