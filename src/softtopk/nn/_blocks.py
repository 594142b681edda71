"""Attention in blocks of queries, so that nothing of the size queries x keys is made or kept.

The scores of a block stay in the cache of a core: they are formed, weighted, applied to the values
and forgotten. The backward pass forms them again. With the native library every query keeps its
threshold, so that this is solved for only once. Without it a block is attention as it is written
down, and its derivative is that of autograd.
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
from ..kernels import IN_PLACE_DTYPES
from ..functional._rows import compute_dtype, per_row, temperature

#: Scores in a block, and on other devices than a CPU, where a launch costs more than a small one.
CPU_BLOCK, BLOCK = 2**20, 2**24
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


AtOnce = Callable[[Tensor, Tensor, Tensor, Call], Any]


def attend_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, call: Call, at_once: AtOnce
) -> Tensor:
    """(..., L, Ev). ``at_once`` does the same with all scores."""
    device = query.device.type
    if torch.is_autocast_enabled(device):
        low = torch.get_autocast_dtype(device)  # of products, other than those of float64
        query, key, value = (
            x if x.dtype == torch.float64 else x.to(low) for x in (query, key, value)
        )
    if may_differentiate(query, key, value):
        return _InBlocks.apply(query, key, value, call, at_once)
    return _forward(_Blocks(query, key, value, call), at_once)[0]


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
        *inputs, mask, eps, roots = ctx.saved_tensors
        call = ctx.call._replace(mask=mask, eps=ctx.call.eps if eps is None else eps)
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled() or not is_immediate(grad):
            found = _differentiable(inputs, grad, needed, call, ctx.at_once)
        else:
            found = _backward(inputs, grad, needed, call, roots, ctx.at_once)
        return *found, None, None


def _differentiable(
    inputs: Sequence[Tensor],
    grad: Tensor,
    needed: Sequence[bool],
    call: Call,
    at_once: AtOnce,
) -> list[Tensor | None]:
    """The gradients with all scores, by operations that have derivatives themselves."""
    again = torch.is_grad_enabled()
    with torch.enable_grad(), torch.autocast(grad.device.type, enabled=False):
        output = at_once(*inputs, call)
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
        size = CPU_BLOCK * torch.get_num_threads() // query.itemsize if query.is_cpu else BLOCK
        longest = length if call.mask is None and not call.is_causal else MASKED_ROWS
        self.rows = min(length, longest, max(1, size // n))
        self.units = min(len(self.query), max(1, size // (self.rows * n)))

    @property
    def library(self) -> kernels.Native | None:
        """The native library, if it has what is asked for."""
        call = self.call
        if call.hard or call.topk >= call.shape[-1]:
            return None
        return library_for(self.query, self.key, self.value)

    def __iter__(self) -> Iterator[_Block]:
        for units in self.groups():
            yield from self.of(units)

    def groups(self) -> list[slice]:
        """Units whose blocks come together."""
        return _slices(len(self.query), self.units)

    def of(self, units: slice) -> Iterator[_Block]:
        length, n = self.call.shape[-2:]
        for rows in _slices(length, self.rows):
            yield self._block(units, rows, n)

    def _block(self, units: slice, rows: slice, n: int) -> _Block:
        """With the keys that some of its queries see, as far as that is known at no cost."""
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

    def tensors(self, block: _Block) -> tuple[Tensor, Tensor, Tensor]:
        units, rows, keys, _ = block
        return self.query[units, rows], self.key[units, keys], self.value[units, keys]

    def attend(self, block: _Block, tensors: Sequence[Tensor], at_once: AtOnce) -> Tensor:
        """One block by `at_once`."""
        query, key, _ = tensors
        shape = torch.Size((*query.shape[:-1], key.shape[-2]))
        call = self.call._replace(
            eps=self.eps_of(block), mask=block.mask, is_causal=False, shape=shape
        )
        return at_once(*tensors, call)


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
    """The output, and the roots of the queries, or None."""
    value, library = blocks.value, blocks.library
    output = value.new_empty(*blocks.query.shape[:-1], value.shape[-1])
    with torch.autocast(value.device.type, enabled=False):
        native = None if library is None else _Kernels(blocks, library)
        for block in blocks:
            part = output[block.units, block.rows]
            if native is not None:
                native.attend(block, part)
            else:
                part.copy_(blocks.attend(block, blocks.tensors(block), at_once))
    return output.view(*blocks.call.shape[:-1], -1), None if native is None else native.roots


def _backward(
    inputs: Sequence[Tensor],
    grad: Tensor,
    needed: Sequence[bool],
    call: Call,
    roots: Tensor | None,
    at_once: AtOnce,
) -> list[Tensor | None]:
    """The gradients in query, key and value."""
    blocks = _Blocks(*inputs, call)
    library = None if roots is None else blocks.library
    flat = blocks.query, blocks.key, blocks.value
    grads = [torch.empty_like(x) if need else None for x, need in zip(flat, needed, strict=True)]
    grad = dense(grad).view(*blocks.query.shape[:-1], -1)
    with torch.autocast(grad.device.type, enabled=False):
        add = partial(_add_gradients, blocks, at_once)
        if library is not None and roots is not None:
            add = _Kernels(blocks, library, roots).add_gradients
        for units in blocks.groups():
            sums = [None if x is None else _Sum(x.shape[1]) for x in grads]
            for block in blocks.of(units):
                add(block, grad[units, block.rows], sums)
            for x, total in zip(grads, sums, strict=True):
                if x is not None and total is not None:
                    x[units] = total.value
    return [
        None if x is None else _unflat(x, given.shape, call.shape[:-2])
        for x, given in zip(grads, inputs, strict=True)
    ]


class _Sum:
    """Gradients in some of the rows of a tensor, added up: (units, rows, X) -> (units, length, X)."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.value = torch.empty(0)

    def add(self, part: Tensor, rows: slice) -> None:
        if self.value.numel() == 0 and part.shape[1] == self.length:
            self.value = part  # often the only one
            return
        dtype = compute_dtype(part.dtype)
        if self.value.numel() == 0:
            self.value = part.new_zeros(part.shape[0], self.length, part.shape[2], dtype=dtype)
        self.value = self.value.to(dtype)
        self.value[:, rows] += part


Sums = Sequence[_Sum | None]  # of query, key and value


def _add_gradients(
    blocks: _Blocks, at_once: AtOnce, block: _Block, grad: Tensor, sums: Sums
) -> None:
    tensors = [
        x.detach().requires_grad_(total is not None)
        for x, total in zip(blocks.tensors(block), sums, strict=True)
    ]
    with torch.enable_grad():
        output = blocks.attend(block, tensors, at_once)
    wanted = [x for x in tensors if x.requires_grad]
    found = iter(torch.autograd.grad(output, wanted, grad))
    for total, places in zip(sums, (block.rows, block.keys, block.keys), strict=True):
        if total is not None:
            total.add(next(found), places)


class _Kernels:
    """The passes by the native library.

    It computes in float32 or float64. Products are of the dtype of the inputs, and a block is
    converted in between.
    """

    def __init__(
        self, blocks: _Blocks, library: kernels.Native, roots: Tensor | None = None
    ) -> None:
        self.blocks, self.library = blocks, library
        self.query = blocks.query * blocks.call.scale
        size = blocks.units * blocks.rows * blocks.call.shape[-1]
        dtype = self.query.dtype
        dtype = dtype if dtype in IN_PLACE_DTYPES else torch.float32
        self.own = self.query.new_empty(2, size)
        self.full = (
            self.own if dtype == self.own.dtype else self.own.new_empty(2, size, dtype=dtype)
        )
        self.roots = roots
        if roots is None:
            self.roots = self.own.new_empty(*self.query.shape[:-1], 2, dtype=compute_dtype(dtype))

    def attend(self, block: _Block, output: Tensor) -> None:
        """(units, rows, Ev) into ``output``, and the roots of these queries into ``roots``."""
        _, key, value = self.blocks.tensors(block)
        x = self._scores(block, self.query[block.units, block.rows], key)
        root = self.library.softmax_in_place(x, self.blocks.call.topk, self._tau(block, x))
        self.roots[block.units, block.rows] = root
        torch.bmm(_converted(x, self.own[0]), value, out=output)

    def add_gradients(self, block: _Block, grad: Tensor, sums: Sums) -> None:
        units, rows, keys, _ = block
        query, (_, key, value) = self.query[units, rows], self.blocks.tensors(block)
        x = self._scores(block, query, key)
        gx = _converted(_product(grad, value.mT, self.own[1]), self.full[1])
        root = self.roots[units, rows].contiguous()
        self.library.softmax_backward(x, root, gx, self._tau(block, x))
        w, gx = _converted(x, self.own[0]), _converted(gx, self.own[1])
        in_query, in_key, in_value = sums
        if in_query is not None:
            in_query.add(torch.bmm(gx, key).mul_(self.blocks.call.scale), rows)
        if in_key is not None:
            in_key.add(torch.bmm(gx.mT, query), keys)
        if in_value is not None:
            in_value.add(torch.bmm(w.mT, grad), keys)

    def _scores(self, block: _Block, query: Tensor, key: Tensor) -> Tensor:
        """Of the block, -inf where a key takes no part."""
        x = _product(query, key.mT, self.own[0])
        if block.mask is not None:
            _apply(block.mask, x)
        return _converted(x, self.full[0])

    def _tau(self, block: _Block, x: Tensor) -> float | Tensor:
        eps = self.blocks.eps_of(block)
        eps = eps.unsqueeze(-1) if isinstance(eps, Tensor) else eps
        return per_row(temperature(eps, 1.0, self.roots.dtype), x)


def _apply(mask: Tensor, scores: Tensor) -> None:
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
    """``x`` in the dtype of ``memory``, and there if that is another one."""
    return x if x.dtype == memory.dtype else memory[: x.numel()].view(x.shape).copy_(x)
