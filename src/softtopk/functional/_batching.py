"""Batching rules shared by the autograd functions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def batch_first(
    size: int, in_dims: Sequence[int | None], tensors: Sequence[Tensor]
) -> list[Tensor]:
    """Bring the axis that ``torch.vmap`` maps over to the front of every tensor.

    All our functions take leading batch axes, so this alone is their batching rule.
    """
    return [
        tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, in_dims, strict=True)
    ]
