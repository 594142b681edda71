"""Attention: who looks where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._data import numbers
from .style import MASS, bare

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_attention(axes: Axes, weights: Any, source: Sequence[str], target: Sequence[str]) -> None:
    """Source tokens to the right, target tokens downwards, the darker the larger the weight.

    Args:
        axes: Where to draw; a bar of the colours is added beside them.
        weights: (T, S), from 0 to 1.
        source: S tokens.
        target: T tokens.
    """
    shown = numbers("weights", weights, len(target), len(source))
    image = axes.imshow(shown, cmap=MASS, vmin=0.0, vmax=1.0, aspect="equal")
    plain = {"parse_math": False}  # a dollar sign is one
    turned = {"rotation": 60, "rotation_mode": "anchor", "ha": "left"}
    axes.set_xticks(range(len(source)), source, minor=False, **plain, **turned)
    axes.set_yticks(range(len(target)), target, minor=False, **plain)
    axes.xaxis.tick_top()
    axes.set(xlabel="source", ylabel="target")
    bare(axes)
    axes.figure.colorbar(image, ax=axes, label="weight", shrink=0.6)
