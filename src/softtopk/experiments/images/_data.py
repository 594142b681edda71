"""Images, and how they are normalised."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from softtopk.experiments._splits import Data, Split, Unlabelled

from ._formats import LEVELS
from ._reading import pictures_below, read_images


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
class ImageData(Data):
    """Images, (N, C, H, W), uint8."""

    maximum: int = LEVELS - 1
    """The largest value that a pixel can have."""
    digest: str = ""
    """Of all images of a data set with a name, whatever part of them this is."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.train.inputs.shape[1:]
        return channels, height, width

    @cached_property
    def normalisation(self) -> Normalisation:
        """That of the training split."""
        return Normalisation.of(self.train.inputs, self.maximum)

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise any images by the training split: uint8 -> float32, both (N, C, H, W)."""
        return self.normalisation.apply(images)

    def read(self, path: Path) -> Unlabelled:
        """Images of the same shape, from a file, or from all PNG and JPEG files of a folder."""
        files = pictures_below(path) if path.is_dir() else [path]
        parts = [read_images(file, self.shape, maximum=self.maximum) for file in files]
        names: Sequence[object] = range(len(parts[0]))
        if path.is_dir():
            names = [file.relative_to(path).as_posix() for file in files]
        return Unlabelled(names, torch.cat(parts))


def digest_of(*splits: Split) -> str:
    """SHA-256 of all images and labels, in order."""
    digest = hashlib.sha256()
    for split in splits:
        for tensor in (split.inputs, split.labels):
            digest.update(f"{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
