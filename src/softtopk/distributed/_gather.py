"""Losses over the batches of all ranks: the candidates of all, and the mean over all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._checks import check_positive
from ..functional._collectives import ranks_of
from ..functional._mesh import is_dtensor
from ..functional._rows import algebra_dtype


def gather(tensor: Tensor, *, dim: int = 0, group: Any = None) -> Tensor:
    """The tensors of all ranks in one, in the order of the ranks, with the gradient that is right.

    For templates or negatives: a loss then sees the candidates of every rank. The sizes along
    ``dim`` may differ, and may be zero.

    The backward pass gives every rank the *sum* of all ranks' gradients of its part. This is the
    derivative of the sum of all ranks' losses. With `mean` as the loss, and the average over ranks
    that ``DistributedDataParallel`` takes, parameters get the gradient of one process with the
    whole batch. Every rank has to call ``backward``.

    Without ``torch.distributed``, or with one process, this is ``tensor``.

    Args:
        tensor: Of one shape on all ranks, but for ``dim``, and of one dtype.
        dim: The dimension to join along.
        group: The process group, by default all processes.

    >>> gather(torch.arange(3))
    tensor([0, 1, 2])
    """
    ranks = ranks_of(group)
    fault: Exception | None = None
    call, size = "gather", 0
    try:
        _check_plain("tensor", tensor)
        if not -tensor.ndim <= dim < tensor.ndim:
            raise ValueError(
                f"dim={dim} is out of range for a tensor of shape {tuple(tensor.shape)}"
            )
        dim %= tensor.ndim
        shape: list[int | str] = list(tensor.shape)
        shape[dim], size = "any", tensor.shape[dim]
        learned = tensor.requires_grad and torch.is_grad_enabled()
        call += f"(shape={shape}, {tensor.dtype}, requires_grad={learned})"
    except Exception as error:
        fault = error
    device = tensor.device if isinstance(tensor, Tensor) else torch.device("cpu")
    sizes = ranks.agree(call, size, device, fault)
    return ranks.concatenate(tensor, sizes, dim)


def mean(losses: Tensor, *, count: float | None = None, group: Any = None) -> Tensor:
    """The mean of all ranks' ``losses``, for a backward pass whose gradients are then *averaged*.

    The value is the same on every rank: that of one process with the whole batch. The gradient is
    that of the local part times the number of ranks. ``DistributedDataParallel`` averages over
    ranks, which leaves the gradient of the value, whatever the sizes of the batches: a mean of
    local means would weigh the samples of small batches more.

    Args:
        losses: Of any shape; of any size, zero included.
        count: What to divide the sum by, the same on all ranks; by default the number of all ranks'
            elements. To accumulate gradients over several batches, give the number of elements of
            all of them, on all ranks.
        group: The process group, by default all processes.

    >>> mean(torch.tensor([1.0, 2.0, 6.0]))
    tensor(3.)
    """
    ranks = ranks_of(group)
    fault: Exception | None = None
    try:
        _check_plain("losses", losses)
        if not losses.is_floating_point():
            raise TypeError(f"losses must be of a floating dtype, got {losses.dtype}")
        if count is not None:
            check_positive("count", count)
    except (TypeError, ValueError) as error:
        fault = error
    device = losses.device if isinstance(losses, Tensor) else torch.device("cpu")
    ranks.agree(f"mean({count=})", 0, device, fault)
    local = losses.sum(dtype=torch.promote_types(losses.dtype, torch.float32))
    sums = torch.stack([local.detach(), torch.full_like(local, losses.numel())])
    total, number = ranks.sum(sums.to(algebra_dtype(local))).unbind()
    divisor = number if count is None else count
    if count is None and not bool(number > 0):
        raise ValueError("losses has no element on any rank; give at least one rank a batch")
    part = (local * (ranks.count / divisor)).to(losses.dtype)
    return _WithGradientOf.apply(part, (total / divisor).to(losses.dtype))


def _check_plain(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if is_dtensor(value):
        raise TypeError(f"{name} must be this rank's part, got a DTensor; use {name}.to_local()")


class _WithGradientOf(torch.autograd.Function):
    """The second argument, with the derivative of the first."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None
