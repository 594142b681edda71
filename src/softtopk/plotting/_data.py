"""The data that the drawing functions take: tensors, arrays or lists, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]


def numbers(name: str, values: Any, *shape: int | str) -> Array:
    """``values`` as float64, checked to be finite and of this shape.

    A size is a number, or a letter for any number of at least one.
    """
    tensor = torch.as_tensor(values).detach().to("cpu", torch.float64)
    _check_shape(name, tuple(tensor.shape), shape)
    if not bool(tensor.isfinite().all()):
        found = tensor[~tensor.isfinite()][0].item()
        raise ValueError(f"{name} must be finite to be drawn, found {found}")
    return tensor.numpy()


def groups_of(name: str, values: Any, n: int) -> Array:
    """``values`` as n numbers of groups, from 0; None for a single group."""
    if values is None:
        return torch.zeros(n, dtype=torch.int64).numpy()
    tensor = torch.as_tensor(values).cpu()
    if tensor.is_floating_point() or tensor.is_complex():
        raise TypeError(f"{name} must be boolean or integers, got {tensor.dtype}")
    _check_shape(name, tuple(tensor.shape), (n,))
    if int(tensor.min()) < 0:
        raise ValueError(f"{name} must not be negative, found {int(tensor.min())}")
    return tensor.to(torch.int64).numpy()


def names_of(names: Sequence[str] | None, default: Sequence[str], what: str) -> list[str]:
    """One name for each of the things that have default names."""
    if names is None:
        return list(default)
    if isinstance(names, str) or len(names) != len(default):
        raise ValueError(
            f"names must be a list with one for each of {len(default)} {what}, got {names!r}"
        )
    return list(names)


def _check_shape(name: str, found: tuple[int, ...], wanted: tuple[int | str, ...]) -> None:
    fits = len(found) == len(wanted) and all(
        size == want if isinstance(want, int) else size >= 1
        for size, want in zip(found, wanted, strict=True)
    )
    if not fits:
        sizes = ", ".join(map(str, wanted)) + ("," if len(wanted) == 1 else "")
        raise ValueError(f"{name} must have the shape ({sizes}), got {found}")
