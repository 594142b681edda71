"""The soft indicator: as a score moves, against the scores, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._data import groups_of, increasing, names_of, numbers
from ._points import scatter_groups
from .style import LINES, include, marker_of_one, palette, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ._data import Array

LONGEST = 0.2  # of the arrows, relative to the range of the scores
UNIT = (0.0, 1.0)  # what an indicator ranges over; relaxations of others can leave it


def draw_indicator(
    axes: Axes,
    moving: Any,
    selected: Any,
    *,
    names: Sequence[str] | None = None,
    hard: bool = False,
) -> None:
    """Draw the indicator of n scores while one of them moves.

    Args:
        axes: Where to draw.
        moving: (m,), the values that it takes, in ascending order.
        selected: (m, n), the indicator of all scores for each of them.
        names: Of the n lines in a legend, by default A_1, A_2, ...
        hard: Do not join what is more than a half apart: the jumps of a hard selection.
    """
    x = increasing("moving", moving, beside="selected")
    a = numbers("selected", selected, x.size, "n")
    n = a.shape[1]
    names = names_of(names, [f"$A_{{{i + 1}}}$" for i in range(n)], "scores")
    for i, (name, colour) in enumerate(zip(names, palette(n), strict=True)):
        axes.plot(
            *(_broken_at_jumps(x, a[:, i]) if hard else (x, a[:, i])),
            color=colour,
            linestyle=LINES[i % len(LINES)],
            marker=marker_of_one(x.size),
            lw=2,
            label=name,
        )
    tidy(axes)
    include(axes, x[[0, 0]], UNIT)


def draw_selection(
    axes: Axes,
    scores: Any,
    selected: Any,
    *,
    groups: Any = None,
    names: Sequence[str] | None = None,
) -> None:
    """Draw A against the score.

    Args:
        axes: Where to draw.
        scores: (n,).
        selected: (n,).
        groups: (n,), boolean or integers from 0: each has a colour and a marker of its own.
        names: Of the groups in their order, for a legend.
    """
    x = numbers("scores", scores, "n")
    a = numbers("selected", selected, x.size)
    scatter_groups(axes, x, a, groups_of("groups", groups, x.size), size=14, names=names)
    tidy(axes)
    include(axes, x[[0, 0]], UNIT)


def draw_gradient(
    axes: Axes,
    scores: Any,
    selected: Any,
    gradient: Any,
    *,
    groups: Any = None,
    names: Sequence[str] | None = None,
) -> None:
    """Draw A against the score, with an arrow along which the gradient moves each score.

    The longest arrow is a fifth as long as the range of the scores, the others are in proportion.

    Args:
        axes: Where to draw.
        scores: (n,).
        selected: (n,).
        gradient: (n,), of what is to grow.
        groups: (n,), boolean or integers from 0: each has a colour and a marker of its own.
        names: Of the groups in their order, for a legend.
    """
    x = numbers("scores", scores, "n")
    a, slope = numbers("selected", selected, x.size), numbers("gradient", gradient, x.size)
    group = groups_of("groups", groups, x.size)
    width = (x.max() - x.min()) or 1.0
    arrows = LONGEST * width * (slope / (abs(slope).max() or 1.0))
    colours = palette(group.max() + 1)
    scatter_groups(axes, x, a, group, size=26, names=names)
    axes.quiver(
        x,
        a,
        arrows,
        0.0 * arrows,
        color=[colours[number] for number in group],
        angles="xy",
        scale_units="xy",
        scale=1.0,
        units="inches",
        width=0.025,
        zorder=2,
    )
    tidy(axes)
    include(axes, x + arrows, a)  # of an arrow, axes make room for the foot only


def _broken_at_jumps(x: Array, y: Array) -> tuple[Array, Array]:
    """The same points, with one that is not drawn where y jumps."""
    import numpy as np

    jumps = 1 + np.flatnonzero(abs(np.diff(y)) > 0.5)
    return np.insert(x, jumps, np.nan), np.insert(y, jumps, np.nan)
