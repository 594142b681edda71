"""A folder of images, one folder for each class."""

from __future__ import annotations

from pathlib import Path

import torch

from softtopk.experiments._splits import Split, check_classes, labelled, listed
from softtopk.experiments.errors import UsageError

from ._data import ImageData
from ._reading import PICTURES, Shape, read_images, shape_of_picture

LAYOUT = "expected a folder of PNG or JPEG files for each class, or train/ and test/ with such"
Files = list[tuple[Path, str]]
"""Each with the name of its class."""


def read_folder(folder: Path) -> ImageData:
    """The images of a folder. The test split is empty unless there are folders train and test."""
    divided = (folder / "train").is_dir() and (folder / "test").is_dir()
    train = _labelled_files(folder / "train" if divided else folder)
    test = _labelled_files(folder / "test") if divided else []
    classes, labels = labelled([name for _, name in train])
    check_classes(str(folder), classes, labels, "image", least=1 if divided else 2)
    unknown = sorted({name for _, name in test} - set(classes))
    if unknown:
        raise UsageError(
            f"{folder / 'test'}: found classes that {folder / 'train'} lacks: {listed(unknown)}; "
            "add images to learn them from, or remove these"
        )
    shape = _common_shape([path for path, _ in (*train, *test)])
    images = torch.cat([read_images(path, shape) for path, _ in (*train, *test)])
    found = torch.tensor([classes.index(name) for _, name in test], dtype=torch.int64)
    n = len(train)
    return ImageData(
        f"{folder.resolve().name}/", classes, Split(images[:n], labels), Split(images[n:], found)
    )


def _labelled_files(folder: Path) -> Files:
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    folders = [path for path in entries if path.is_dir()]
    loose = [path for path in entries if path.suffix.lower() in PICTURES and path.is_file()]
    if loose or not folders:
        found = f"images beside each other, as {loose[0].name}" if loose else "no folders"
        raise UsageError(f"{folder}: found {found}, {LAYOUT}")
    return [(path, home.name) for home in folders for path in _pictures_of(home)]


def _pictures_of(home: Path) -> list[Path]:
    """The images of a class. Nothing else may be there but hidden files."""
    found = sorted(path for path in home.iterdir() if not path.name.startswith("."))
    other = next((path for path in found if path.suffix.lower() not in PICTURES), None)
    if other or not found:
        what = f"{other.name}" if other else "no images"
        raise UsageError(f"{home}: found {what}, expected the PNG or JPEG files of a class only")
    return found


def _common_shape(files: list[Path]) -> Shape:
    """That of all images, with colours if one has any."""
    shapes = {path: shape_of_picture(path) for path in files}
    first, (_, height, width) = next(iter(shapes.items()))
    for path, (_, h, w) in shapes.items():
        if (h, w) != (height, width):
            raise UsageError(
                f"{first} has {width} x {height} pixels and {path} {w} x {h}: make all images of "
                "one size"
            )
    return max(channels for channels, _, _ in shapes.values()), height, width
