"""The soft indicator: as a score moves, against the scores, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._data import numbers, truths
from .style import BLUE, COLOURS, LINES, VERMILION, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ._data import Array

RANGE = (-0.06, 1.06)  # of an indicator, with room for its points
LONGEST = 0.8  # of an arrow, in distances between neighbouring scores
HIDDEN = 0.02  # of the longest: an arrow shorter than this would be a head without a shaft


def draw_indicator(
    axes: Axes,
    moving: Any,
    selected: Any,
    *,
    names: Sequence[str] | None = None,
    steps: bool = False,
) -> None:
    """Draw the indicator of n scores while one of them moves.

    Args:
        axes: Where to draw.
        moving: (m,), the values that it takes, in ascending order.
        selected: (m, n), the indicator of all scores for each of them.
        names: Of the n lines, by default A_1, A_2, ...
        steps: Jump halfway between two values: for a hard selection.
    """
    x = numbers("moving", moving, "m")
    a = numbers("selected", selected, x.size, "n")
    n = a.shape[1]
    names = [f"$A_{{{i + 1}}}$" for i in range(n)] if names is None else list(names)
    if len(names) != n:
        raise ValueError(f"names must be one for each of {n} scores, got {len(names)}")
    for i, name in enumerate(names):
        axes.plot(
            x,
            a[:, i],
            color=COLOURS[i % len(COLOURS)],
            linestyle=LINES[i % len(LINES)],
            drawstyle="steps-mid" if steps else "default",
            lw=2,
            label=name,
        )
    tidy(axes)
    axes.set_ylim(RANGE)


def draw_selection(axes: Axes, scores: Any, selected: Any, *, members: Any = None) -> None:
    """Draw A against the score, the members of a set in another colour.

    Args:
        axes: Where to draw.
        scores: (n,).
        selected: (n,).
        members: (n,), boolean.
    """
    x = numbers("scores", scores, "n")
    a = numbers("selected", selected, x.size)
    _scatter(axes, x, a, truths("members", members, x.size), size=14)
    tidy(axes)
    axes.set_ylim(RANGE)


def draw_gradient(
    axes: Axes, scores: Any, selected: Any, gradient: Any, *, members: Any = None
) -> None:
    """Draw A against the score, with an arrow along which the gradient moves each score.

    The longest arrow is a little shorter than the distance of neighbouring scores; the others are
    in proportion. The members of a set, with their arrows, have another colour.

    Args:
        axes: Where to draw.
        scores: (n,).
        selected: (n,).
        gradient: (n,), of what is to grow.
        members: (n,), boolean.
    """
    x = numbers("scores", scores, "n")
    a, slope = numbers("selected", selected, x.size), numbers("gradient", gradient, x.size)
    inside = truths("members", members, x.size)
    spacing = (x.max() - x.min()) / max(x.size - 1, 1) or 1.0
    largest = abs(slope).max()
    scale = LONGEST * spacing / largest if largest > 0 else 0.0
    for place, height, pull, member in zip(x, a, slope, inside, strict=True):
        if abs(pull) > HIDDEN * largest:
            axes.annotate(
                "",
                (place + scale * pull, height),
                (place, height),
                arrowprops={
                    "arrowstyle": "-|>,head_length=0.5,head_width=0.25",
                    "color": VERMILION if member else BLUE,
                    "lw": 1.8,
                    "shrinkA": 0,
                    "shrinkB": 0,
                },
                zorder=2,
            )
    _scatter(axes, x, a, inside, size=44)
    tidy(axes)
    # Arrows are not part of the data that axes make room for.
    axes.set_xlim(x.min() - 1.1 * spacing, x.max() + 1.1 * spacing)


def _scatter(axes: Axes, x: Array, a: Array, inside: Array, size: float) -> None:
    axes.scatter(x[~inside], a[~inside], s=size, c=BLUE, zorder=3)
    axes.scatter(x[inside], a[inside], s=size, c=VERMILION, marker="D", zorder=3)
