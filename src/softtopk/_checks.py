"""Every check of an argument. An error names the argument, the value it had, and what is right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from ._dispatch import is_readable

#: The dtypes that the solvers work in, and those of a count that custom operators take.
REALS = (torch.float32, torch.float64)
COUNTS = (torch.int64, *REALS)

#: Number of places to fill: one for all rows, or one per row.
Count = int | float | Tensor
#: Regularisation strength: one for all rows, or one per row.
Strength = float | Tensor
#: The dimension to select along, or several, whose elements are then one row.
Dims = int | Sequence[int]


def check_scores(scores: Tensor, dim: int, *, may_be_empty: bool = False) -> int:
    """Check ``scores`` and return ``dim`` counted from the front."""
    if not isinstance(scores, Tensor):
        raise TypeError(f"scores must be a torch.Tensor, got {type(scores).__name__}")
    if scores.is_nested:
        other = ""
        if scores.layout is not torch.jagged:
            other = (
                ", or, for the operators that have offsets, "
                "torch.nested.as_nested_tensor(list(scores.unbind()), layout=torch.jagged)"
            )
        raise TypeError(
            f"scores must not be a nested tensor of the layout {scores.layout} here; use "
            f"scores.to_padded_tensor(0.0) and a mask{other}"
        )
    if scores.layout is not torch.strided:
        raise TypeError(f"scores must be dense, got {scores.layout}; use scores.to_dense()")
    if not scores.is_floating_point():
        remedy = "take a real part or a modulus" if scores.is_complex() else "use scores.float()"
        raise TypeError(f"scores must be of a floating dtype, got {scores.dtype}; {remedy}")
    if scores.ndim == 0:
        raise ValueError("scores must have at least one dimension, got a 0-d tensor")
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise TypeError(f"dim must be an int, got {dim!r}")
    if not -scores.ndim <= dim < scores.ndim:
        raise ValueError(
            f"dim={dim} is out of range for scores of shape {tuple(scores.shape)}; "
            f"use {-scores.ndim} to {scores.ndim - 1}"
        )
    dim %= scores.ndim
    if scores.shape[dim] == 0 and not may_be_empty:
        raise ValueError(
            f"scores has no element along dim={dim} (shape {tuple(scores.shape)}); "
            "a top-k needs at least one"
        )
    return dim


def check_dims(scores: Tensor, dim: Dims) -> tuple[int, ...]:
    """Check ``scores`` and return the dimensions to select along, counted from the front, in the
    order of the memory."""
    if isinstance(dim, int):
        return (check_scores(scores, dim),)
    if not isinstance(dim, Sequence) or isinstance(dim, str) or not dim:
        raise TypeError(f"dim must be an int or a tuple of at least one int, got {dim!r}")
    dims = sorted(check_scores(scores, each) for each in dim)
    if len(set(dims)) < len(dims):
        raise ValueError(f"dim={tuple(dim)} names a dimension of scores more than once")
    return tuple(dims)


def check_k(k: Count, n: float, batch: torch.Size) -> Count:
    """Check the ``k`` of the unsorted operator; a tensor comes back with a last axis of size 1."""
    if isinstance(k, Tensor):
        if k.dtype is torch.bool or k.is_complex():
            raise TypeError(f"k must be an integer or floating tensor, got {k.dtype}")
        check_broadcast("k", k.shape, batch)
        # Narrow types cannot hold n, or k minus a count.
        k = k.to(torch.promote_types(k.dtype, torch.float32)) if k.is_floating_point() else k.long()
        if is_readable(k) and not bool(((k >= 0) & (k <= n) & (k < math.inf)).all()):
            remedy = f"; use k.clamp(0, {n})" if n < math.inf else ""
            raise ValueError(
                f"k must be {_range_of(n)} in every row, got values from {k.min().item()} to "
                f"{k.max().item()}{remedy}"
            )
        return k.unsqueeze(-1)
    if isinstance(k, bool) or not isinstance(k, Real):
        raise TypeError(f"k must be an int, a float or a tensor, got {k!r}")
    if not (0 <= k <= n and k < math.inf):
        size = ", the size along dim" if n < math.inf else ""
        raise ValueError(f"k must be {_range_of(n)}{size}, got k={k}")
    return int(k) if isinstance(k, Integral) else float(k)


def _range_of(n: float) -> str:
    return f"between 0 and n={n}" if n < math.inf else "finite and not negative"


def check_integer_k(k: int, n: float, what: str = "the sorted operator") -> int:
    """Check the ``k`` of an operator that counts in whole places; ``what`` names it."""
    if isinstance(k, bool) or not isinstance(k, Integral):
        raise TypeError(
            f"k must be an int for {what}, got {k!r}; only the unsorted soft_topk takes a float"
        )
    if not 0 <= k <= n:
        raise ValueError(f"k must be between 0 and n={n}, the size along dim, got k={k}")
    return int(k)


def check_ranks(k: int | Tensor, n: float, batch: torch.Size) -> int | Tensor:
    """Check the ``k`` of the sorted operator; a tensor comes back with a last axis of size 1."""
    if not isinstance(k, Tensor):
        return check_integer_k(k, n)
    if k.is_floating_point():
        raise TypeError(f"k must be of an integer dtype for the sorted operator, got {k.dtype}")
    return check_k(k, n, batch)  # type: ignore[return-value]


def check_eps(eps: Strength, batch: torch.Size) -> Strength:
    """Check ``eps``; a tensor comes back with a last axis of size 1."""
    if isinstance(eps, Tensor):
        if not eps.is_floating_point():
            raise TypeError(f"eps must be of a floating dtype, got {eps.dtype}")
        check_broadcast("eps", eps.shape, batch)
        if is_readable(eps) and not bool(((eps > 0) & eps.isfinite()).all()):
            raise ValueError(
                "eps must be positive and finite in every row, "
                f"got values from {eps.min().item()} to {eps.max().item()}"
            )
        return eps.unsqueeze(-1)
    if isinstance(eps, bool) or not isinstance(eps, Real):
        raise TypeError(f"eps must be a float or a tensor, got {eps!r}")
    if not 0 < eps < math.inf:
        raise ValueError(f"eps must be positive and finite, got eps={eps}")
    return float(eps)


def check_mask(mask: Tensor | None, scores: Tensor, what: str = "the shape of scores") -> None:
    if mask is None:
        return
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a boolean torch.Tensor, got {type(mask).__name__}")
    if mask.dtype is not torch.bool:
        raise TypeError(
            f"mask must be boolean (True takes part), got {mask.dtype}; convert with mask.bool()"
        )
    check_broadcast("mask", mask.shape, scores.shape, what)


def check_offsets(offsets: Tensor, scores: Tensor) -> Tensor:
    """Check the ends of the rows that ``scores`` (..., total) are joined of; int64 comes back."""
    if not isinstance(offsets, Tensor):
        raise TypeError(f"offsets must be a torch.Tensor, got {type(offsets).__name__}")
    if offsets.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"offsets must be int64 or int32, got {offsets.dtype}")
    if offsets.ndim != 1 or offsets.shape[0] == 0:
        raise ValueError(
            f"offsets must have the shape (rows + 1,), got {tuple(offsets.shape)}; for rows of "
            "these lengths use torch.nn.functional.pad(lengths.cumsum(0), (1, 0))"
        )
    if offsets.device != scores.device:
        raise ValueError(
            f"offsets must be on the device of the scores, {scores.device}, got {offsets.device}"
        )
    if is_readable(offsets):
        ends = int(offsets[0]), int(offsets[-1])
        if ends != (0, scores.shape[-1]):
            raise ValueError(
                f"offsets must begin with 0 and end with {scores.shape[-1]}, the size of the last "
                f"dimension of scores, got {ends[0]} and {ends[1]}"
            )
        if bool((offsets.diff() < 0).any()):
            raise ValueError("offsets must not decrease, got a row of negative length")
    return offsets.long()


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if not any(value is choice or value == choice for choice in choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_flag(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def check_broadcast(
    name: str, shape: torch.Size, target: torch.Size, what: str = "the batch shape"
) -> None:
    try:
        fits = torch.broadcast_shapes(shape, target) == target
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} of shape {tuple(shape)} does not broadcast to {what} {tuple(target)}"
        )


def check_rows(x: Tensor, axes: int = 1) -> None:
    """Check the first argument of a custom operator: ``axes`` axes that are not empty."""
    if x.dtype not in REALS or x.ndim < axes or 0 in x.shape[x.ndim - axes :]:
        raise ValueError(
            "the first argument must be float32 or float64, with its last "
            f"{'axis' if axes == 1 else f'{axes} axes'} not empty, got {x.dtype} of shape "
            f"{tuple(x.shape)}"
        )


def check_range(name: str, value: Tensor, low: float, high: float = math.inf) -> None:
    """Check the values of an argument of a custom operator, where looking at them is free."""
    if is_readable(value) and not bool(((value >= low) & (value <= high)).all()):
        found = f"{value.min().item():g} to {value.max().item():g}"
        raise ValueError(f"{name} must be between {low:g} and {high:g}, got values from {found}")


def operand(name: str, value: Tensor, shape: Sequence[int], *dtypes: torch.dtype) -> Tensor:
    """A tensor argument of a custom operator: checked, and expanded to the shape it stands for."""
    check_broadcast(name, value.shape, torch.Size(shape), what="the shape")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} must be {' or '.join(map(str, dtypes))}, got {value.dtype}")
    return value.expand(shape)


def check_integer(name: str, value: Any, low: int = 1) -> int:
    """An int, of Python or NumPy, of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an int, got {name}={value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {name}={value}")
    return int(value)


def check_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {name}={value!r}")
    return float(value)


def check_share(name: str, value: Any) -> float:
    """A number between 0 and 1."""
    if not 0 <= check_number(name, value) <= 1:
        raise ValueError(f"{name} must be between 0 and 1, got {name}={value}")
    return float(value)


def check_positive(name: str, value: Any) -> float:
    if not 0 < check_number(name, value) < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {name}={value}")
    return float(value)


def check_not_negative(name: str, value: Any) -> float:
    if not 0 <= check_number(name, value) < math.inf:
        raise ValueError(f"{name} must be finite and not negative, got {name}={value}")
    return float(value)
