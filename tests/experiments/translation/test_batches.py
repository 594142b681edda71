"""Sentence pairs as batches."""

from __future__ import annotations

import random

import pytest
import torch

from softtopk.experiments.translation._batches import (
    Pair,
    batches_per_epoch,
    epoch_order,
    make_batch,
)


def some_pairs(n: int) -> list[Pair]:
    draw = random.Random(n)
    return [Pair((4,) * draw.randint(1, 20), (5,) * draw.randint(0, 20)) for _ in range(n)]


@pytest.mark.parametrize(("n", "size"), [(1, 4), (16, 4), (17, 4), (1000, 8)])
def test_an_epoch_has_every_pair_once(n: int, size: int) -> None:
    order = epoch_order(some_pairs(n), size, seed=3, epoch=2)
    assert sorted(i for rows in order for i in rows) == list(range(n))
    assert len(order) == batches_per_epoch(n, size)
    assert max(map(len, order)) == min(n, size)


def test_the_order_is_a_function_of_the_seed_and_the_epoch() -> None:
    pairs = some_pairs(100)
    first = epoch_order(pairs, 8, seed=0, epoch=0)
    torch.manual_seed(5)  # has no say
    assert epoch_order(pairs, 8, seed=0, epoch=0) == first
    assert epoch_order(pairs, 8, seed=0, epoch=1) != first
    assert epoch_order(pairs, 8, seed=1, epoch=0) != first


def test_batches_have_little_padding() -> None:
    pairs = some_pairs(800)

    def tokens(batches: list[list[int]]) -> int:
        targets = [make_batch([pairs[i] for i in rows], pad=0, eos=3).target for rows in batches]
        return sum(target.numel() for target in targets)

    order = epoch_order(pairs, 8, seed=0, epoch=0)
    needed = sum(len(pair.target) + 1 for pair in pairs)
    assert tokens(order) < 1.1 * needed
    assert tokens([list(range(i, i + 8)) for i in range(0, 800, 8)]) > 1.5 * needed


def test_batches_are_not_in_order_of_length() -> None:
    pairs = some_pairs(800)
    longest = [
        max(len(pairs[i].target) for i in rows) for rows in epoch_order(pairs, 8, seed=0, epoch=0)
    ]
    assert longest != sorted(longest)
