"""What the ranks of a process group tell each other, by ``torch.distributed``.

Every rank makes the same calls in the same order. So that a wrong call is an error everywhere and
not a wait for a message that never comes, an operator begins with `Ranks.agree`: the one message
whose size does not depend on the arguments.

Derivatives are those of the *sum* of all ranks' losses: each rank calls ``backward`` on its own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

#: Bytes of the message by which the ranks compare their calls: a digest, a size, and a text.
_MESSAGE, _DIGEST, _SIZE = 512, 16, 8


@dataclass(frozen=True)
class Ranks:
    """The ranks of a group, from the point of view of one of them."""

    group: Any  #: None is the default group, or no group at all if count is 1
    index: int
    count: int

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all ranks, differentiable to any order."""
        return x if self.count == 1 else _Sum.apply(x, self)

    def stack(self, x: Tensor) -> Tensor:
        """The tensors of all ranks, of one shape, as (ranks, ...), without a derivative."""
        if self.count == 1:
            return x.detach().unsqueeze(0)
        x = x.detach().contiguous()
        parts = x.new_empty(self.count, *x.shape)
        with _explained("all_gather"):
            dist.all_gather(list(parts.unbind()), x, group=self.group)
        return parts

    def concatenate(self, x: Tensor, sizes: list[int], dim: int = 0) -> Tensor:
        """The tensors of all ranks in one, of the given sizes along ``dim``. Differentiable to any
        order: a rank's part gets the sum of all ranks' gradients."""
        return x if self.count == 1 else _Concatenate.apply(x, sizes, dim, self)

    def agree(
        self, call: str, size: int, device: torch.device, fault: Exception | None
    ) -> list[int]:
        """The ``size`` that each rank has.

        Raises on every rank if not all of them have made the same ``call``, or if one has found a
        ``fault`` in its arguments, which that rank raises itself.
        """
        if self.count > 1:
            texts, sizes = self._exchange(call if fault is None else f"!{fault}", size, device)
        if fault is not None:
            raise fault
        if self.count == 1:
            return [size]
        for rank, text in enumerate(texts):
            if text.startswith("!"):
                raise RuntimeError(f"rank {rank} has refused its arguments: {text[1:]}")
        if len(set(texts)) > 1:
            seen = "\n".join(f"  rank {rank}: {text}" for rank, text in enumerate(texts))
            raise ValueError(
                f"all ranks must make the same call, but for the size of their shard, got\n{seen}"
            )
        return sizes

    def _exchange(self, text: str, size: int, device: torch.device) -> tuple[list[str], list[int]]:
        encoded = text.encode()
        digest = hashlib.sha256(encoded).digest()[:_DIGEST]
        room = _MESSAGE - _DIGEST - _SIZE
        message = digest + size.to_bytes(_SIZE, "little") + encoded[:room].ljust(room, b"\0")
        device = self._reach(device)
        received = self.stack(torch.tensor(list(message), dtype=torch.uint8, device=device))
        messages = [bytes(row) for row in received.tolist()]
        texts = [m[_DIGEST + _SIZE :].rstrip(b"\0").decode(errors="replace") for m in messages]
        if len(set(texts)) == 1 and len({m[:_DIGEST] for m in messages}) > 1:  # differ further on
            texts = [f"{t}... ({m[:4].hex()})" for t, m in zip(texts, messages, strict=True)]
        sizes = [int.from_bytes(m[_DIGEST : _DIGEST + _SIZE], "little") for m in messages]
        return texts, sizes

    def _reach(self, device: torch.device) -> torch.device:
        """A device from which the group can send: ``device`` itself, but NCCL has only GPUs."""
        if device.type == "cpu" and dist.get_backend(self.group) == "nccl":
            return torch.device("cuda", torch.cuda.current_device())
        return device


def ranks_of(group: Any = None) -> Ranks:
    """The ranks of ``group``, by default of all processes. Without torch.distributed there is one.

    It is an error to have been started as one of several, and not to have joined them.
    """
    if dist.is_available() and dist.is_initialized():
        index = dist.get_rank(group)
        if index < 0:
            raise ValueError("group: this process is not one of its ranks")
        return Ranks(group, index, dist.get_world_size(group))
    if group is not None or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RuntimeError(
            "torch.distributed has not been initialized; call "
            "torch.distributed.init_process_group() first"
        )
    return Ranks(None, 0, 1)


@contextmanager
def _explained(operation: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"{operation} failed. Look for the first error of all ranks: one may have ended, may "
            "have raised an error, or did not take part within the timeout of the group "
            f"(init_process_group(timeout=...)). torch.distributed says: {error}"
        ) from error


class _Sum(torch.autograd.Function):
    """Every rank gets the sum, so every rank's gradient flows back to all: a sum again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        x = x.detach().clone(memory_format=torch.contiguous_format)
        with _explained("all_reduce"):
            dist.all_reduce(x, group=ranks.group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Sum.apply(grad, ctx.ranks), None


class _Concatenate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int], dim: int, ranks: Ranks) -> Tensor:
        ctx.sizes, ctx.dim, ctx.ranks = sizes, dim, ranks
        # Padded to one size: not every backend knows another way.
        x = x.movedim(dim, 0)
        padded = x.new_zeros(max(sizes), *x.shape[1:])
        padded[: x.shape[0]] = x
        parts = ranks.stack(padded)
        whole = torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
        return whole.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        first, size = sum(ctx.sizes[: ctx.ranks.index]), ctx.sizes[ctx.ranks.index]
        # Half precision is summed in single: over many ranks its own roundings would show.
        wide = torch.promote_types(grad.dtype, torch.float32)
        total = _Sum.apply(grad.to(wide), ctx.ranks).to(grad.dtype)
        return total.narrow(ctx.dim, first, size), None, None, None


class Scaled(torch.autograd.Function):
    """x times one number, with the derivative of x times another one.

    A result that all ranks share, and that all of them differentiate whole, counts ranks times in
    the sum of their losses: `Scaled.apply(x, 1.0, 1 / ranks)`. The derivative of *that* is not
    divided once more.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float, factor_of_gradient: float) -> Tensor:
        ctx.factors = factor_of_gradient, factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return Scaled.apply(grad, *ctx.factors), None, None
