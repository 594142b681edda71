"""The state of a decoder: any nesting of tensors, whose first axis is that of the hypotheses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

# Rows of a packed step are filled up to a multiple of this: oneDNN, for one, prepares a product of
# matrices for each shape that it meets, which can take longer than the product.
STRIDE = 32
# Of the rows of a plain step: with more than this to compute, packing saves less than it costs, as
# what a step holds of its sentences is then copied for every hypothesis.
WORTH_PACKING = 0.6

State = Any
"""dict, list, tuple, named tuple or None, nested, of tensors."""
S = TypeVar("S")


class DecoderStep(Protocol):
    """One step of a decoder.

    The rows are hypotheses, N = B * k of them, the k of a sentence next to each other. k may be
    another one in each call. What all hypotheses of a sentence share, such as the encoder's output,
    need not be in the state: the step can hold it, with B rows, and finds k as N / B. The soft
    search averages the floating tensors of the state, so they have to be finite: keep a mask as
    booleans.
    """

    def __call__(self, inputs: Tensor, state: Any, /) -> tuple[Tensor, Any]:
        """Embeddings (N, D) of the last tokens, state -> log-probabilities (N, V), new state."""


@runtime_checkable
class PackedStep(DecoderStep, Protocol):
    """A step that can also take any number of hypotheses of each sentence.

    `beam_search` and `sequence_scores` then compute the hypotheses that go on, and no others, where
    that saves time. A few rows may have the state of another sentence: what is computed there is
    not used.
    """

    def for_sentences(self, sentences: Tensor, /) -> DecoderStep:
        """The step for one hypothesis of each of these N sentences, numbers from 0 to B - 1.

        They ascend; a sentence can be there several times, or not at all.
        """


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
    """The size of the first axis, which all tensors of a first state share."""
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


def select_rows(state: S, rows: Tensor) -> S:
    """The rows (N,) of a state: (M, ...) -> (N, ...)."""
    return map_state(lambda x: x.index_select(0, rows), state)


def take_rows(state: S, parents: Tensor) -> S:
    """State (B * k, ...) -> (B * m, ...): the hypotheses ``parents`` (B, m) of each sentence."""
    batch = parents.shape[0]

    def take(x: Tensor) -> Tensor:
        return select_rows(x, _flat(parents, x.shape[0] // batch))

    return map_state(take, state)


def rows_to_run(step: DecoderStep, live: Tensor) -> tuple[DecoderStep, Tensor, Tensor] | None:
    """What has to be computed for the hypotheses that are ``live`` (B, k): None if none is.

    Returns:
        The step for it; its rows (N,), numbers of hypotheses from 0 to B * k - 1; and the place
        (B * k,) of each hypothesis among them. One that is not computed has the place of another,
        which for a plain step is of the same sentence.
    """
    batch, k = live.shape
    counts = live.sum(1)
    needed, most = torch.stack([counts.sum(), counts.max()]).tolist()  # one wait for a GPU
    if not needed:
        return None
    filled = needed + -needed % STRIDE
    if filled <= WORTH_PACKING * batch * most and isinstance(step, PackedStep):
        rows = live.flatten().nonzero().squeeze(1)
        places = rows.new_zeros(batch * k)
        places[rows] = torch.arange(needed, device=rows.device)
        rows = torch.cat([rows, rows[-1:].expand(filled - needed)])
        return step.for_sentences(rows // k), rows, places
    # As many of each sentence as the one with most needs.
    rows = _flat(live.long().argsort(dim=1, descending=True, stable=True)[:, :most], k)
    places = most * torch.arange(batch, device=rows.device).repeat_interleave(k)
    places[rows] = torch.arange(len(rows), device=rows.device)
    return step, rows, places


def _flat(columns: Tensor, k: int) -> Tensor:
    """Hypotheses (B, m) of each sentence, from 0 to k - 1 -> their numbers (B * m,)."""
    return (columns + k * torch.arange(len(columns), device=columns.device).unsqueeze(1)).flatten()


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
