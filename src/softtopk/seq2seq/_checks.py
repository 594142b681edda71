"""Checks of the arguments that the searches and losses share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._states import State, batch_size_of


def check_integer(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {name}={value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {name}={value}")
    return value


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        wanted = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {wanted}, got {name}={value!r}")


def check_share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {name}={value!r}")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be between 0 and 1, got {name}={value}")
    return float(value)


def check_eps(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"eps must be a number, got eps={value!r}")
    if not 0 < value < float("inf"):
        raise ValueError(f"eps must be positive and finite, got eps={value}")
    return float(value)


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
    return batch_size_of(init_state), vocabulary


def check_gold(gold: Any, batch: int, vocabulary: int, pad: int) -> Tensor:
    """The number (B,) of gold tokens of each sentence; the padding follows them."""
    if not isinstance(gold, Tensor) or gold.dtype != torch.long:
        kind = gold.dtype if isinstance(gold, Tensor) else type(gold).__name__
        raise TypeError(f"gold must be a tensor of token numbers, of dtype torch.int64, got {kind}")
    if gold.ndim != 2 or gold.shape[0] != batch or gold.shape[1] == 0:
        raise ValueError(
            f"gold must be of shape (B, T) with B = {batch}, the batch of init_state, and T > 0, "
            f"got {tuple(gold.shape)}"
        )
    low, high = int(gold.min()), int(gold.max())
    if low < 0 or high >= vocabulary:
        wrong = low if low < 0 else high
        raise ValueError(f"gold must hold tokens from 0 to {vocabulary - 1}, got {wrong}")
    present = gold != pad
    lengths = present.sum(1)
    if not lengths.all():
        row = int((lengths == 0).nonzero()[0])
        raise ValueError(
            f"gold must have a token in every row, at least the end; row {row} has none"
        )
    if (present[:, 1:] & ~present[:, :-1]).any():
        raise ValueError(f"gold must have its padding, pad={pad}, after the tokens of a row")
    return lengths


def check_log_probs(log_probs: Any, rows: int, vocabulary: int) -> Tensor:
    if not isinstance(log_probs, Tensor) or log_probs.shape != (rows, vocabulary):
        shape = tuple(log_probs.shape) if isinstance(log_probs, Tensor) else type(log_probs)
        raise ValueError(
            f"step must return log-probabilities of shape (N, V) = ({rows}, {vocabulary}), the "
            f"hypotheses and the rows of embedding, got {shape}"
        )
    return log_probs
