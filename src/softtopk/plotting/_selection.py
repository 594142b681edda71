"""The soft indicator: as a score moves, against the scores, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._data import groups_of, names_of, numbers
from .style import COLOURS, LINES, MARKERS, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ._data import Array

LONGEST = 0.19  # of the arrows, relative to the range of the scores


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
    x = numbers("moving", moving, "m")
    a = numbers("selected", selected, x.size, "n")
    if (x[1:] <= x[:-1]).any():
        raise ValueError("moving must be in ascending order; sort it, and selected with it")
    n = a.shape[1]
    names = names_of(names, [f"$A_{{{i + 1}}}$" for i in range(n)], "scores")
    for i, name in enumerate(names):
        axes.plot(
            *(_broken_at_jumps(x, a[:, i]) if hard else (x, a[:, i])),
            color=COLOURS[i % len(COLOURS)],
            linestyle=LINES[i % len(LINES)],
            marker="" if x.size > 1 else "o",  # a line of one point is not seen
            lw=2,
            label=name,
        )
    _finish(axes, a)


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
        names: Of the groups, for a legend.
    """
    x = numbers("scores", scores, "n")
    a = numbers("selected", selected, x.size)
    group, names = _groups(groups, names, x.size)
    scatter_groups(axes, x, a, group, size=14, names=names)
    _finish(axes, a)


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
        names: Of the groups, for a legend.
    """
    x = numbers("scores", scores, "n")
    a, slope = numbers("selected", selected, x.size), numbers("gradient", gradient, x.size)
    group, names = _groups(groups, names, x.size)
    width = (x.max() - x.min()) or 1.0
    arrows = LONGEST * width * (slope / (abs(slope).max() or 1.0))
    axes.quiver(
        x,
        a,
        arrows,
        0.0 * arrows,
        color=[COLOURS[number % len(COLOURS)] for number in group],
        angles="xy",
        scale_units="xy",
        scale=1.0,
        units="inches",
        width=0.025,
        zorder=2,
    )
    scatter_groups(axes, x, a, group, size=26, names=names)
    tidy(axes)
    # Of an arrow, axes make room for the foot only.
    axes.update_datalim([(end, height) for end, height in zip(x + arrows, a, strict=True)])
    axes.autoscale_view()


def scatter_groups(
    axes: Axes,
    x: Array,
    y: Array,
    group: Array,
    size: float,
    names: Sequence[str] | None = None,
) -> None:
    """Points, with a colour and a marker for each group, by name for a legend."""
    for number in sorted(set(group.tolist())):
        axes.scatter(
            x[group == number],
            y[group == number],
            s=size,
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            lw=0,
            zorder=3,
            label=names[number] if names else None,
        )


def _groups(groups: Any, names: Sequence[str] | None, n: int) -> tuple[Array, Sequence[str] | None]:
    group = groups_of("groups", groups, n)
    if names is not None:
        names = names_of(names, [""] * (group.max() + 1), "groups")
    return group, names


def _broken_at_jumps(x: Array, y: Array) -> tuple[Array, Array]:
    """The same points, with one that is not drawn where y jumps."""
    import numpy as np

    jumps = 1 + np.flatnonzero(abs(np.diff(y)) > 0.5)
    return np.insert(x, jumps, np.nan), np.insert(y, jumps, np.nan)


def _finish(axes: Axes, a: Array) -> None:
    tidy(axes)
    # From 0 to 1, with room for the points; relaxations of others can leave that range.
    axes.set_ylim(min(0.0, a.min()) - 0.06, max(1.0, a.max()) + 0.06)
