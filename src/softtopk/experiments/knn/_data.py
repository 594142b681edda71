"""Where the samples of a run come from: a data set by its name, a table or a folder of images.

A run on data of the user's own has a copy of them, `data.safetensors`. So it needs no other files:
it can be resumed, and it can predict, when they have moved. The fingerprint of the data is the
SHA-256 of the copy, or of all images of a data set with a name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from softtopk._files import sha256

from .. import images, tabular
from .._splits import Data, Split
from ..errors import UsageError
from ..runs import check_digest
from ._settings import DATA, Settings

COPY = "data.safetensors"
_PARTS = ("train", "test")
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (images.ImageData, tabular.TableData)}


def read(source: str, target: str | None, ignore: Collection[str] | None) -> Data:
    """The table or the images that ``--data`` names. There is a test split if a folder has one."""
    path = Path(source)
    if path.is_dir():
        return images.read_folder(path)
    if not path.exists():
        raise UsageError(
            f"--data {source!r}: give one of {', '.join(DATA)}, a table ("
            f"{', '.join(tabular.SUFFIXES)}) or a folder of images; there is no such file or folder"
        )
    return tabular.read_table(path, target, ignore or ())


def load(
    settings: Settings,
    data_dir: str | Path | None,
    own: Data | None,
    seed: int,
    fingerprint: str | None = None,
) -> Data:
    """The samples that the settings name, divided for a seed; ``own`` are the user's. Those of a
    data set with a name have to be those of the ``fingerprint`` on record."""
    if own is None:
        data: Any = images.load(settings.data, data_dir, seed=seed)
        if fingerprint not in (None, data.digest):
            raise UsageError(
                f"{data_dir or settings.data}: these are not the images that the run was made "
                "with, their digest is not the one on record: restore the files, or give the "
                "folder that has them as --data-dir"
            )
    else:
        data = own if len(own.test) else _divided(own, settings.test_share or 0.0, seed)
    if settings.subset is not None:
        data = data.subset(settings.subset, seed)
    if settings.holdout is None:
        return data
    try:
        return data.holdout(settings.holdout, seed)
    except UsageError as error:
        raise UsageError(f"--holdout {settings.holdout}: {error}") from error


def _divided(data: Data, share: float, seed: int) -> Data:
    n, test = len(data.train), round(share * len(data.train))
    most = n - len(data.classes)
    if not 1 <= test <= most:
        raise UsageError(
            f"--test-share {share:g}: that is {test} of the {n} {data.unit}s of {data.name}; give "
            f"a share for 1 to {most} of them, so that one of each class is left to learn from"
        )
    return data.holdout(test, seed)


def pack(data: Data) -> bytes:
    """The copy of the user's data, the same for the same samples, wherever they were read from."""
    from safetensors.torch import save

    tensors = {
        f"{part}.{name}": tensor.contiguous()
        for part in _PARTS
        for name, tensor in vars(getattr(data, part)).items()
    }
    names = [one.name for one in fields(data) if one.name not in ("name", *_PARTS)]
    record = {"kind": type(data).__name__, **{name: getattr(data, name) for name in names}}
    return save(tensors, {"data": json.dumps(record)})  # one entry: their order is not fixed


def own_data(run: Path, config: Mapping[str, Any]) -> Data | None:
    """The user's data that a run has a copy of; None if it was trained on others."""
    if config["data"] in DATA:
        return None
    from safetensors import safe_open

    path = run / COPY
    remedy = "restore it from a copy of the run, or start again in a new folder"
    if not path.is_file():
        raise UsageError(f"{path}: the data of the run are not there; {remedy}")
    check_digest(path, sha256(path.read_bytes()), config["fingerprint"], remedy)
    with safe_open(path, "pt") as file:
        record = json.loads(file.metadata()["data"])
        splits = {
            part: Split(file.get_tensor(f"{part}.inputs"), file.get_tensor(f"{part}.labels"))
            for part in _PARTS
        }
    kind = _KINDS[record.pop("kind")]
    record = {key: tuple(v) if isinstance(v, list) else v for key, v in record.items()}
    return kind(name=config["data"], **splits, **record)
