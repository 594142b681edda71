"""Scores in a jagged nested tensor: the operator of its values and offsets, and nested again."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from .._checks import check_broadcast


def is_nested(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_nested


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
        scores = _jagged(scores, dim)
        of_rows = (scores.shape[0], *_without_ragged(scores))
        if "eps" in options:
            options["eps"] = _last(options["eps"], "eps", of_rows)
        result = function(
            _values(scores),
            _last(k, "k", of_rows),
            scores.offsets(),
            dim=-1,
            mask=None if mask is None else _mask(mask, scores),
            **options,
        )
        if per_row:
            return _rows_first(result)
        ragged = scores._ragged_idx
        return torch.nested.nested_tensor_from_jagged(
            result.movedim(-1, ragged - 1), scores.offsets(), jagged_dim=ragged
        )

    return wrapper


def _jagged(scores: Tensor, dim: int) -> Any:
    """The scores, checked, without holes between their rows."""
    if scores.layout is not torch.jagged:
        raise TypeError(
            f"nested scores must have the layout torch.jagged, got {scores.layout}; use "
            "torch.nested.as_nested_tensor(list(scores.unbind()), layout=torch.jagged)"
        )
    ragged = scores._ragged_idx  # type: ignore[attr-defined]
    if dim not in (ragged, ragged - scores.ndim) or isinstance(dim, bool):
        raise ValueError(
            f"dim must be the ragged dimension {ragged} of nested scores, got dim={dim!r}; "
            "along another one use scores.values()"
        )
    return scores if scores.lengths() is None else scores.contiguous()  # type: ignore[attr-defined]


def _without_ragged(scores: Any) -> tuple[int, ...]:
    """The sizes besides those of the batch and of the ragged dimension."""
    return tuple(scores.shape[1 : scores._ragged_idx]) + tuple(
        scores.shape[scores._ragged_idx + 1 :]
    )


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
    if not is_nested(mask) or mask.layout is not torch.jagged:
        raise TypeError("mask must be a jagged nested tensor, as the scores are")
    if mask.lengths() is not None:
        mask = mask.contiguous()
    same = mask.offsets() is scores.offsets() or torch.equal(mask.offsets(), scores.offsets())
    if not same or mask._ragged_idx != scores._ragged_idx:
        raise ValueError("mask must have rows of the same lengths as the scores")
    return _values(mask)
