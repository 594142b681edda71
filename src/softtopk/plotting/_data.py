"""The data that the drawing functions take: tensors, arrays or lists, on any device."""

from __future__ import annotations

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


def truths(name: str, values: Any, n: int) -> Array:
    """``values`` as n booleans; None for no True among them."""
    if values is None:
        return torch.zeros(n, dtype=torch.bool).numpy()
    tensor = torch.as_tensor(values).cpu()
    if tensor.dtype is not torch.bool:
        raise TypeError(f"{name} must be boolean, True for a member, got {tensor.dtype}")
    _check_shape(name, tuple(tensor.shape), (n,))
    return tensor.numpy()


def _check_shape(name: str, found: tuple[int, ...], wanted: tuple[int | str, ...]) -> None:
    fits = len(found) == len(wanted) and all(
        size == want if isinstance(want, int) else size >= 1
        for size, want in zip(found, wanted, strict=True)
    )
    if not fits:
        sizes = ", ".join(map(str, wanted)) + ("," if len(wanted) == 1 else "")
        raise ValueError(f"{name} must have the shape ({sizes}), got {found}")
