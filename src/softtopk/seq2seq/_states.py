"""The state of a decoder: any nesting of tensors, whose first axis is that of the hypotheses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

State = Any
"""dict, list, tuple, named tuple or None, nested, of tensors."""
S = TypeVar("S")


class DecoderStep(Protocol):
    """One step of a decoder.

    The rows are hypotheses, N = B * k of them, the k of a sentence next to each other. What all
    hypotheses of a sentence share, such as the encoder's output, need not be in the state: the step
    can hold it, with B rows, and finds k as N / B. The soft search averages the floating tensors of
    the state, so they have to be finite: keep a mask as booleans.
    """

    def __call__(self, inputs: Tensor, state: Any, /) -> tuple[Tensor, Any]:
        """Embeddings (N, D) of the last tokens, state -> log-probabilities (N, V), new state."""


def at_least_single(x: Tensor) -> Tensor:
    """In single precision or better: sums of log-probabilities need the digits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def leaves(state: State) -> Iterator[Tensor]:
    """The tensors of a state."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from leaves(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from leaves(value)
    elif state is not None:
        raise TypeError(
            "the state must be made of tensors, None, dict, list and tuple, got "
            f"{type(state).__name__} in it"
        )


def map_state(function: Callable[[Tensor], Tensor], state: S) -> S:
    """The same structure with the function's results in place of its tensors."""
    if isinstance(state, Tensor):
        return function(state)  # type: ignore[return-value] # S is Tensor here
    if isinstance(state, dict):
        return type(state)((key, map_state(function, value)) for key, value in state.items())
    if isinstance(state, list | tuple):
        parts = [map_state(function, value) for value in state]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    return state


def batch_size_of(state: State) -> int:
    """The size of the first axis, which all tensors of an initial state share."""
    tensors = list(leaves(state))
    if not tensors:
        raise ValueError("init_state must hold at least one tensor: its first axis is the batch")
    sizes = {tensor.shape[0] if tensor.ndim else None for tensor in tensors}
    if len(sizes) > 1 or None in sizes:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise ValueError(
            f"the tensors of init_state must share their first axis, the batch, got shapes {shapes}"
        )
    return tensors[0].shape[0]


def repeat_rows(state: S, times: int) -> S:
    """(B, ...) -> (B * times, ...), the copies of a row next to each other."""
    return map_state(lambda x: x.repeat_interleave(times, 0), state)


def take_rows(state: S, parents: Tensor) -> S:
    """State (B * k, ...) -> (B * m, ...): the hypotheses ``parents`` (B, m) of each sentence."""
    batch = parents.shape[0]

    def take(x: Tensor) -> Tensor:
        k = x.shape[0] // batch
        rows = parents + k * torch.arange(batch, device=parents.device).unsqueeze(1)
        return x.index_select(0, rows.flatten())

    return map_state(take, state)


def mix_rows(state: S, weights: Tensor, parents: Tensor) -> S:
    """State (B * k, ...) -> (B * m, ...): sums of the k states with ``weights`` (B, k, m).

    What is not floating, such as a position, cannot be summed: it is that of ``parents`` (B, m).
    """
    batch, k, _ = weights.shape

    def mix(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return take_rows(x, parents)
        rows = x.reshape(batch, k, -1)
        return (weights.mT.to(x.dtype) @ rows).view(-1, *x.shape[1:])

    return map_state(mix, state)
