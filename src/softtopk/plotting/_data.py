"""The data that the drawing functions take: tensors, arrays or lists, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

ROUNDING = 1e-6  # relative: by how much float32 may miss a bound


def numbers(name: str, values: Any, *shape: int | str) -> Array:
    """``values`` as float64, checked to be finite and of this shape.

    A size is a number, or a letter for any number of at least one.
    """
    import numpy as np

    array = _array(name, values)
    if values is None or array.dtype.kind not in "biufO":
        raise TypeError(f"{name} must be real numbers, got {_describe(values, array)}")
    try:
        array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be real numbers, got {_describe(values, array)}") from error
    _check_shape(name, array.shape, shape)
    finite = np.isfinite(array)
    if not finite.all():
        raise ValueError(f"{name} must be finite to be drawn, found {array[~finite][0]}")
    return array


def amounts(name: str, values: Any, *shape: int | str) -> Array:
    """The same, not negative; rounding below zero is zero."""
    array = numbers(name, values, *shape)
    if array.min() < -ROUNDING * abs(array).max():
        raise ValueError(f"{name} must not be negative, found {array.min():g}")
    return array.clip(0.0)


def increasing(name: str, values: Any, *, beside: str) -> Array:
    """(m,) numbers in ascending order; ``beside`` names what would have to be sorted with them."""
    array = numbers(name, values, "m")
    if (array[1:] <= array[:-1]).any():
        raise ValueError(f"{name} must be in ascending order; sort it, and {beside} with it")
    return array


def groups_of(name: str, values: Any, n: int) -> Array:
    """``values`` as n numbers of groups, from 0; None for a single group."""
    import numpy as np

    array = np.zeros(n, bool) if values is None else _array(name, values)
    if array.dtype.kind not in "biu":
        raise TypeError(f"{name} must be boolean or integers, got {_describe(values, array)}")
    _check_shape(name, array.shape, (n,))
    if array.min() < 0:
        raise ValueError(f"{name} must not be negative, found {array.min()}")
    return array.astype(np.int64)


def names_of(names: Sequence[str] | None, default: Sequence[str], what: str) -> list[str]:
    """One name for each of the things that have default names."""
    if names is None:
        return list(default)
    if isinstance(names, str) or len(names) != len(default):
        raise ValueError(
            f"names must be a list with one for each of {len(default)} {what}, got {names!r}"
        )
    return list(names)


def _array(name: str, values: Any) -> Array:
    import numpy as np

    if isinstance(values, Tensor):
        dense = values.detach().to_dense().cpu()
        # numpy knows neither bfloat16 nor the smaller ones.
        return (dense.to(torch.float64) if dense.is_floating_point() else dense).numpy()
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged, or tensors with a gradient
        found = f"got {type(values).__name__} ({error})"
        raise TypeError(f"{name} must be a tensor, an array or a list, {found}") from error
    if np.ma.isMaskedArray(values) and np.ma.getmaskarray(values).any():
        raise ValueError(f"{name} must have no masked entries, leave them out")
    return array


def _describe(values: Any, array: Array) -> str:
    if values is None or isinstance(values, str):
        return repr(values)
    kind = "" if array.dtype.kind == "O" else f" of {array.dtype}"
    return f"{type(values).__name__}{kind}"


def _check_shape(name: str, found: tuple[int, ...], wanted: tuple[int | str, ...]) -> None:
    fits = len(found) == len(wanted) and all(
        size == want if isinstance(want, int) else size >= 1
        for size, want in zip(found, wanted, strict=True)
    )
    if not fits:
        sizes = ", ".join(map(str, wanted)) + ("," if len(wanted) == 1 else "")
        raise ValueError(f"{name} must have the shape ({sizes}), got {found}")
