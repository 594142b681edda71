"""Scores in a jagged nested tensor: the operator of its values and offsets, and nested again."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from .._checks import check_broadcast


def is_nested(value: object) -> bool:
    """Whether it is a jagged nested tensor. Those of the older layout are for `check_scores`."""
    return type(value) is not Tensor and isinstance(value, Tensor) and value.is_nested


def takes_nested(function: Callable[..., Any], per_row: bool = False) -> Callable[..., Any]:
    """An operator of ragged rows whose scores may be nested. Its result is (..., total), or one or
    several (..., rows) if it is ``per_row``."""

    @wraps(function)
    def wrapper(
        scores: Tensor,
        k: Any,
        offsets: Tensor | None,
        *,
        dim: int,
        mask: Tensor | None,
        **options: Any,
    ) -> Any:
        if not is_nested(scores):
            return function(scores, k, offsets, dim=dim, mask=mask, **options)
        if offsets is not None:
            raise TypeError("offsets must be None for nested scores, which have their own")
        jagged = _jagged(scores, dim)
        ragged = jagged._ragged_idx
        of_rows = (*jagged.shape[:ragged], *jagged.shape[ragged + 1 :])
        if "eps" in options:
            options["eps"] = _last(options["eps"], "eps", of_rows)
        result = function(
            _values(jagged),
            _last(k, "k", of_rows),
            jagged.offsets(),
            dim=-1,
            mask=None if mask is None else _mask(mask, jagged),
            **options,
        )
        if per_row:
            return _rows_first(result)
        return torch.nested.nested_tensor_from_jagged(
            result.movedim(-1, ragged - 1), jagged.offsets(), jagged_dim=ragged
        )

    return wrapper


def _jagged(scores: Any, dim: int) -> Any:
    """The scores, checked, without holes between their rows. (torch has no type for them.)"""
    ragged = scores._ragged_idx
    if dim not in (ragged, ragged - scores.ndim) or isinstance(dim, bool):
        raise ValueError(
            f"dim must be the ragged dimension {ragged} of nested scores, got dim={dim!r}; "
            "along another one use scores.values()"
        )
    return scores if scores.lengths() is None else scores.contiguous()


def _values(nested: Any) -> Tensor:
    """(..., total)"""
    return nested.values().movedim(nested._ragged_idx - 1, -1)


def _last(value: Any, name: str, shape: tuple[int, ...]) -> Any:
    """A number, or one per row (B, ...) with the rows brought to the end."""
    if not isinstance(value, Tensor):
        return value
    check_broadcast(name, value.shape, torch.Size(shape))
    return value.expand(shape).movedim(0, -1)


def _rows_first(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.movedim(-1, 0)
    moved = [numbers.movedim(-1, 0) for numbers in result]
    return type(result)(*moved) if hasattr(result, "_fields") else tuple(moved)


def _mask(mask: Any, scores: Any) -> Any:
    if not is_nested(mask):
        raise TypeError("mask must be a jagged nested tensor, as the scores are")
    if mask.lengths() is not None:
        mask = mask.contiguous()
    same = mask.offsets() is scores.offsets() or torch.equal(mask.offsets(), scores.offsets())
    if not same or mask._ragged_idx != scores._ragged_idx:
        raise ValueError("mask must have rows of the same lengths as the scores")
    return _values(mask)
