"""Images with their labels, and how they are divided."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from softtopk.experiments.errors import UsageError

LEVELS = 256  # of a uint8


@dataclass(frozen=True, eq=False)
class Split:
    """Images and what is on them."""

    images: Tensor
    """(N, C, H, W), uint8."""
    labels: Tensor
    """(N,), int64: positions in the classes of the data set."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> Split:
        """The images with these indices, (M,), in this order."""
        return Split(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class Normalisation:
    """Makes images of mean 0 and standard deviation 1 in every channel, on average over a set.

    Holds plain numbers, so that it can be stored with a model.
    """

    maximum: int
    """The value of white."""
    mean: tuple[float, ...]
    """Of every channel of images / maximum, and so is std."""
    std: tuple[float, ...]

    @staticmethod
    def of(images: Tensor, maximum: int) -> Normalisation:
        """From images (N, C, H, W)."""
        levels = torch.arange(LEVELS, dtype=torch.float64) / maximum
        means, stds = [], []
        for channel in images.unbind(1):
            # There are few levels: counting them is exact, and needs no copy in floating point.
            share = torch.bincount(channel.flatten(), minlength=LEVELS).double() / channel.numel()
            mean = share @ levels
            means.append(mean.item())
            stds.append((share @ (levels - mean) ** 2).sqrt().item())
        # A channel that is the same everywhere stays 0 then, instead of 0 / 0.
        return Normalisation(maximum, tuple(means), tuple(std or 1.0 for std in stds))

    def apply(self, images: Tensor) -> Tensor:
        """(images / maximum - mean) / std: uint8 (N, C, H, W) -> float32 (N, C, H, W)."""
        moments = torch.tensor((self.mean, self.std), dtype=torch.float32, device=images.device)
        mean, std = moments[:, :, None, None]
        return (images.to(torch.float32) / self.maximum).sub_(mean).div_(std)


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set: what to learn from and what to be judged by."""

    name: str
    classes: tuple[str, ...]
    """Their names, in the order of the labels."""
    train: Split
    test: Split
    maximum: int = LEVELS - 1
    """The largest value that a pixel can have."""
    digest: str = ""
    """Of all images that there are, whatever part of them this is."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    @cached_property
    def normalisation(self) -> Normalisation:
        """That of the training split."""
        return Normalisation.of(self.train.images, self.maximum)

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise any images by the training split: uint8 -> float32, both (N, C, H, W)."""
        return self.normalisation.apply(images)

    def subset(self, n: int, seed: int) -> ImageData:
        """Take `n` training and as many test images, or all if there are fewer, at random.

        Both keep the shares of the classes, and depend on nothing but `n` and `seed`.
        """
        if not len(self.classes) <= n <= len(self.train):
            raise UsageError(
                f"--subset {n}: give {len(self.classes)} to {len(self.train)}, which are the "
                f"numbers of classes and of training images of {self.name}"
            )
        train = self.train.take(stratified(self.train.labels, n, seed))
        test = self.test.take(stratified(self.test.labels, min(n, len(self.test)), seed))
        return replace(self, train=train, test=test)

    def holdout(self, n: int, seed: int) -> ImageData:
        """Put `n` training images, at random, in the place of the test images, to tune with.

        Both parts keep the shares of the classes, and no class is held out wholly.
        """
        most = len(self.train) - len(self.classes)
        if not 1 <= n <= most:
            raise UsageError(
                f"cannot hold out {n} of the {len(self.train)} training images of {self.name}: "
                f"give 1 to {most}, which leaves one of each class to learn from"
            )
        kept = torch.zeros(len(self.train), dtype=torch.bool)
        kept[stratified(self.train.labels, len(self.train) - n, seed)] = True
        held_out = self.train.take((~kept).nonzero().squeeze(1))
        return replace(self, train=self.train.take(kept.nonzero().squeeze(1)), test=held_out)


def digest_of(*splits: Split) -> str:
    """SHA-256 of all images and labels, in order."""
    digest = hashlib.sha256()
    for split in splits:
        for tensor in (split.images, split.labels):
            digest.update(f"{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


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
