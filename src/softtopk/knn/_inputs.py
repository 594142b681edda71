"""Samples as the network gets them: in its shape, standardised, float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ._neighbours import Floats


def flat(X: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Images (n, channels, height, width) as rows, with the shape of one; other X as it is."""
    if getattr(X, "ndim", 2) <= 2:
        return X, None
    X = np.asarray(X)
    if X.ndim != 4:
        raise ValueError(
            "X must be of shape (n, features) or (n, channels, height, width), got "
            f"{X.shape}; X[:, None] adds a channel to images without one"
        )
    return X.reshape(len(X), math.prod(X.shape[1:])), X.shape[1:]


def standard(X: npt.NDArray[Any], shape: tuple[int, ...], wanted: bool) -> tuple[Any, Any]:
    """Mean and scale, one for every column or channel, in the shape that broadcasts to a sample."""
    if not wanted:
        return 0.0, 1.0
    # Pixels need no more than float32, and large numbers of them no more memory than that.
    short = X.itemsize <= (4 if X.dtype.kind == "f" else 2)
    info = np.finfo(np.float32 if short else np.float64)
    axes = (0,) if len(shape) == 1 else (0, 2, 3)
    X = X.reshape(len(X), *shape)
    low, high = (find(X, axes, keepdims=True)[0].astype(info.dtype) for find in (np.min, np.max))
    unit = _unit(np.maximum(-low, high))
    X = X * unit
    mean = X.mean(axes, dtype=np.float64, keepdims=True)[0] / unit
    scale = X.std(axes, dtype=np.float64, keepdims=True)[0] / unit
    # The deviation of a constant column is rounding noise, if it is not zero. Its scale is 1, or
    # what brings it into the range of float32.
    size = np.abs(mean)
    scale = np.where(scale <= 10 * info.eps * size, np.where(size > 1e30, size, 1.0), scale)
    return mean.astype(info.dtype), scale.astype(info.dtype)


def standardized(X: npt.NDArray[Any], mean: Any, scale: Any) -> npt.NDArray[Any]:
    unit = _unit(np.maximum(np.abs(mean), scale))
    return np.asarray((X * unit - mean * unit) / (scale * unit))


def _unit(size: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Powers of two that bring numbers of that size to about one, of the same dtype.

    Multiplied by them, numbers lose no digits, and neither their differences nor their squares
    overflow or vanish.
    """
    limit = np.finfo(size.dtype).maxexp - 8  # neither they nor their inverses overflow
    return np.ldexp(np.ones_like(size), np.clip(-np.frexp(size)[1], -limit, limit))


def check_inputs(inputs: Floats, X: npt.NDArray[Any], standardized: bool) -> None:
    """The rows (n, columns) that the network is given must be finite, as those of X are."""
    if np.isfinite(inputs).all():
        return
    row, column = np.argwhere(~np.isfinite(inputs))[0]
    problem = "it is too large for float32; set standardize=True"
    if standardized:
        problem = "standardised as in fit, it is too large for float32; correct it, or fit with it"
    raise ValueError(f"X has {X[row, column]:g} in row {row}, column {column}: {problem}")
