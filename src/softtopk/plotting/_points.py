"""Points in groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .style import MARKERS, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ._data import Array


def scatter_groups(
    axes: Axes,
    x: Array,
    y: Array,
    group: Array,
    size: float,
    names: Sequence[str] | None = None,
) -> None:
    """Points, with a colour and a marker for each group, by name for a legend."""
    if names is not None and (isinstance(names, str) or len(names) <= group.max()):
        raise ValueError(
            f"names must be a list with one for each number from 0 to {group.max()}, got {names!r}"
        )
    colours = palette(group.max() + 1)
    for number in sorted(set(group.tolist())):
        axes.scatter(
            x[group == number],
            y[group == number],
            s=size,
            color=colours[number],
            marker=MARKERS[number % len(MARKERS)],
            lw=0,
            zorder=3,
            label=None if names is None else names[number],
        )
