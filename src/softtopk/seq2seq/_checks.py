"""Checks of the arguments that the searches and losses share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._checks import check_integer, check_not_negative
from ._states import DecoderStep, State, batch_size_of, leaves

TOLERANCE = 1e-3  # of a log-probability above 0, from rounding
#: Usual ones are between 0 and 2. A much larger power of a length is beyond the range of floats.
MOST_LENGTH_PENALTY = 5.0


def check_search(
    init_state: State, embedding: Tensor, beam_size: int, **tokens: int
) -> tuple[int, int]:
    """The number of sentences and of tokens."""
    if not isinstance(embedding, Tensor) or embedding.ndim != 2:
        shape = f" of shape {tuple(embedding.shape)}" if isinstance(embedding, Tensor) else ""
        raise ValueError(
            "embedding must be a tensor (V, D), one row for each token, got "
            f"{type(embedding).__name__}{shape}; of a module give its weight"
        )
    vocabulary = embedding.shape[0]
    check_integer("beam_size", beam_size)
    for name, token in tokens.items():
        check_integer(name, token, 0)
        if token >= vocabulary:
            raise ValueError(
                f"{name} must be a token, below {vocabulary}, the rows of embedding; got {token}"
            )
    batch = batch_size_of(init_state)
    if batch == 0:
        raise ValueError("init_state must have at least one sentence, got a batch of none")
    return batch, vocabulary


def check_length_penalty(length_penalty: Any) -> float:
    if check_not_negative("length_penalty", length_penalty) > MOST_LENGTH_PENALTY:
        raise ValueError(
            f"length_penalty must be at most {MOST_LENGTH_PENALTY:g}, got "
            f"length_penalty={length_penalty}: scores are divided by the length to this power"
        )
    return float(length_penalty)


def check_finite(init_state: State) -> None:
    """For states that are averaged, with weights that can be zero."""
    for tensor in leaves(init_state):
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(
                "init_state must be finite to be averaged, got inf or NaN in a tensor of shape "
                f"{tuple(tensor.shape)}; keep a mask as booleans"
            )


def check_gold(
    gold: Any, batch: int, vocabulary: int, *, bos: int, pad: int, eos: int | None = None
) -> Tensor:
    """The number (B,) of gold tokens of each sentence: tokens, the end token, padding."""
    check_tokens("gold", gold, batch, vocabulary, "(B, T)")
    present = gold != pad
    lengths = present.sum(1)
    if not lengths.all():
        row = int((lengths == 0).nonzero()[0])
        raise ValueError(
            f"gold must have a token in every row, at least the end; row {row} has none"
        )
    if (present[:, 1:] & ~present[:, :-1]).any():
        raise ValueError(f"gold must have its padding, pad={pad}, after the tokens of a row")
    # A sentence by itself may well begin with this token, and the end may have the same number.
    if min(gold.shape) > 1 and ((gold[:, 0] == bos) & present[:, 1]).all():
        raise ValueError(
            f"gold must begin with the first token to predict, got the begin token, bos={bos}, in "
            "front of every row: leave it out, it is put there"
        )
    if eos is not None:
        last = gold.gather(1, lengths.unsqueeze(1) - 1).squeeze(1)
        wrong_rows = (last != eos) | ((gold == eos).sum(1) != 1)
        if wrong_rows.any():
            row = int(wrong_rows.nonzero()[0])
            raise ValueError(
                f"gold must have the end token, eos={eos}, once in every row, after all others; "
                f"row {row} is {gold[row].tolist()}; if yours is another, give it as eos"
            )
    return lengths


def check_tokens(name: str, tokens: Any, batch: int, vocabulary: int, shape: str) -> None:
    """``shape`` names the axes, the first one the sentences."""
    if not isinstance(tokens, Tensor) or tokens.dtype != torch.long:
        kind = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise TypeError(
            f"{name} must be a tensor of token numbers, of dtype torch.int64, got {kind}"
        )
    ndim = shape.count(",") + 1
    if tokens.ndim != ndim or tokens.shape[0] != batch or not tokens.numel():
        hint = ""
        if tokens.ndim == ndim and tokens.numel():
            hint = (
                "; a state of nn.GRU or nn.LSTM has its layers first: bring the sentences to the "
                "front"
            )
        raise ValueError(
            f"{name} must be of shape {shape} with B = {batch}, the first axis of init_state, and "
            f"all sizes above 0, got {tuple(tokens.shape)}{hint}"
        )
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocabulary:
        wrong = low if low < 0 else high
        raise ValueError(
            f"{name} must hold tokens from 0 to {vocabulary - 1}, the rows of embedding, got "
            f"{wrong}"
        )


def run_step(
    step: DecoderStep, inputs: Tensor, state: State, vocabulary: int, *, first: bool
) -> tuple[Tensor, State]:
    """Call the step and check what it returns; its values at the first call, as it takes a pass."""
    rows = len(inputs)
    returned = step(inputs, state)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(
            "step must return a pair, the log-probabilities and the new state, got "
            f"{type(returned).__name__}"
        )
    log_probs, state = returned
    if not isinstance(log_probs, Tensor) or log_probs.shape != (rows, vocabulary):
        shape = tuple(log_probs.shape) if isinstance(log_probs, Tensor) else type(log_probs)
        raise ValueError(
            f"step must return log-probabilities of shape (N, V) = ({rows}, {vocabulary}), the "
            f"hypotheses and the rows of embedding, got {shape}"
        )
    if first and not (most := log_probs.detach().max().item()) <= TOLERANCE:
        raise ValueError(
            f"step must return log-probabilities, at most 0, got {most:g}: use log_softmax"
            if most == most
            else "step must return log-probabilities, got NaN"
        )
    for tensor in leaves(state):
        if tensor.ndim == 0 or len(tensor) != rows:
            raise ValueError(
                f"step must return a state whose tensors have {rows} rows, one for each "
                f"hypothesis, got a tensor of shape {tuple(tensor.shape)}"
            )
    return log_probs, state
