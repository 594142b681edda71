"""Samples with their labels, and how they are divided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from .errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, eq=False)
class Split:
    """Samples and their classes."""

    inputs: Tensor
    """(N, ...), as they were read."""
    labels: Tensor
    """(N,), int64: positions in the classes of the data set."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> Split:
        """The samples with these indices, (M,), in this order."""
        return Split(self.inputs[indices], self.labels[indices])


class Unlabelled(NamedTuple):
    """Samples to classify."""

    names: Sequence[object]
    inputs: Tensor
    note: str = ""
    """What the user should know of them."""


@dataclass(frozen=True, eq=False)
class Data:
    """A data set: what to learn from and what to be judged by."""

    name: str
    classes: tuple[str, ...]
    """Their names, in the order of the labels."""
    train: Split
    test: Split

    unit: ClassVar[str] = "image"
    """What one sample is called."""

    def normalise(self, inputs: Tensor) -> Tensor:
        """Normalise any samples by the training split: as they were read -> float32."""
        raise NotImplementedError

    def read(self, path: Path) -> Unlabelled:
        """Samples of the same kind, from a file or a folder."""
        raise NotImplementedError

    def subset(self, n: int, seed: int) -> Self:
        """Take `n` training and as many test samples, or all if there are fewer, at random.

        Both keep the shares of the classes, and depend on nothing but `n` and `seed`.
        """
        if not len(self.classes) <= n <= len(self.train):
            raise UsageError(
                f"--subset {n}: give {len(self.classes)} to {len(self.train)}, which are the "
                f"numbers of classes and of training {self.unit}s of {self.name}"
            )
        train = self.train.take(stratified(self.train.labels, n, seed))
        test = self.test.take(stratified(self.test.labels, min(n, len(self.test)), seed))
        return replace(self, train=train, test=test)

    def holdout(self, n: int, seed: int) -> Self:
        """Put `n` training samples, at random, in the place of the test samples, to tune with.

        Both parts keep the shares of the classes, and no class is held out wholly.
        """
        most = len(self.train) - len(self.classes)
        if not 1 <= n <= most:
            raise UsageError(
                f"cannot hold out {n} of the {len(self.train)} training {self.unit}s of "
                f"{self.name}: give 1 to {most}, which leaves one of each class to learn from"
            )
        kept = torch.zeros(len(self.train), dtype=torch.bool)
        kept[stratified(self.train.labels, len(self.train) - n, seed)] = True
        held_out = self.train.take((~kept).nonzero().squeeze(1))
        return replace(self, train=self.train.take(kept.nonzero().squeeze(1)), test=held_out)


def labelled(names: Sequence[str]) -> tuple[tuple[str, ...], Tensor]:
    """The classes, numbers in their order and others in that of the alphabet, and the labels.

    >>> labelled(["10", "9", "10"])
    (('9', '10'), tensor([1, 0, 1]))
    """
    classes = sorted(set(names))
    with suppress(ValueError):
        numbers = {name: float(name) for name in classes}
        if all(map(math.isfinite, numbers.values())):  # NaN has no place in an order
            classes.sort(key=numbers.__getitem__)
    place = {name: i for i, name in enumerate(classes)}
    return tuple(classes), torch.tensor([place[name] for name in names], dtype=torch.int64)


def check_classes(what: str, classes: Sequence[str], labels: Tensor, unit: str, least: int) -> None:
    """Refuse fewer than two classes, and classes with fewer than ``least`` samples."""
    if len(classes) < 2:
        raise UsageError(f"{what} has one class only, {classes[0]!r}: give samples of two or more")
    counts = labels.bincount(minlength=len(classes)).tolist()
    few = [name for name, count in zip(classes, counts, strict=True) if count < least]
    if few:
        raise UsageError(
            f"{what} has {count_of(few, 'class', 'classes')} with one {unit} only: {listed(few)}; "
            f"it takes one {unit} to learn from and one for the test: add some, or remove these"
        )


def count_of(things: Sequence[object], one: str, several: str) -> str:
    return f"{len(things)} {one if len(things) == 1 else several}"


def listed(names: Sequence[str], most: int = 30) -> str:
    """
    >>> listed(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def stratified(labels: Tensor, n: int, seed: int) -> Tensor:
    """Indices of `n` random elements of `labels`, (N,) -> (n,), in ascending order.

    Every class has the share of them that it has of all, and at least one.
    """
    classes, counts = labels.unique(return_counts=True)
    generator = torch.Generator().manual_seed(seed)
    chosen = []
    for label, share in zip(classes, _shares(counts.tolist(), n), strict=True):
        members = (labels == label).nonzero().squeeze(1)
        chosen.append(members[torch.randperm(len(members), generator=generator)[:share]])
    return torch.cat(chosen).sort().values


def _shares(counts: list[int], n: int) -> list[int]:
    """Divide `n` in proportion to `counts`, by largest remainders, with at least 1 for each.

    >>> _shares([50, 30, 20], 5)
    [3, 1, 1]
    >>> _shares([98, 1, 1], 10)
    [8, 1, 1]
    """
    total = sum(counts)
    if not len(counts) <= n <= total:
        raise ValueError(f"n = {n}: give {len(counts)} to {total}, one for each class to all")
    shares = [n * count // total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda i: -(n * counts[i] % total))
    for i in by_remainder[: n - sum(shares)]:
        shares[i] += 1
    while 0 in shares:
        shares[shares.index(max(shares))] -= 1
        shares[shares.index(0)] += 1
    return shares
