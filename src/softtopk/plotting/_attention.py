"""Attention: who looks where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._data import ROUNDING, amounts
from .style import MASS, bare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage


def draw_attention(
    axes: Axes, weights: Any, source: Sequence[str], target: Sequence[str]
) -> AxesImage:
    """Source tokens to the right, target tokens downwards, the darker the larger the weight.

    Args:
        axes: Where to draw.
        weights: (T, S), from 0 to 1.
        source: S tokens.
        target: T tokens.

    Returns:
        What ``figure.colorbar`` wants.
    """
    if not len(source) or not len(target):
        raise ValueError("source and target must have a token each at least")
    shown = amounts("weights", weights, len(target), len(source))
    if shown.max() > 1.0 + ROUNDING:
        raise ValueError(f"weights must be from 0 to 1, found {shown.max():g}")
    image = axes.imshow(
        shown, cmap=MASS, vmin=0.0, vmax=1.0, origin="upper", interpolation="nearest"
    )
    plain = {"parse_math": False}  # a dollar sign is one
    turned = {"rotation": 60, "rotation_mode": "anchor", "ha": "left"}
    axes.set_xticks(range(len(source)), source, minor=False, **plain, **turned)
    axes.set_yticks(range(len(target)), target, minor=False, **plain)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set(xlabel="source", ylabel="target")
    bare(axes, labels=True)
    return image
