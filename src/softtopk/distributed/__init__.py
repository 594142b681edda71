"""Scores and batches that are spread over the processes of ``torch.distributed``."""

from ._gather import gather, mean

__all__ = ["gather", "mean"]
