"""The data sets by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from softtopk.experiments._files import opened
from softtopk.experiments._splits import Split
from softtopk.experiments.errors import UsageError, require_modules

from ._data import ImageData, digest_of
from ._formats import check_labels, read_cifar, read_idx

MNIST_SHAPE = (28, 28)
DIGITS_TEST_SHARE = 0.4
DIGITS_MAXIMUM = 16
CLASS_NAMES_LENGTH = 10_000  # bytes, to read and not more of a file that should have a hundred

DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
THINGS = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


@dataclass(frozen=True)
class Source:
    """A data set in files."""

    files: tuple[str, ...]
    folders: tuple[str, ...]
    """Where the files may be, in the data folder or in place of it; the first is proposed."""
    page: str
    read: Callable[[str, Sequence[Path]], ImageData]
    """From its name and the paths of the files."""

    def spellings(self, file: str) -> tuple[str, ...]:
        """The names that a file may have.

        >>> SOURCES["mnist"].spellings("train-labels-idx1-ubyte")[:2]
        ('train-labels-idx1-ubyte', 'train-labels.idx1-ubyte')
        """
        plain = dict.fromkeys((file, file.replace("-idx", ".idx")))
        return *plain, *(f"{name}.gz" for name in plain)

    def find(self, file: str, folder: Path) -> Path | None:
        """The file in a folder, or what has its name if there is none."""
        there = [path for name in self.spellings(file) if (path := folder / name).exists()]
        return next((path for path in there if path.is_file()), there[0] if there else None)


def load(
    name: str, data_dir: str | Path | None = None, *, subset: int | None = None, seed: int = 0
) -> ImageData:
    """A data set: `digits` of scikit-learn, or `mnist`, `fashion-mnist` or `cifar10` from files.

    Args:
        name: One of :data:`NAMES`.
        data_dir: The folder with the files, or with a folder of the data set's name that has
            them. Not for `digits`, which has none.
        subset: Take this many training and, if there are as many, test images.
        seed: Determines the subset, and for `digits`, where there is no canonical one, the split
            into 60 % for training and 40 % to test with.
    """
    if name not in NAMES:
        raise UsageError(f"data set {name!r}: give {', '.join(NAMES)}")
    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed {seed}: give a number from 0 to {2**32 - 1}")
    if name in SOURCES:
        data = _load_files(name, data_dir)
    elif data_dir is None:
        data = _load_digits(seed)
    else:
        raise UsageError(f"--data-dir {data_dir}: {name} is a part of scikit-learn; leave it out")
    return data if subset is None else data.subset(subset, seed)


def _load_digits(seed: int) -> ImageData:
    require_modules("sklearn", what="the data set digits")
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = torch.as_tensor(digits.images, dtype=torch.uint8)[:, None]
    labels = torch.as_tensor(digits.target, dtype=torch.int64)
    train, test = train_test_split(
        range(len(labels)),
        test_size=DIGITS_TEST_SHARE,
        stratify=digits.target,
        random_state=seed,
    )
    everything = Split(images, labels)
    train, test = everything.take(torch.tensor(train)), everything.take(torch.tensor(test))
    return ImageData("digits", DIGITS, train, test, DIGITS_MAXIMUM, digest_of(everything))


def _load_files(name: str, data_dir: str | Path | None) -> ImageData:
    source = SOURCES[name]
    if data_dir is None:
        raise UsageError(f"{name}: give --data-dir, a folder with its files; {_advice(name)}")
    root = Path(data_dir)
    # MNIST and Fashion-MNIST have the same file names and sizes: nothing else tells them apart.
    others = {folder for key, other in SOURCES.items() if key != name for folder in other.folders}
    reasons = []
    for folder in (*(root / folder for folder in source.folders), root):
        found = {file: source.find(file, folder) for file in source.files}
        missing = [file for file, path in found.items() if path is None]
        if not folder.is_dir():
            reasons.append(f"{folder} is not a folder")
        elif len(missing) == len(found):
            reasons.append(f"{folder} has none of them")
        elif missing:
            reasons.append(f"{folder} lacks {', '.join(missing)}")
        elif folder.resolve().name in others:
            reasons.append(f"{folder} is, by its name, of another data set")
        else:
            data = source.read(name, [path for path in found.values() if path is not None])
            return replace(data, digest=digest_of(data.train, data.test))
    raise UsageError(
        f"--data-dir {root}: {name} is in the files {', '.join(source.files)}, which have to be in "
        f"one folder, but {'; '.join(reasons)}; {_advice(name, root)}"
    )


def _advice(name: str, root: Path = Path("FOLDER")) -> str:
    source = SOURCES[name]
    first = source.files[0]
    spellings = ", ".join(source.spellings(first)[1:])
    return (
        f"get them from {source.page} and put them into {root / source.folders[0]}, where they may "
        f"also be spelt as in {spellings} for {first}"
    )


def _read_mnist(name: str, paths: Sequence[Path]) -> ImageData:
    classes = CLOTHES if name == "fashion-mnist" else DIGITS
    splits = []
    for images_path, labels_path in (paths[:2], paths[2:]):
        images, labels = read_idx(images_path, MNIST_SHAPE), read_idx(labels_path, ())
        check_labels(labels_path, labels, len(classes))
        if len(images) != len(labels):
            raise UsageError(
                f"{labels_path}: found {len(labels)} labels, expected {len(images)}, as there are "
                f"that many images in {images_path.name}"
            )
        splits.append(Split(images[:, None], labels.long()))
    train, test = splits
    return ImageData(name, classes, train, test)


def _read_cifar10(name: str, paths: Sequence[Path]) -> ImageData:
    batches = []
    for path in paths:
        images, labels = read_cifar(path)
        check_labels(path, labels, len(THINGS))
        batches.append(Split(images, labels))
    *train, test = batches
    images = torch.cat([batch.inputs for batch in train])
    labels = torch.cat([batch.labels for batch in train])
    return ImageData(name, _cifar10_classes(paths[0].parent), Split(images, labels), test)


def _cifar10_classes(folder: Path) -> tuple[str, ...]:
    path = SOURCES["cifar10"].find("batches.meta.txt", folder)
    if path is None:
        return THINGS
    with opened(path) as (stream, _):
        text = stream.read(CLASS_NAMES_LENGTH).decode("ascii", errors="replace")
    names = tuple(text.split())
    if len(names) != len(THINGS):
        raise UsageError(f"{path}: found {len(names)} names of classes, expected {len(THINGS)}")
    return names


MNIST_FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
CIFAR10_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")

SOURCES = {
    "mnist": Source(
        MNIST_FILES,
        ("mnist",),
        # Their page, http://yann.lecun.com/exdb/mnist/, has not always served them; PyTorch's copy.
        "https://ossci-datasets.s3.amazonaws.com/mnist/ (each FILE.gz)",
        _read_mnist,
    ),
    "fashion-mnist": Source(
        MNIST_FILES,
        ("fashion-mnist",),
        "https://github.com/zalandoresearch/fashion-mnist",
        _read_mnist,
    ),
    "cifar10": Source(
        CIFAR10_FILES,
        ("cifar10", "cifar-10-batches-bin"),
        "https://www.cs.toronto.edu/~kriz/cifar.html (the binary version)",
        _read_cifar10,
    ),
}

NAMES = ("digits", *SOURCES)
