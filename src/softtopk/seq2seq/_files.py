"""Models as safetensors files: weights, and one entry of metadata that describes the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor


class Stored(NamedTuple):
    """What a file holds. None of it is executed."""

    path: Path
    format: str
    """The kind of the model: the name of the only entry, as the order of several is random."""
    description: dict[str, Any]
    weights: dict[str, Tensor]


def write(
    path: str | Path, format: str, description: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> None:
    """Write a model."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    metadata = {format: json.dumps(description)}
    _safetensors().torch.save_file(tensors, str(path), metadata)


def read(path: str | Path, formats: Sequence[str]) -> Stored:
    """Read a model that is of one of these formats, named "softtopk.<class> <version>"."""
    safetensors = _safetensors()
    savers = " or ".join(f"{name.split()[0].removeprefix('softtopk.')}.save" for name in formats)
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except Exception as error:  # SafetensorError is not the only one that damage causes
        raise ValueError(f"{path} is not a file that {savers} wrote: {error}") from error
    for format in formats:
        if format in metadata:
            return Stored(Path(path), format, json.loads(metadata[format]), weights)
    wanted = " or ".join(map(repr, formats))
    raise ValueError(f"{path} is not a file that {savers} wrote: it has no metadata {wanted}")


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        if error.name != "safetensors":
            raise
        raise ImportError(
            "saving and loading a model needs safetensors; pip install 'softtopk[translate]'",
            name="safetensors",
        ) from error
    return safetensors
