"""Models as safetensors files: weights, and one entry of metadata that describes the model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._files import replacing, sha256
from ._optional import require

_DIGEST = "sha256"


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
    """Write a model, all at once: an error leaves the file that was there before."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    sealed = {**description, _DIGEST: _digest(description, tensors)}
    # Not save_file, where a full disk is no OSError.
    content = _safetensors().torch.save(tensors, {format: json.dumps(sealed)})
    with replacing(Path(path)) as draft:
        draft.write_bytes(content)


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
            with naming(path):
                description = json.loads(metadata[format])
                if not isinstance(description, dict):
                    raise ValueError(f"its metadata are {description!r}, not a description")
                digest = description.pop(_DIGEST, None)  # early files have none
                if digest not in (None, _digest(description, weights)):
                    raise ValueError("its digest is not that of its content: it is damaged")
            return Stored(Path(path), format, description, weights)
    wanted = " or ".join(map(repr, formats))
    raise ValueError(f"{path} is not a file that {savers} wrote: it has no metadata {wanted}")


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Name the file in an error of what is made from it: it is damaged, or of a later version."""
    try:
        yield
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} does not describe a model that this version of softtopk knows: {error}"
        ) from error


def _digest(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> str:
    """Of all that a file says, in an order that does not depend on the file."""
    parts = [json.dumps(description, sort_keys=True).encode()]
    for name, tensor in sorted(weights.items()):
        parts.append(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        parts.append(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return sha256(b"\n".join(parts))


def _safetensors() -> Any:
    require("safetensors.torch", "saving and loading a model")
    return import_module("safetensors")
