"""Attention in blocks of queries, so that nothing of the size queries x keys is made or kept.

The scores of a block stay in a cache: they are formed, weighted, applied to the values and
forgotten. The backward pass forms them again. With the native library each query keeps its
threshold, so that it is solved for once. Without the library, and for ``hard``, a block is
attention as it is written down, and its derivative is that of autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import kernels
from .._checks import Strength
from .._dispatch import dense, is_immediate, library_for, may_differentiate
from ..functional._rows import compute_dtype, per_row, temperature

#: Bytes of a block of scores on a CPU: between 1 and 8 MiB the time is nearly the same, and fewer
#: blocks mean fewer times that threads wait for each other.
CPU_BLOCK = 2**22
#: On other devices, where many small operations take longer.
BLOCK = 2**26
#: Queries in a block with a mask: keys that none of them sees are left out.
MASKED_ROWS = 128


class Call(NamedTuple):
    """What is asked for, beside query, key and value."""

    topk: int
    eps: Strength  #: a float, or broadcasts to (..., L)
    mask: Tensor | None  #: boolean or floating, broadcasts to (..., L, S)
    is_causal: bool
    scale: float
    hard: bool
    shape: torch.Size  #: of the scores (..., L, S), with all leading axes


Inputs = tuple[Tensor, Tensor, Tensor]  # query, key and value
AtOnce = Callable[[Tensor, Tensor, Tensor, Call], Any]


def attend_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, call: Call, at_once: AtOnce
) -> Tensor:
    """(..., L, Ev). ``at_once`` does the same with all scores at once."""
    device = query.device.type
    if torch.is_autocast_enabled(device):
        low = torch.get_autocast_dtype(device)  # of products, other than those of float64
        query, key, value = (
            x if x.dtype == torch.float64 else x.to(low) for x in (query, key, value)
        )
    if may_differentiate(query, key, value):
        return _InBlocks.apply(query, key, value, call, at_once)
    if call.shape.numel() <= _block_size(query):
        with torch.autocast(device, enabled=False):
            return at_once(query, key, value, call)
    return _forward(_Blocks(query, key, value, call), at_once)[0]


def _block_size(query: Tensor) -> int:
    """Scores in a block."""
    return (CPU_BLOCK if query.is_cpu else BLOCK) // query.itemsize


class _InBlocks(torch.autograd.Function):
    """query, key, value -> output. Saves its inputs, and the thresholds of the native library."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, call: Call, at_once: AtOnce
    ) -> Tensor:
        output, roots = _forward(_Blocks(query, key, value, call), at_once)
        eps = call.eps if isinstance(call.eps, Tensor) else None
        ctx.save_for_backward(query, key, value, call.mask, eps, roots)
        ctx.call = call._replace(mask=None, eps=call.eps if eps is None else 0.0)
        ctx.at_once = at_once
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask, eps, roots = ctx.saved_tensors
        inputs = query, key, value
        call = ctx.call._replace(mask=mask, eps=ctx.call.eps if eps is None else eps)
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled() or not is_immediate(grad):
            found = _gradients(partial(ctx.at_once, call=call), inputs, grad, needed)
        else:
            found = _backward(inputs, grad, needed, call, roots, ctx.at_once)
        return *found, None, None


def _gradients(
    attend: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """By autograd, and with derivatives of their own if those are asked for."""
    again = torch.is_grad_enabled()
    with torch.enable_grad(), torch.autocast(grad.device.type, enabled=False):
        output = attend(*inputs)
        wanted = [x for x, need in zip(inputs, needed, strict=True) if need]
        found = iter(torch.autograd.grad(output, wanted, grad, create_graph=again))
        return [next(found) if need else None for need in needed]


# The blocks.


class _Block(NamedTuple):
    units: slice
    rows: slice
    keys: slice
    mask: Tensor | None  #: broadcasts to (units, rows, keys)


class _Blocks:
    """A call, and its blocks. A unit is one place of the leading axes."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> None:
        batch, (length, n) = call.shape[:-2], call.shape[-2:]
        self.call = call
        self.query, self.key, self.value = (_flat(x, batch) for x in (query, key, value))
        self.eps = call.eps
        if isinstance(self.eps, Tensor):
            self.eps = self.eps.expand(call.shape[:-1]).reshape(-1, length)
        self.mask = None if call.mask is None else _Mask(call.mask, batch)
        most = length if call.mask is None and not call.is_causal else MASKED_ROWS
        size = _block_size(query)
        self.rows = min(length, most, max(1, size // n))
        self.units = min(len(self.query), max(1, size // (self.rows * n)))

    @property
    def library(self) -> kernels.Native | None:
        """The native library, if it has what is asked for."""
        call = self.call
        if call.hard or call.topk >= call.shape[-1]:
            return None
        return library_for(self.query, self.key, self.value)

    def groups(self) -> list[slice]:
        """Units that are together in blocks."""
        return _slices(len(self.query), self.units)

    def of(self, units: slice) -> Iterator[_Block]:
        return (self._block(units, rows) for rows in _slices(self.call.shape[-2], self.rows))

    def _block(self, units: slice, rows: slice) -> _Block:
        """With the keys that some of its queries see, as far as that is known at no cost."""
        n = self.call.shape[-1]
        if self.call.is_causal:
            keys = slice(0, min(rows.stop, n))
            size = rows.stop - rows.start, keys.stop
            mask = torch.ones(1, *size, dtype=torch.bool, device=self.query.device)
            return _Block(units, rows, keys, mask.tril(rows.start))
        if self.mask is None:
            return _Block(units, rows, slice(0, n), None)
        mask = self.mask.part(units, rows)
        if mask.shape[-1] == 1 or not mask.is_cpu:
            return _Block(units, rows, slice(0, n), mask)
        keys = _span(_largest(mask) != (0 if mask.dtype == torch.bool else -math.inf))
        return _Block(units, rows, keys, mask[..., keys])

    def eps_of(self, block: _Block) -> Strength:
        """A float, or (units, rows)."""
        return self.eps[block.units, block.rows] if isinstance(self.eps, Tensor) else self.eps

    def tensors(self, block: _Block) -> Inputs:
        units, rows, keys, _ = block
        return self.query[units, rows], self.key[units, keys], self.value[units, keys]


class _Mask:
    """A mask that broadcasts to (..., L, S), without a copy of it."""

    def __init__(self, mask: Tensor, batch: torch.Size) -> None:
        mask = torch.atleast_2d(mask)
        for axis, stride in enumerate(mask.stride()):
            mask = mask.narrow(axis, 0, 1) if stride == 0 else mask
        places = torch.arange(math.prod(mask.shape[:-2]), device=mask.device)
        self.places = places.view(mask.shape[:-2]).expand(batch).reshape(-1)
        self.own = mask.reshape(-1, *mask.shape[-2:])

    def part(self, units: slice, rows: slice) -> Tensor:
        """(units, rows, S), where each may be 1 instead."""
        part = self.own if self.own.shape[1] == 1 else self.own[:, rows]
        return part if len(part) == 1 else part[self.places[units]]


def _slices(length: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, length)) for i in range(0, length, size)]


def _flat(x: Tensor, batch: torch.Size) -> Tensor:
    """(..., X, Y) with all leading axes, as one."""
    if x.ndim > 2 and x.shape[-3] not in (1, batch[-1]):
        x = x.repeat_interleave(batch[-1] // x.shape[-3], -3)
    return x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:])


def _unflat(grad: Tensor, shape: torch.Size, batch: torch.Size) -> Tensor:
    """The gradient in what `_flat` was given, of the shape of that."""
    grad = grad.view(*batch, *grad.shape[-2:])
    if len(shape) > 2 and shape[-3] not in (1, batch[-1]):
        grad = grad.unflatten(-3, (shape[-3], -1)).sum(-3)
    return grad.sum_to_size(shape)


def _largest(mask: Tensor) -> Tensor:
    """Of every column (X, Y, n) -> (n,). Bytes take a fraction of the time of booleans."""
    values = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
    return values.flatten(0, 1).amax(0)


def _span(columns: Tensor) -> slice:
    """From the first to the last that is set. One column if there is none: a block has scores."""
    places = columns.nonzero()
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 1)


# The passes.


def _forward(blocks: _Blocks, at_once: AtOnce) -> tuple[Tensor, Tensor | None]:
    """The output, and the roots of the queries if the library has found them."""
    value, library = blocks.value, blocks.library
    way = _Plain(blocks, at_once) if library is None else _Native(blocks, library)
    output = value.new_empty(*blocks.query.shape[:-1], value.shape[-1])
    with torch.autocast(value.device.type, enabled=False):
        for units in blocks.groups():
            for block in blocks.of(units):
                way.attend(block, output[units, block.rows])
    return output.view(*blocks.call.shape[:-1], -1), way.roots


def _backward(
    inputs: Inputs,
    grad: Tensor,
    needed: Sequence[bool],
    call: Call,
    roots: Tensor | None,
    at_once: AtOnce,
) -> list[Tensor | None]:
    """The gradients in query, key and value."""
    blocks = _Blocks(*inputs, call)
    library = None if roots is None else blocks.library
    way = _Plain(blocks, at_once) if library is None else _Native(blocks, library, roots)
    flat = blocks.query, blocks.key, blocks.value
    grads = [torch.empty_like(x) if need else None for x, need in zip(flat, needed, strict=True)]
    grad = dense(grad).view(*blocks.query.shape[:-1], -1)
    with torch.autocast(grad.device.type, enabled=False):
        for units in blocks.groups():
            sums: list[Tensor | None] = [None, None, None]
            for block in blocks.of(units):
                parts = way.gradients(block, grad[units, block.rows], needed)
                for i, rows in enumerate((block.rows, block.keys, block.keys)):
                    sums[i] = _added(sums[i], parts[i], rows, flat[i].shape[1])
            for x, total in zip(grads, sums, strict=True):
                if x is not None and total is not None:
                    x[units] = total
    return [
        None if x is None else _unflat(x, given.shape, call.shape[:-2])
        for x, given in zip(grads, inputs, strict=True)
    ]


def _added(total: Tensor | None, part: Tensor | None, rows: slice, length: int) -> Tensor | None:
    """``total`` (units, length, X), None at first, and ``part``, which is of some of its rows.

    In full precision, unless there is nothing to add.
    """
    if part is None or (total is None and part.shape[1] == length):
        return part
    dtype = compute_dtype(part.dtype)
    if total is None:
        total = part.new_zeros(part.shape[0], length, part.shape[2], dtype=dtype)
    total = total.to(dtype)
    total[:, rows] += part
    return total


class _Plain:
    """A block with all of its scores, by the operations of torch."""

    roots = None

    def __init__(self, blocks: _Blocks, at_once: AtOnce) -> None:
        self.blocks, self.at_once = blocks, at_once

    def attend(self, block: _Block, output: Tensor) -> None:
        output.copy_(self._attend(block, *self.blocks.tensors(block)))

    def gradients(self, block: _Block, grad: Tensor, needed: Sequence[bool]) -> list[Tensor | None]:
        tensors = [
            x.detach().requires_grad_(need)
            for x, need in zip(self.blocks.tensors(block), needed, strict=True)
        ]
        return _gradients(partial(self._attend, block), tensors, grad, needed)

    def _attend(self, block: _Block, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        shape = torch.Size((*query.shape[:-1], key.shape[-2]))
        eps = self.blocks.eps_of(block)
        call = self.blocks.call._replace(eps=eps, mask=block.mask, is_causal=False, shape=shape)
        return self.at_once(query, key, value, call)


class _Native:
    """A block by the native library, which turns scores into weights in place.

    Where the library has no such function for the dtype of the inputs, which products are of, a
    block is converted.
    """

    def __init__(
        self, blocks: _Blocks, library: kernels.Native, roots: Tensor | None = None
    ) -> None:
        self.blocks, self.library = blocks, library
        self.query = query = blocks.query * blocks.call.scale
        if roots is None:
            roots = query.new_empty(*query.shape[:-1], 2, dtype=compute_dtype(query.dtype))
        self.roots = roots
        size = blocks.units * blocks.rows * blocks.call.shape[-1]
        self.own = self.full = query.new_empty(2, size)
        if query.dtype not in kernels.IN_PLACE_DTYPES:
            self.full = query.new_empty(2, size, dtype=roots.dtype)

    def attend(self, block: _Block, output: Tensor) -> None:
        query, key, value = self._tensors(block)
        x = self._scores(block, query, key)
        root = self.library.softmax_in_place(x, self.blocks.call.topk, self._tau(block, x))
        self.roots[block.units, block.rows] = root
        torch.bmm(_converted(x, self.own[0]), value, out=output)

    def gradients(self, block: _Block, grad: Tensor, needed: Sequence[bool]) -> list[Tensor | None]:
        query, key, value = self._tensors(block)
        x = self._scores(block, query, key)
        grad_x = _converted(_product(grad, value.mT, self.own[1]), self.full[1])
        root = self.roots[block.units, block.rows].contiguous()
        self.library.softmax_backward(x, root, grad_x, self._tau(block, x))
        w, grad_x = _converted(x, self.own[0]), _converted(grad_x, self.own[1])
        return [
            torch.bmm(grad_x, key).mul_(self.blocks.call.scale) if needed[0] else None,
            torch.bmm(grad_x.mT, query) if needed[1] else None,
            torch.bmm(w.mT, grad) if needed[2] else None,
        ]

    def _tensors(self, block: _Block) -> Inputs:
        """With the query scaled."""
        return self.query[block.units, block.rows], *self.blocks.tensors(block)[1:]

    def _scores(self, block: _Block, query: Tensor, key: Tensor) -> Tensor:
        x = _product(query, key.mT, self.own[0])
        if block.mask is not None:
            _apply(block.mask, x)
        return _converted(x, self.full[0])

    def _tau(self, block: _Block, x: Tensor) -> float | Tensor:
        eps = self.blocks.eps_of(block)
        eps = eps.unsqueeze(-1) if isinstance(eps, Tensor) else eps
        return per_row(temperature(eps, 1.0, self.roots.dtype), x)


def _apply(mask: Tensor, scores: Tensor) -> None:
    """In place: add a floating mask, or fill in -inf where a boolean one has False."""
    if mask.dtype != torch.bool:
        scores += mask.to(scores.dtype)
        return
    hidden = ~mask
    if mask.shape[-1] > 1:  # a causal mask hides some of the last keys only
        keys = _span(_largest(hidden))
        hidden, scores = hidden[..., keys], scores[..., keys]
    scores.masked_fill_(hidden, -math.inf)


def _product(left: Tensor, right: Tensor, memory: Tensor) -> Tensor:
    shape = (*left.shape[:-1], right.shape[-1])
    return torch.bmm(left, right, out=memory[: math.prod(shape)].view(shape))


def _converted(x: Tensor, memory: Tensor) -> Tensor:
    """``x`` in the dtype of ``memory``: itself, or a copy there."""
    return x if x.dtype == memory.dtype else memory[: x.numel()].view(x.shape).copy_(x)
