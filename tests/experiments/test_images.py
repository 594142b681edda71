"""Data sets from files that the tests write, byte by byte, and everything that is refused."""

from __future__ import annotations

import gzip
import io
import math
import re
import struct
import sys
import tracemalloc
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from softtopk.experiments._splits import Split, _shares, stratified
from softtopk.experiments.errors import UsageError
from softtopk.experiments.images import NAMES, ImageData, load, read_images

RNG = np.random.default_rng(0)
MNIST_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
TRAIN, TEST = 30, 20  # in the small versions
RECORD = 3073


def random_images(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def labels_of(n: int) -> np.ndarray:
    return (np.arange(n) * 7 % 10).astype(np.uint8)


def idx(array: np.ndarray) -> bytes:
    """As the format's description has it: 0, 0, type, dimensions; big-endian sizes; data."""
    header = b"\0\0\x08" + bytes([array.ndim])
    return header + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def cifar(images: np.ndarray, labels: np.ndarray) -> bytes:
    pairs = zip(images, labels, strict=True)
    return b"".join(bytes([label]) + image.tobytes() for image, label in pairs)


class Mnist:
    """Small files like those of MNIST, with what is in them."""

    def __init__(self) -> None:
        self.images = random_images(TRAIN, 28, 28), random_images(TEST, 28, 28)
        self.labels = labels_of(TRAIN), labels_of(TEST)
        arrays = (self.images[0], self.labels[0], self.images[1], self.labels[1])
        self.files = {name: idx(array) for name, array in zip(MNIST_NAMES, arrays, strict=True)}

    def write(self, folder: Path, **changed: bytes) -> Path:
        """`train_images=...` takes the place of that file's contents."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            key = "_".join(name.split("-")[:2])
            (folder / name).write_bytes(changed.get(key, content))
        return folder

    def check(self, data: ImageData) -> None:
        for split, images, labels in zip(
            (data.train, data.test), self.images, self.labels, strict=True
        ):
            assert (split.inputs.dtype, split.labels.dtype) == (torch.uint8, torch.int64)
            np.testing.assert_array_equal(split.inputs.numpy(), images[:, None])
            np.testing.assert_array_equal(split.labels.numpy(), labels)


MNIST = Mnist()


class Cifar:
    def __init__(self) -> None:
        self.images = random_images(6, 4, 3, 32, 32)
        self.labels = labels_of(24).reshape(6, 4)
        names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
        batches = zip(self.images, self.labels, strict=True)
        self.files = {name: cifar(*batch) for name, batch in zip(names, batches, strict=True)}

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return folder


CIFAR = Cifar()


def refused(*parts: str) -> Any:
    """An error with these parts, in this order."""
    return pytest.raises(UsageError, match=".*".join(map(re.escape, parts)))


def made_up(counts: list[int], test: int = 10) -> ImageData:
    """Data where the images are all different and the classes as frequent as it says."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    numbers = torch.arange(len(labels) + test)
    images = torch.stack([numbers // 256, numbers % 256], 1).to(torch.uint8).view(-1, 1, 1, 2)
    n = len(labels)
    test_labels = torch.arange(test) % len(counts)
    classes = tuple(map(str, range(len(counts))))
    return ImageData("x", classes, Split(images[:n], labels), Split(images[n:], test_labels))


def numbers_of(split: Split) -> list[int]:
    """Which of the images of `made_up` they are."""
    high, low = split.inputs.long().flatten(1).T
    return (256 * high + low).tolist()


# --- loading ---


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("inside", [True, False])
def test_mnist_round_trip(name: str, inside: bool, tmp_path: Path) -> None:
    MNIST.write(tmp_path / name if inside else tmp_path)
    data = load(name, tmp_path)
    MNIST.check(data)
    assert (data.name, data.shape, data.maximum) == (name, (1, 28, 28), 255)
    assert data.classes[0] == {"mnist": "0", "fashion-mnist": "T-shirt/top"}[name]
    assert data.classes[9] == {"mnist": "9", "fashion-mnist": "Ankle boot"}[name]
    assert len(data.classes) == 10


@pytest.mark.parametrize("dotted", [True, False])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("packed", [True, False])
def test_spellings_and_packing(dotted: bool, suffix: str, packed: bool, tmp_path: Path) -> None:
    """The name may be wrong about the packing: browsers unpack and keep the name."""
    for name, content in MNIST.files.items():
        spelt = (name.replace("-idx", ".idx") if dotted else name) + suffix
        (tmp_path / spelt).write_bytes(gzip.compress(content) if packed else content)
    MNIST.check(load("mnist", str(tmp_path)))


def test_the_folder_of_the_name_comes_first(tmp_path: Path) -> None:
    MNIST.write(tmp_path / "mnist")
    other = Mnist()
    other.write(tmp_path)
    MNIST.check(load("mnist", tmp_path))
    other.check(load("fashion-mnist", tmp_path))


def test_files_are_not_taken_from_two_folders(tmp_path: Path) -> None:
    MNIST.write(tmp_path / "mnist")
    MNIST.write(tmp_path)
    (tmp_path / "mnist" / MNIST_NAMES[1]).unlink()
    (tmp_path / MNIST_NAMES[2]).unlink()
    with refused("mnist lacks train-labels-idx1-ubyte;", "lacks t10k-images-idx3-ubyte;"):
        load("mnist", tmp_path)


def test_mnist_is_not_taken_for_fashion_mnist(tmp_path: Path) -> None:
    folder = MNIST.write(tmp_path / "mnist")
    with refused(f"{folder} is, by its name, of another data set"):
        load("fashion-mnist", folder)
    MNIST.write(folder / "fashion-mnist")
    MNIST.check(load("fashion-mnist", folder))


@pytest.mark.parametrize("folder", ["", "cifar10", "cifar-10-batches-bin"])
@pytest.mark.parametrize("packed", [True, False])
def test_cifar10_round_trip(folder: str, packed: bool, tmp_path: Path) -> None:
    CIFAR.write(tmp_path / folder)
    if packed:
        for path in (tmp_path / folder).iterdir():
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    data = load("cifar10", tmp_path)
    assert data.shape == (3, 32, 32)
    np.testing.assert_array_equal(
        data.train.inputs.numpy(), CIFAR.images[:5].reshape(-1, 3, 32, 32)
    )
    np.testing.assert_array_equal(data.train.labels.numpy(), CIFAR.labels[:5].ravel())
    np.testing.assert_array_equal(data.test.inputs.numpy(), CIFAR.images[5])
    np.testing.assert_array_equal(data.test.labels.numpy(), CIFAR.labels[5])
    assert data.train.inputs.is_contiguous()
    assert data.classes[:2] == ("airplane", "automobile")


def test_cifar10_names_of_classes(tmp_path: Path) -> None:
    CIFAR.write(tmp_path)
    (tmp_path / "batches.meta.txt").write_text("a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n")
    assert load("cifar10", tmp_path).classes == tuple("abcdefghij")
    (tmp_path / "batches.meta.txt").write_text("a\nb\n")
    with refused("batches.meta.txt: found 2 names of classes, expected 10"):
        load("cifar10", tmp_path)


def test_digits() -> None:
    x, y = load_digits(return_X_y=True)
    for seed in (0, 3):
        x_train, x_test, y_train, y_test = train_test_split(
            x, y, test_size=0.4, stratify=y, random_state=seed
        )
        data = load("digits", seed=seed)
        assert (data.shape, data.maximum, len(data.classes)) == ((1, 8, 8), 16, 10)
        for part, images, labels in (
            (data.train, x_train, y_train),
            (data.test, x_test, y_test),
        ):
            assert part.inputs.dtype == torch.uint8
            np.testing.assert_array_equal(part.inputs.numpy(), images.reshape(-1, 1, 8, 8))
            np.testing.assert_array_equal(part.labels.numpy(), labels)


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with refused("digits needs scikit-learn: pip install 'softtopk[knn]'"):
        load("digits")


def test_wrong_arguments(tmp_path: Path) -> None:
    assert NAMES == ("digits", "mnist", "fashion-mnist", "cifar10")
    with refused("'mnits': give digits, mnist, fashion-mnist, cifar10"):
        load("mnits")
    with refused("--data-dir", "digits is a part of scikit-learn; leave it out"):
        load("digits", tmp_path)
    for seed in (-1, 2**32):
        with refused(f"--seed {seed}: give a number from 0 to 4294967295"):
            load("digits", seed=seed)


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("mnist", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
        ("fashion-mnist", "https://github.com/zalandoresearch/fashion-mnist"),
        ("cifar10", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    ],
)
def test_where_to_get_the_files(name: str, page: str, tmp_path: Path) -> None:
    with refused(f"{name}: give --data-dir", page, f"FOLDER/{name}"):
        load(name)
    files = CIFAR.files if name == "cifar10" else MNIST.files
    with refused(
        f"--data-dir {tmp_path}: {name} is in the files",
        *files,
        f"{tmp_path / name} is not a folder",
        f"{tmp_path} has none of them",
        f"get them from {page}",
        f"put them into {tmp_path / name}",
        f"{next(iter(files))}.gz",
    ):
        load(name, tmp_path)


# --- refusals ---


def changed(content: bytes, at: int, value: int, width: int = 4) -> bytes:
    return content[:at] + value.to_bytes(width, "big") + content[at + width :]


IMAGES, LABELS = MNIST.files[MNIST_NAMES[0]], MNIST.files[MNIST_NAMES[1]]
BROKEN = {
    "empty": ({"train_images": b""}, "train-images-idx3-ubyte: found an empty file"),
    "empty gzip": (
        {"train_images": gzip.compress(b"")},
        "train-images-idx3-ubyte: found an empty file",
    ),
    "images as labels": (
        {"train_labels": IMAGES},
        "labels-idx1-ubyte: found the magic number 0x00000803, expected 0x00000801",
    ),
    "labels as images": (
        {"t10k_images": LABELS},
        "t10k-images-idx3-ubyte: found the magic number 0x00000801, expected 0x00000803",
    ),
    "signed bytes": (
        {"train_images": changed(IMAGES, 0, 0x903)},
        "found the magic number 0x00000903",
    ),
    "little-endian": ({"train_images": IMAGES[3::-1] + IMAGES[4:]}, "magic number 0x03080000"),
    "other size": (
        {"train_images": idx(random_images(TRAIN, 28, 27))},
        "found 30 x 28 x 27 in the header, expected N x 28 x 28",
    ),
    "no images": (
        {"train_images": idx(random_images(0, 28, 28)), "train_labels": idx(labels_of(0))},
        "found 0 x 28 x 28 in the header, expected N x 28 x 28 with N >= 1",
    ),
    "no labels": ({"t10k_labels": idx(labels_of(0))}, "found 0 in the header, expected N with"),
    "trailing byte": (
        {"train_images": IMAGES + b"\0"},
        f"found more than {TRAIN * 784} bytes of data, expected {TRAIN * 784} = 30 x 28 x 28",
    ),
    "trailing byte within gzip": (
        {"train_images": gzip.compress(IMAGES + b"\0")},
        f"found more than {TRAIN * 784} bytes of data, expected {TRAIN * 784} = 30 x 28 x 28",
    ),
    "bytes after gzip": ({"train_images": gzip.compress(IMAGES) + b"x"}, "found gzip that is"),
    "fewer labels": (
        {"train_labels": idx(labels_of(TRAIN - 1))},
        "train-labels-idx1-ubyte: found 29 labels, expected 30, as there are that many images in "
        "train-images-idx3-ubyte",
    ),
    "label 10": (
        {"t10k_labels": idx(np.append(labels_of(TEST - 1), np.uint8(10)))},
        "t10k-labels-idx1-ubyte: found the label 10 of image 19, expected 0 to 9",
    ),
    "cut off header": (
        {"train_images": IMAGES[:15]},
        "found 15 bytes, expected a header of 16",
    ),
    "cut off": ({"train_images": IMAGES[:-1]}, f"found at most {TRAIN * 784 - 1} bytes of data"),
    "cut off within gzip": (
        {"train_images": gzip.compress(IMAGES[:-1])},
        f"found {TRAIN * 784 - 1} bytes of data, expected {TRAIN * 784} = 30 x 28 x 28",
    ),
}


@pytest.mark.parametrize("key", BROKEN)
def test_broken_mnist_is_refused(key: str, tmp_path: Path) -> None:
    files, message = BROKEN[key]
    with refused(message):
        load("mnist", MNIST.write(tmp_path, **files))


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(IMAGES))
    packed[-8] ^= 1  # of the check sum
    with refused("train-images-idx3-ubyte: found gzip that is cut off or damaged", "CRC"):
        load("mnist", MNIST.write(tmp_path, train_images=bytes(packed)))
    packed = bytearray(gzip.compress(IMAGES))
    packed[10] |= 0b110  # a kind of block that does not exist
    with refused("train-images-idx3-ubyte: found gzip that is cut off or damaged"):
        load("mnist", MNIST.write(tmp_path, train_images=bytes(packed)))


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    MNIST.write(tmp_path)
    path = tmp_path / MNIST_NAMES[0]
    path.unlink()
    path.mkdir()
    with refused(f"{path}: found a folder, expected a file"):
        load("mnist", tmp_path)
    # As some archives unpack: the file is there as well, under another name.
    (tmp_path / "train-images.idx3-ubyte").write_bytes(IMAGES)
    MNIST.check(load("mnist", tmp_path))


@pytest.mark.parametrize("packed", [True, False])
def test_no_memory_for_what_is_not_there(packed: bool, tmp_path: Path) -> None:
    absurd = changed(IMAGES, 4, 2**32 - 1)
    content = gzip.compress(absurd) if packed else absurd
    MNIST.write(tmp_path, train_images=content)
    tracemalloc.start()
    try:
        with refused("found at most", f"expected {(2**32 - 1) * 784} = 4294967295 x 28 x 28"):
            load("mnist", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_a_gzip_of_very_even_data_is_read(tmp_path: Path) -> None:
    """Nothing that can be is taken for absurd: zeros pack as tightly as gzip can."""
    images = np.zeros((10_000, 28, 28), np.uint8)
    packed = gzip.compress(idx(images), 9)
    assert images.nbytes / len(packed) > 1000
    MNIST.write(tmp_path, train_images=packed, train_labels=idx(labels_of(10_000)))
    assert len(load("mnist", tmp_path).train) == 10_000


def test_broken_cifar10_is_refused(tmp_path: Path) -> None:
    content = CIFAR.files["data_batch_3.bin"]
    cases = {
        b"": "data_batch_3.bin: found 0 bytes, expected a multiple of 3073, and one at least",
        content[:-1]: f"data_batch_3.bin: found {4 * RECORD - 1} bytes, expected a multiple",
        content + b"\0": f"data_batch_3.bin: found {4 * RECORD + 1} bytes, expected a multiple",
        gzip.compress(content + b"\0"): f"found {4 * RECORD + 1} bytes, expected a multiple",
        changed(content, RECORD, 10, 1): "data_batch_3.bin: found the label 10 of image 1",
        changed(content, 0, 255, 1): "data_batch_3.bin: found the label 255 of image 0",
    }
    for broken, message in cases.items():
        CIFAR.write(tmp_path)
        (tmp_path / "data_batch_3.bin").write_bytes(broken)
        with refused(message):
            load("cifar10", tmp_path)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all examples of a property."""
    return tmp_path_factory.mktemp("images")


TINY = random_images(2, 28, 28)


@pytest.mark.parametrize(
    "content",
    [idx(TINY), gzip.compress(idx(TINY)), gzip.compress(idx(TINY // 200))],
    ids=["plain", "packed", "packed tighter"],
)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_cut_off_anywhere_is_refused(
    content: bytes, scratch: Path, data: st.DataObject
) -> None:
    path = scratch / "images"
    path.write_bytes(content)
    read_images(path, (1, 28, 28))
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(UsageError, match="images: "):
        read_images(path, (1, 28, 28))


@settings(max_examples=40, deadline=None)
@given(length=st.integers(0, 2 * RECORD - 1), packed=st.booleans())
def test_cifar10_cut_off_within_a_record_is_refused(
    length: int, packed: bool, scratch: Path
) -> None:
    content = CIFAR.files["test_batch.bin"][: 2 * RECORD]
    folder = CIFAR.write(scratch / "cifar")
    if packed:
        content = gzip.compress(content)
        length = length * len(content) // (2 * RECORD)
    (folder / "test_batch.bin").write_bytes(content[:length])
    if not packed and length == RECORD:  # the one place that nothing can tell
        assert len(load("cifar10", folder).test) == 1
    else:
        with pytest.raises(UsageError, match=r"test_batch\.bin: found"):
            load("cifar10", folder)


# --- normalising ---


def test_normalised_by_the_training_split() -> None:
    images = torch.from_numpy(random_images(50, 3, 4, 5)) // torch.tensor([1, 2, 3]).view(3, 1, 1)
    labels = torch.zeros(50, dtype=torch.int64)
    data = ImageData("x", ("a",), Split(images[:40], labels[:40]), Split(images[40:], labels[40:]))
    scaled = images[:40].double() / 255
    mean, std = scaled.mean((0, 2, 3)), scaled.std((0, 2, 3), correction=0)
    assert data.normalisation.mean == pytest.approx(mean.tolist(), rel=1e-12)
    assert data.normalisation.std == pytest.approx(std.tolist(), rel=1e-12)
    assert data.normalisation.maximum == 255
    for split in (data.train, data.test):
        before = split.inputs.clone()
        expected = (split.inputs.double() / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
        out = data.normalise(split.inputs)
        assert out.dtype == torch.float32
        torch.testing.assert_close(out, expected.float(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(split.inputs, before)


def test_a_constant_channel_becomes_zero() -> None:
    split = Split(torch.full((3, 1, 2, 2), 16, dtype=torch.uint8), torch.zeros(3).long())
    data = ImageData("x", ("a",), split, split, maximum=16)
    assert data.normalisation.mean == (1.0,)
    assert torch.equal(data.normalise(split.inputs), torch.zeros(3, 1, 2, 2))


# --- subsets ---


def test_subset_through_load(tmp_path: Path) -> None:
    MNIST.write(tmp_path)
    whole, part = load("mnist", tmp_path), load("mnist", tmp_path, subset=25, seed=4)
    assert (len(part.train), len(part.test)) == (25, TEST)
    assert torch.equal(part.test.inputs, whole.test.inputs)
    chosen = stratified(whole.train.labels, 25, 4)
    assert torch.equal(part.train.inputs, whole.train.inputs[chosen])
    assert torch.equal(part.train.labels, whole.train.labels[chosen])
    assert (len(load("mnist", tmp_path, subset=10).test)) == 10
    for wrong in (-1, 0, 9, TRAIN + 1):
        with refused(f"--subset {wrong}: give 10 to 30", "mnist"):
            load("mnist", tmp_path, subset=wrong)
    assert torch.equal(load("mnist", tmp_path, subset=TRAIN).train.inputs, whole.train.inputs)


def test_subset_keeps_the_shares_of_the_classes() -> None:
    data = made_up([500, 300, 190, 10], test=80).subset(100, seed=1)
    assert data.train.labels.bincount().tolist() == [50, 30, 19, 1]
    assert data.test.labels.bincount().tolist() == [20, 20, 20, 20]
    part = made_up([500, 300, 190, 10], test=80).subset(40, seed=1)
    assert part.test.labels.bincount().tolist() == [10, 10, 10, 10]


def test_subset_depends_on_the_seed_alone() -> None:
    data = made_up([100] * 4, test=100)
    torch.manual_seed(0)
    first = data.subset(40, seed=7)
    torch.manual_seed(1)
    again, other = data.subset(40, seed=7), data.subset(40, seed=8)
    assert numbers_of(first.train) == numbers_of(again.train) != numbers_of(other.train)
    assert numbers_of(first.test) == numbers_of(again.test) != numbers_of(other.test)
    # And is at random: not the first of each class.
    assert numbers_of(first.train)[:10] != list(range(10))


@settings(deadline=None)
@given(counts=st.lists(st.integers(1, 50), min_size=1, max_size=6), data=st.data())
def test_shares(counts: list[int], data: st.DataObject) -> None:
    total = sum(counts)
    n = data.draw(st.integers(len(counts), total))
    shares = _shares(counts, n)
    assert sum(shares) == n
    assert all(1 <= share <= count for share, count in zip(shares, counts, strict=True))
    if n * min(counts) >= total:  # then no class needs more than its due
        for share, count in zip(shares, counts, strict=True):
            assert math.floor(n * count / total) <= share <= math.ceil(n * count / total)


def test_shares_go_by_the_largest_remainders() -> None:
    assert _shares([10, 26, 64], 10) == [1, 3, 6]
    assert _shares([64, 10, 26], 10) == [6, 1, 3]


def test_stratified_refuses_what_it_cannot_do() -> None:
    labels = torch.tensor([0, 0, 1, 2])
    for n in (2, 5):
        with pytest.raises(ValueError, match=f"n = {n}: give 3 to 4"):
            stratified(labels, n, 0)


@settings(max_examples=50, deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_holdout_divides_the_training_images(
    counts: list[int], seed: int, data: st.DataObject
) -> None:
    whole = made_up(counts)
    if sum(counts) == len(counts):
        return
    n = data.draw(st.integers(1, sum(counts) - len(counts)))
    parts = whole.holdout(n, seed)
    assert (len(parts.test), len(parts.train)) == (n, sum(counts) - n)
    assert sorted(numbers_of(parts.train) + numbers_of(parts.test)) == numbers_of(whole.train)
    labels = dict(zip(numbers_of(whole.train), whole.train.labels.tolist(), strict=True))
    for split in (parts.train, parts.test):
        assert [labels[i] for i in numbers_of(split)] == split.labels.tolist()
    assert len(parts.train.labels.unique()) == len(counts)


def test_holdout() -> None:
    whole = made_up([100, 60, 40], test=10)
    parts = whole.holdout(20, seed=0)
    assert parts.test.labels.bincount().tolist() == [10, 6, 4]
    assert numbers_of(parts.test) == numbers_of(whole.holdout(20, seed=0).test)
    assert numbers_of(parts.test) != numbers_of(whole.holdout(20, seed=1).test)
    assert not set(numbers_of(parts.test)) & set(numbers_of(whole.test))
    assert parts.normalisation != whole.normalisation
    for wrong in (0, 198):
        with refused(f"cannot hold out {wrong} of the 200 training images of x: give 1 to 197"):
            whole.holdout(wrong, seed=0)


# --- reading ---

GREY, COLOUR = random_images(5, 1, 4, 6), random_images(5, 3, 4, 6)


@pytest.mark.parametrize("packed", [True, False])
def test_read_idx(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "images"
    for images, array in ((GREY, GREY[:, 0]), (COLOUR, COLOUR)):
        path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))
        out = read_images(str(path), images.shape[1:])
        assert out.dtype == torch.uint8
        np.testing.assert_array_equal(out.numpy(), images)
    with refused("images: found the magic number 0x00000804, expected 0x00000803"):
        read_images(path, (1, 4, 6))


NPY: dict[str, tuple[np.ndarray, np.ndarray]] = {
    "grey": (GREY, GREY),
    "grey without channels": (GREY[:, 0], GREY),
    "one grey": (GREY[0, 0], GREY[:1]),
    "one grey with its channel": (GREY[0], GREY[:1]),
    "flat grey": (GREY.reshape(5, -1), GREY),
    "colour": (COLOUR, COLOUR),
    "one colour": (COLOUR[0], COLOUR[:1]),
    "flat colour": (COLOUR.reshape(5, -1), COLOUR),
    "int64": (GREY.astype(np.int64), GREY),
    "float": (GREY.astype(np.float32), GREY),
    "big-endian": (GREY.astype(">i2"), GREY),
    "by columns": (np.asfortranarray(COLOUR), COLOUR),
}


@pytest.mark.parametrize("key", NPY)
def test_read_npy(key: str, tmp_path: Path) -> None:
    array, images = NPY[key]
    np.save(tmp_path / "x.npy", array)
    out = read_images(tmp_path / "x.npy", images.shape[1:])
    assert out.dtype == torch.uint8
    assert out.is_contiguous()
    np.testing.assert_array_equal(out.numpy(), images)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (GREY[:, 0, :, :5], "found an array (5, 4, 5), expected (N, 1, 4, 6), or (N, 24)"),
        (GREY.reshape(-1), "found an array (120,)"),
        (COLOUR, "found an array (5, 3, 4, 6)"),
        (GREY.transpose(0, 1, 3, 2), "found an array (5, 1, 6, 4)"),
        (GREY[:0], "found an array (0, 1, 4, 6)"),
        (np.uint8(3), "found an array ()"),
        (GREY > 99, "found an array of bool, expected numbers, as uint8"),
        (GREY.astype("U3"), "found an array of <U3, expected numbers, as uint8"),
        (np.eye(4, 6)[None] / 2, "found an array of float64 from 0 to 0.5, expected whole numbers"),
        (GREY + np.int64(1000), "found an array of int64 from"),
        (GREY - np.int64(1000), "found an array of int64 from"),
        (np.full((1, 4, 6), np.nan), "found an array of float64 from nan to nan"),
        (np.full((1, 4, 6), np.inf), "found an array of float64 from inf to inf"),
        (np.array([None] * 24).reshape(1, 24), "not a whole NumPy file without objects"),
    ],
)
def test_wrong_npy(array: Any, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", array)
    with refused(f"{tmp_path / 'x.npy'}: {message}"):
        read_images(tmp_path / "x.npy", (1, 4, 6))


def test_npy_with_an_absurd_header(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(
            stream, {"descr": "|u1", "fortran_order": False, "shape": (10**12, 4, 6)}
        )
    with refused("x.npy: not a whole NumPy file"):
        read_images(path, (1, 4, 6))


def test_npy_with_more_behind_it(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", GREY)
    with (tmp_path / "x.npy").open("ab") as stream:
        stream.write(b"\0")
    with refused("x.npy: found bytes after the array, expected none"):
        read_images(tmp_path / "x.npy", (1, 4, 6))


def test_values_beyond_the_maximum(tmp_path: Path) -> None:
    images = np.full((2, 8, 8), 16, np.uint8)
    np.save(tmp_path / "x.npy", images)
    assert read_images(tmp_path / "x.npy", (1, 8, 8), maximum=16).max() == 16
    np.save(tmp_path / "x.npy", images + 1)
    with refused("x.npy: found the value 17, expected 0 to 16"):
        read_images(tmp_path / "x.npy", (1, 8, 8), maximum=16)


def save_png(path: Path, array: np.ndarray) -> Path:
    Image.fromarray(array).save(path)
    return path


def test_read_png(tmp_path: Path) -> None:
    grey = save_png(tmp_path / "grey.png", GREY[0, 0])
    colour = save_png(tmp_path / "colour.png", COLOUR[0].transpose(1, 2, 0).copy())
    np.testing.assert_array_equal(read_images(grey, (1, 4, 6)).numpy(), GREY[:1])
    np.testing.assert_array_equal(read_images(colour, (3, 4, 6)).numpy(), COLOUR[:1])
    tripled = read_images(grey, (3, 4, 6)).numpy()
    np.testing.assert_array_equal(tripled, np.repeat(GREY[:1], 3, axis=1))
    # Luma by ITU-R 601, which is what grey means here.
    luma = np.tensordot([0.299, 0.587, 0.114], COLOUR[0].astype(float), axes=1)
    np.testing.assert_allclose(read_images(colour, (1, 4, 6)).numpy()[0, 0], luma, atol=1)


def test_png_white_is_the_maximum(tmp_path: Path) -> None:
    path = save_png(tmp_path / "x.png", np.array([[0, 255], [128, 15]], np.uint8))
    assert read_images(path, (1, 2, 2), maximum=16).flatten().tolist() == [0, 16, 8, 1]


def test_wrong_png(tmp_path: Path) -> None:
    path = save_png(tmp_path / "x.png", GREY[0, 0])
    with refused("x.png: found 6 x 4 pixels, expected 4 x 6; resize it"):
        read_images(path, (1, 6, 4))
    with refused("x.png: found a picture, expected IDX or NumPy for 2 channels"):
        read_images(path, (2, 4, 6))
    deep = save_png(tmp_path / "deep.png", GREY[0, 0].astype(np.uint16) * 257)
    with refused("deep.png: found 16 bits for a pixel, expected 8"):
        read_images(deep, (1, 4, 6))
    rgba = np.concatenate([COLOUR[0], np.full((1, 4, 6), 255, np.uint8)]).transpose(1, 2, 0).copy()
    opaque = save_png(tmp_path / "rgba.png", rgba)
    np.testing.assert_array_equal(read_images(opaque, (3, 4, 6)).numpy(), COLOUR[:1])
    rgba[0, 0, 3] = 254
    with refused("rgba.png: found transparent pixels, expected a background"):
        read_images(save_png(opaque, rgba), (3, 4, 6))


def npy_bytes() -> bytes:
    stream = io.BytesIO()
    np.save(stream, GREY)
    return stream.getvalue()


def png_bytes() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(GREY[0, 0]).save(stream, "png")
    return stream.getvalue()[:-4]  # no reader needs the last check sum, of nothing


@pytest.mark.parametrize("content", [npy_bytes(), png_bytes()], ids=["npy", "png"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_npy_and_png_cut_off_anywhere_are_refused(
    content: bytes, scratch: Path, data: st.DataObject
) -> None:
    path = scratch / "cut"
    path.write_bytes(content)
    read_images(path, (1, 4, 6))
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(UsageError, match="cut: "):
        read_images(path, (1, 4, 6))


@pytest.mark.parametrize("content", [npy_bytes(), png_bytes()], ids=["npy", "png"])
@settings(max_examples=200, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(8, 127), st.sampled_from(b"'({[ \n\0\xff019")), min_size=1, max_size=4
    )
)
def test_npy_and_png_with_a_damaged_header_are_read_or_refused(
    content: bytes, scratch: Path, changes: list[tuple[int, int]]
) -> None:
    damaged = bytearray(content)
    for place, byte in changes:
        damaged[place % len(damaged)] = byte
    path = scratch / "damaged"
    path.write_bytes(damaged)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of headers that Python 2 wrote
        try:
            assert read_images(path, (1, 4, 6)).shape[1:] == (1, 4, 6)
        except UsageError as error:
            assert str(path) in str(error)  # noqa: PT017


def test_npy_whose_header_is_not_closed(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(npy_bytes().replace(b"}", b" "))
    with refused("x.npy: not a whole NumPy file"):
        read_images(path, (1, 4, 6))


@pytest.mark.parametrize("length", range(13))
def test_png_with_a_short_header(tmp_path: Path, length: int) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">2I5B", 6, 4, 8, 0, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(4 * (1 + 6)))) + chunk(b"IEND", b"")
    path = tmp_path / "x.png"
    path.write_bytes(png_bytes()[:8] + chunk(b"IHDR", header) + pixels)
    assert read_images(path, (1, 4, 6)).shape == (1, 1, 4, 6)
    path.write_bytes(png_bytes()[:8] + chunk(b"IHDR", header[:length]) + pixels)
    with refused("x.png: not a whole PNG or JPEG file"):
        read_images(path, (1, 4, 6))


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with refused(f"{path}: found nothing, expected a file"):
        read_images(path, (1, 4, 6))
    with refused(f"{tmp_path}: found a folder, expected a file"):
        read_images(tmp_path, (1, 4, 6))
    path.write_bytes(b"")
    with refused("x: found an empty file, expected IDX, NumPy (.npy), PNG or JPEG"):
        read_images(path, (1, 4, 6))
    path.write_bytes(gzip.compress(npy_bytes()))
    with refused("x: found the magic number 0x934e554d, expected 0x00000803"):
        read_images(path, (1, 4, 6))
    path.write_bytes(b"GIF89a")
    with refused("x: found a file that begins 0x474946383961, expected IDX, NumPy"):
        read_images(path, (1, 4, 6))


@pytest.mark.parametrize(
    ("module", "message"),
    [("PIL", "a picture needs pillow: pip install 'softtopk[plot]'"), ("numpy", "needs numpy")],
)
def test_without_optional_modules(
    module: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" if module == "PIL" else b"\x93NUMPY")
    monkeypatch.setitem(sys.modules, module, None)
    with refused(message):
        read_images(path, (1, 4, 6))
