"""Images of the user's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softtopk.experiments._files import GZIP, opened
from softtopk.experiments.errors import UsageError, require_modules

from ._formats import LEVELS, read_idx

if TYPE_CHECKING:
    from PIL import Image

Shape = tuple[int, int, int]
PICTURES = (".png", ".jpg", ".jpeg")


def read_images(path: str | Path, shape: Shape, *, maximum: int = LEVELS - 1) -> Tensor:
    """The images of an IDX (packed by gzip or not), NumPy, PNG or JPEG file, as uint8 (N, C, H, W).

    The contents decide which of them it is. Nothing is resized, cut or inverted: note that MNIST
    has white digits on black.

    Args:
        path: The file. A NumPy file has an array (N, C, H, W) or (N, C * H * W), or one image
            (C, H, W); with one channel also (N, H, W) or (H, W). A PNG or JPEG file has one image;
            colours become grey if there is one channel.
        shape: Channels, height and width that the images must have.
        maximum: The largest value that a pixel can have. White in a picture becomes this.
    """
    path = Path(path)
    with opened(path, unpack=False) as (stream, _):
        start = stream.read(8)
    for magic, read in _READERS.items():
        if start.startswith(magic):
            images = read(path, shape)
            break
    else:
        found = f"a file that begins 0x{start.hex()}" if start else "an empty file"
        raise UsageError(f"{path}: found {found}, expected IDX, NumPy (.npy), PNG or JPEG")
    if read is _read_picture:
        images = (images.float() * (maximum / (LEVELS - 1))).round().to(torch.uint8)
    largest = int(images.max())
    if largest > maximum:
        raise UsageError(f"{path}: found the value {largest}, expected 0 to {maximum}")
    return images


def _read_idx(path: Path, shape: Shape) -> Tensor:
    return read_idx(path, shape[1:] if shape[0] == 1 else shape).view(-1, *shape)


def _read_npy(path: Path, shape: Shape) -> Tensor:
    require_modules("numpy", what=f"{path}: a NumPy file")
    import numpy as np

    try:
        # Mapped, not read: NumPy then compares the header with the length of the file, where it
        # would otherwise allocate what the header says.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # damage to the header causes errors of many kinds
        raise UsageError(f"{path}: not a whole NumPy file without objects ({error})") from error
    if array.offset + array.nbytes != path.stat().st_size:
        raise UsageError(f"{path}: found bytes after the array, expected none")
    if not _allowed(array.shape, shape) or not array.size:
        channels, height, width = shape
        raise UsageError(
            f"{path}: found an array {array.shape}, expected (N, {channels}, {height}, {width}), "
            f"or (N, {math.prod(shape)}), or one image"
        )
    if array.dtype.kind not in "uif":
        raise UsageError(f"{path}: found an array of {array.dtype}, expected numbers, as uint8")
    values = np.array(array, order="C")
    with np.errstate(invalid="ignore"):  # NaN and infinity are not whole numbers: that is all
        whole = bool((values % 1 == 0).all())
    if not whole or values.min() < 0 or values.max() >= LEVELS:
        raise UsageError(
            f"{path}: found an array of {array.dtype} from {values.min():g} to {values.max():g}, "
            f"expected whole numbers from 0 to {LEVELS - 1}"
        )
    return torch.from_numpy(values.astype(np.uint8)).view(-1, *shape)


def _allowed(found: tuple[int, ...], shape: Shape) -> bool:
    """Whether an array of the shape `found` has images of the shape `shape`."""
    single = shape[1:] if shape[0] == 1 else shape
    return found in (shape, single) or found[1:] in (shape, single, (math.prod(shape),))


def pictures_below(folder: Path) -> list[Path]:
    """The PNG and JPEG files in a folder and in the folders below it."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)
    if not found:
        raise UsageError(f"{folder}: found no images, expected {', '.join(PICTURES)}")
    return found


def shape_of_picture(path: Path) -> Shape:
    """Channels, one if it has no colours and else three, height and width."""
    with _open_picture(path) as image:
        return 1 if image.mode in ("1", "L", "LA") else 3, image.height, image.width


@contextmanager
def _open_picture(path: Path) -> Iterator[Image.Image]:
    require_modules("PIL", what=f"{path}: a picture")
    from PIL import Image

    try:
        with Image.open(path, formats=["PNG", "JPEG"]) as image:
            if image.mode.startswith(("I", "F")):  # would be cut to 8 bits, not scaled
                raise UsageError(f"{path}: found 16 bits for a pixel, expected 8")
            yield image
    except UsageError:
        raise
    except Exception as error:  # each kind of damage causes another kind of error
        raise UsageError(f"{path}: not a whole PNG or JPEG file ({error})") from error


def _read_picture(path: Path, shape: Shape) -> Tensor:
    channels, height, width = shape
    if channels not in (1, 3):
        raise UsageError(f"{path}: found a picture, expected IDX or NumPy for {channels} channels")
    with _open_picture(path) as image:
        if image.size != (width, height):
            raise UsageError(
                f"{path}: found {image.width} x {image.height} pixels, expected {width} x "
                f"{height}; resize it"
            )
        image.verify()
    with _open_picture(path) as image:  # verifying spoils it
        if image.convert("RGBA").getchannel("A").getextrema() != (255, 255):
            raise UsageError(f"{path}: found transparent pixels, expected a background")
        data = image.convert("L" if channels == 1 else "RGB").tobytes()
    pixels = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(1, height, width, channels)
    return pixels.permute(0, 3, 1, 2).contiguous()


# By what the file begins with.
_READERS: dict[bytes, Callable[[Path, Shape], Tensor]] = {
    b"\x93NUMPY": _read_npy,
    b"\x89PNG\r\n\x1a\n": _read_picture,
    b"\xff\xd8\xff": _read_picture,
    b"\0\0": _read_idx,
    GZIP: _read_idx,  # no picture or NumPy file begins so, and no IDX file
}
