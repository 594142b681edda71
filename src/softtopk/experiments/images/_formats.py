"""The file formats: what is not exactly as described is refused, with what was found instead.

IDX is described at the end of http://yann.lecun.com/exdb/mnist/, the binary version of CIFAR-10
at https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from softtopk.experiments._files import opened
from softtopk.experiments.errors import UsageError

UNSIGNED_BYTE = 0x08  # IDX's code for the type
LEVELS = 256  # of a uint8
CIFAR_SHAPE = (3, 32, 32)
CHUNK = 2**20


def _take(stream: IO[bytes], most: int) -> bytearray:
    """Read to the end, or `most` bytes; memory grows with what is there, not with `most`."""
    data = bytearray()
    while len(data) < most and (chunk := stream.read(min(CHUNK, most - len(data)))):
        data += chunk
    return data


def read_idx(path: Path, item: tuple[int, ...]) -> Tensor:
    """An IDX file of unsigned bytes with one or more items of this shape, as uint8 (N, *item).

    The file is a magic number, `00 00 type dimensions`; the sizes, 32 bits each with the high
    byte first; and the data.
    """
    expected = bytes((0, 0, UNSIGNED_BYTE, 1 + len(item)))
    header = len(expected) + 4 * (1 + len(item))
    with opened(path) as (stream, most):
        start = bytes(_take(stream, header))
        if not start:
            raise UsageError(f"{path}: found an empty file, expected IDX")
        if start[:4] != expected:
            raise UsageError(
                f"{path}: found the magic number 0x{start[:4].hex()}, expected 0x{expected.hex()}, "
                f"for IDX with {1 + len(item)} dimensions of unsigned bytes"
            )
        if len(start) < header:
            raise UsageError(f"{path}: found {len(start)} bytes, expected a header of {header}")
        shape = struct.unpack(f">{1 + len(item)}I", start[4:])
        if shape[1:] != item or shape[0] == 0:
            wanted = " x ".join(("N", *map(str, item)))
            raise UsageError(
                f"{path}: found {_product(shape)} in the header, expected {wanted} with N >= 1"
            )
        size = math.prod(shape)
        # Memory is only for what the file can hold, whatever its header says.
        data = _take(stream, size + 1) if header + size <= most else None
    if data is None or len(data) != size:
        if data is None:
            found = f"at most {most - header}"
        else:
            found = f"more than {size}" if len(data) > size else str(len(data))
        raise UsageError(
            f"{path}: found {found} bytes of data, expected {size} = {_product(shape)}, as the "
            "header says"
        )
    return torch.frombuffer(data, dtype=torch.uint8).view(shape)


def _product(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def read_cifar(path: Path) -> tuple[Tensor, Tensor]:
    """A CIFAR-10 file: images, uint8 (N, 3, 32, 32), and labels, int64 (N,).

    The file is a sequence of records, of one byte for the label and 3072 for the pixels: red,
    green and blue, row by row. It does not say of how many, so that one cut off between two
    records cannot be told from a shorter one.
    """
    record = 1 + math.prod(CIFAR_SHAPE)
    with opened(path) as (stream, most):
        data = _take(stream, most + 1)
    if not data or len(data) % record:
        raise UsageError(
            f"{path}: found {len(data)} bytes, expected a multiple of {record}, and one at least"
        )
    rows = torch.frombuffer(data, dtype=torch.uint8).view(-1, record)
    return rows[:, 1:].reshape(-1, *CIFAR_SHAPE), rows[:, 0].long()


def check_labels(path: Path, labels: Tensor, classes: int) -> None:
    """Refuse labels that are none of the classes."""
    wrong = (labels >= classes).nonzero().flatten()
    if len(wrong):
        first = int(wrong[0])
        raise UsageError(
            f"{path}: found the label {labels[first]} of image {first}, expected 0 to {classes - 1}"
        )
