"""A query among its neighbours, and their vote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._data import amounts, groups_of, names_of, numbers
from ._points import scatter_groups
from .style import GREY, bare, include, ink_of, palette, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDEST = 2.5  # points: the line to a point that is selected
FAINTEST = 0.01  # of A: what is less is not drawn, its line could not be seen


def draw_neighbours(
    axes: Axes,
    points: Any,
    query: Any,
    selected: Any,
    labels: Any,
    *,
    names: Sequence[str] | None = None,
) -> None:
    """Draw points in the plane, a colour and a marker for each label, and which of them a query
    selects: with a line, the wider and darker the larger A is.

    Args:
        axes: Where to draw.
        points: (n, 2).
        query: (2,), drawn as a star.
        selected: (n,), not negative; what is above 1 is drawn as 1.
        labels: (n,), integers from 0.
        names: Of the labels in their order, for a legend.
    """
    from matplotlib.collections import LineCollection

    x, y = numbers("points", points, "n", 2).T
    right, up = numbers("query", query, 2)
    a = amounts("selected", selected, x.size).clip(max=1.0)
    classes = groups_of("labels", labels, x.size)
    scatter_groups(axes, x, y, classes, size=26, names=names)
    drawn = a >= FAINTEST
    lines = LineCollection(
        [[(right, up), end] for end in zip(x[drawn], y[drawn], strict=True)],
        linewidths=WIDEST * a[drawn],
        alpha=a[drawn],
        colors=GREY,
        zorder=1,
    )
    axes.add_collection(lines)
    axes.scatter([right], [up], s=140, color=ink_of(axes), marker="*", zorder=4)
    bare(axes)  # the axes of learned features mean nothing
    shared = (axes.get_shared_x_axes(), axes.get_shared_y_axes())
    # Where both are shared, matplotlib refuses to change what is shown.
    boxed = all(len(group.get_siblings(axes)) > 1 for group in shared)
    axes.set_aspect("equal", adjustable="box" if boxed else "datalim")


def draw_votes(axes: Axes, votes: Any, *, names: Sequence[str] | None = None) -> None:
    """Draw the share of each class in a vote, in its colour.

    Args:
        axes: Where to draw.
        votes: (classes,), not negative.
        names: Of the classes, by default their numbers.
    """
    shares = amounts("votes", votes, "classes")
    names = names_of(names, [str(i) for i in range(shares.size)], "classes")
    bars = axes.bar(range(shares.size), shares, color=palette(shares.size), width=0.6)
    axes.bar_label(bars, [f"{share:.2f}" for share in shares], padding=2)
    tidy(axes)
    axes.set_xticks(range(shares.size), names)
    include(axes, [0, 0], [0.0, max(1.0, 1.05 * shares.max())])  # and the numbers above the bars
