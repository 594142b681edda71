"""Differentiable top-k operators in PyTorch, by entropic optimal transport."""

from importlib.metadata import version as _version

from .functional import (
    BalancedTopK,
    ConvergenceWarning,
    EntropicPlan,
    Sharpness,
    Sinkhorn,
    TopKIndices,
    balanced_soft_topk,
    entropic_plan,
    eps_for,
    log_soft_topk,
    select_topk,
    sharpness,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    soft_topk_softmax,
    sorted_soft_topk,
    topk_threshold,
)
from .nn import SoftTopK, SortedSoftTopK, WidthSchedule

__version__ = _version("softtopk")

__all__ = [
    "BalancedTopK",
    "ConvergenceWarning",
    "EntropicPlan",
    "Sharpness",
    "Sinkhorn",
    "SoftTopK",
    "SortedSoftTopK",
    "TopKIndices",
    "WidthSchedule",
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
