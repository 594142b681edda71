"""Sentence pairs as padded batches of similar length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from softtopk._training import mix

POOL = 50  # batches whose sentences are sorted by length together


class Pair(NamedTuple):
    """The tokens of a sentence and of its translation, without begin and end."""

    source: tuple[int, ...]
    target: tuple[int, ...]


class Batch(NamedTuple):
    """Padded sentence pairs."""

    source: Tensor
    """(B, S): tokens and the end token."""
    target: Tensor
    """(B, T): tokens and the end token."""


def make_batch(pairs: Sequence[Pair], *, pad: int, eos: int) -> Batch:
    """
    >>> make_batch([Pair((5,), (6, 7)), Pair((8, 9), ())], pad=0, eos=3)
    Batch(source=tensor([[5, 3, 0],
            [8, 9, 3]]), target=tensor([[6, 7, 3],
            [3, 0, 0]]))
    """
    return Batch(
        pad_rows([(*pair.source, eos) for pair in pairs], pad),
        pad_rows([(*pair.target, eos) for pair in pairs], pad),
    )


def pad_rows(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    """Rows of different lengths as one tensor, filled up with ``pad``."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])


def batches_per_epoch(n: int, batch_size: int) -> int:
    return math.ceil(n / batch_size)


def epoch_order(pairs: Sequence[Pair], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch, as indices of pairs: a function of the seed and the epoch.

    The pairs are shuffled, those of a pool of batches sorted by length, so that a batch has little
    padding, and the batches shuffled.
    """
    generator = torch.Generator().manual_seed(mix(seed, "epoch", epoch))
    order = torch.randperm(len(pairs), generator=generator).tolist()
    batches = []
    for start in range(0, len(order), POOL * batch_size):
        pool = order[start : start + POOL * batch_size]
        pool.sort(key=lambda i: (len(pairs[i].target), len(pairs[i].source)))
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
