"""Checks of plain numbers."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any


def check_integer(name: str, value: Any, low: int = 1) -> int:
    """An int of at least ``low``; numpy's count."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an int, got {name}={value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {name}={value}")
    return int(value)


def check_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {name}={value!r}")
    return float(value)
