"""Warnings of the package."""

from __future__ import annotations

import sys
import warnings


class ConvergenceWarning(UserWarning):
    """An iterative solver stopped before it reached its tolerance."""


def warn_of_convergence(message: str) -> None:
    """Warn at the line of the caller, the first frame outside of this package and of torch.

    Python shows a warning once per line. A line of this package would stand for all callers.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_internal(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, ConvergenceWarning, stacklevel=level)


def _is_internal(module: str) -> bool:
    return module.partition(".")[0] in ("softtopk", "torch")
