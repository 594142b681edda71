"""The soft indicator: as a score moves, against the scores, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._data import groups_of, names_of, numbers
from .style import COLOURS, GREY, LINES, MARKERS, SMALL, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ._data import Array

RANGE = (-0.06, 1.06)  # of an indicator, with room for its points
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
        names: Of the n lines, by default A_1, A_2, ...
        hard: Do not join what is more than a half apart: the jumps of a hard selection.
    """
    x = numbers("moving", moving, "m")
    a = numbers("selected", selected, x.size, "n")
    n = a.shape[1]
    names = names_of(names, [f"$A_{{{i + 1}}}$" for i in range(n)], "scores")
    for i, name in enumerate(names):
        axes.plot(
            *(_broken_at_jumps(x, a[:, i]) if hard else (x, a[:, i])),
            color=COLOURS[i % len(COLOURS)],
            linestyle=LINES[i % len(LINES)],
            lw=2,
            label=name,
        )
    tidy(axes)
    axes.set_ylim(RANGE)


def draw_selection(axes: Axes, scores: Any, selected: Any, *, groups: Any = None) -> None:
    """Draw A against the score.

    Args:
        axes: Where to draw.
        scores: (n,).
        selected: (n,).
        groups: (n,), boolean or integers from 0: each has a colour and a marker of its own.
    """
    x = numbers("scores", scores, "n")
    a = numbers("selected", selected, x.size)
    _scatter(axes, x, a, groups_of("groups", groups, x.size), size=14)
    tidy(axes)
    axes.set_ylim(RANGE)


def draw_gradient(
    axes: Axes, scores: Any, selected: Any, gradient: Any, *, groups: Any = None
) -> None:
    """Draw A against the score, with an arrow along which the gradient moves each score.

    The longest arrow is a fifth as long as the range of the scores, the others are in proportion.

    Args:
        axes: Where to draw.
        scores: (n,).
        selected: (n,).
        gradient: (n,), of what is to grow.
        groups: (n,), boolean or integers from 0: each has a colour and a marker of its own.
    """
    x = numbers("scores", scores, "n")
    a, slope = numbers("selected", selected, x.size), numbers("gradient", gradient, x.size)
    group = groups_of("groups", groups, x.size)
    width = (x.max() - x.min()) or 1.0
    largest = abs(slope).max()
    scale = LONGEST * width / largest if largest > 0 else 0.0
    axes.quiver(
        x,
        a,
        scale * slope,
        0.0 * slope,
        color=[COLOURS[number % len(COLOURS)] for number in group],
        angles="xy",
        scale_units="xy",
        scale=1.0,
        units="inches",
        width=0.025,
        zorder=2,
    )
    _scatter(axes, x, a, group, size=26)
    tidy(axes)
    # Arrows are not part of the data that axes make room for.
    ends = x + scale * slope
    margin = 0.04 * width
    axes.set_xlim(min(x.min(), ends.min()) - margin, max(x.max(), ends.max()) + margin)


def draw_neighbours(axes: Axes, points: Any, query: Any, selected: Any, labels: Any) -> None:
    """Draw points in the plane, a colour and a marker for each label, and which of them a query
    selects: with a line, the wider and darker the larger A is.

    Args:
        axes: Where to draw.
        points: (n, 2).
        query: (2,), drawn as a star.
        selected: (n,), from 0 to 1.
        labels: (n,), integers from 0.
    """
    x, y = numbers("points", points, "n", 2).T
    centre = numbers("query", query, 2)
    a = numbers("selected", selected, x.size).clip(0.0, 1.0)
    for right, up, share in zip(x, y, a, strict=True):
        ends = [centre[0], right], [centre[1], up]
        axes.plot(*ends, color=GREY, lw=2.5 * share, alpha=share, zorder=1)
    _scatter(axes, x, y, groups_of("labels", labels, x.size), size=26)
    axes.scatter(centre[:1], centre[1:], s=140, c="black", marker="*", zorder=4)
    tidy(axes)
    axes.set_aspect("equal", adjustable="datalim")


def draw_votes(axes: Axes, votes: Any, *, names: Sequence[str] | None = None) -> None:
    """Draw the share of each class in a vote, in its colour.

    Args:
        axes: Where to draw.
        votes: (classes,), from 0 to 1.
        names: Of the classes, by default their numbers.
    """
    shares = numbers("votes", votes, "classes")
    names = names_of(names, [str(i) for i in range(shares.size)], "classes")
    colours = [COLOURS[i % len(COLOURS)] for i in range(shares.size)]
    axes.bar(range(shares.size), shares, color=colours, width=0.6)
    for i, share in enumerate(shares):
        axes.text(i, share + 0.02, f"{share:.2f}", ha="center", va="bottom", fontsize=SMALL)
    tidy(axes)
    axes.set_xticks(range(shares.size), names)
    axes.set_ylim(0.0, max(1.0, shares.max()) + 0.08)


def _broken_at_jumps(x: Array, y: Array) -> tuple[Array, Array]:
    """The same points, with one that is not drawn where y jumps."""
    import numpy as np

    jumps = 1 + np.flatnonzero(abs(np.diff(y)) > 0.5)
    return np.insert(x, jumps, np.nan), np.insert(y, jumps, np.nan)


def _scatter(axes: Axes, x: Array, y: Array, group: Array, size: float) -> None:
    for number in sorted(set(group.tolist())):
        axes.scatter(
            x[group == number],
            y[group == number],
            s=size,
            c=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            lw=0,
            zorder=3,
        )
