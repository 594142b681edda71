"""Scores and batches that are spread over the processes of ``torch.distributed``."""

from ..functional._sharded import log_soft_topk, soft_topk, sorted_soft_topk, topk_threshold
from ._gather import gather, mean

__all__ = ["gather", "log_soft_topk", "mean", "soft_topk", "sorted_soft_topk", "topk_threshold"]
