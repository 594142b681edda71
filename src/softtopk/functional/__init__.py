"""The operators: scores in, soft selection out."""

from ._operators import (
    Normalize,
    Solver,
    log_soft_topk,
    soft_topk,
    sorted_soft_topk,
    topk_threshold,
)
from ._sinkhorn import EntropicPlan, Sinkhorn, entropic_plan
from ._softmax import soft_topk_softmax
from ._warnings import ConvergenceWarning

__all__ = [
    "ConvergenceWarning",
    "EntropicPlan",
    "Normalize",
    "Sinkhorn",
    "Solver",
    "entropic_plan",
    "log_soft_topk",
    "soft_topk",
    "soft_topk_softmax",
    "sorted_soft_topk",
    "topk_threshold",
]
