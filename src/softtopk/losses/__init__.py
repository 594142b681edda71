"""Losses that are relaxed metrics of a ranking: recall@k, NDCG@k, average precision and others."""

from ._classification import topk_cross_entropy
from ._queries import valid_queries
from ._ranking import average_precision_loss, ndcg_at_k_loss
from ._selection import hit_at_k_loss, precision_at_k_loss, recall_at_k_loss

__all__ = [
    "average_precision_loss",
    "hit_at_k_loss",
    "ndcg_at_k_loss",
    "precision_at_k_loss",
    "recall_at_k_loss",
    "topk_cross_entropy",
    "valid_queries",
]
