"""Transport plans: as lines between scores and anchors, and as colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._data import amounts, names_of, numbers
from .style import MASS, SMALL, bare, include, ink_of, palette, paper_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh

    from ._data import Array

WIDEST = 7.0  # points: the line of a score whose mass goes to one anchor
THINNEST = 0.01  # of that mass: what is less is not drawn, its line could hardly be seen
DISC, LARGEST_DISC = 15.0, 45.0  # points: the diameter of a score's, and of an anchor's at most
UPRIGHT, LABELS = 10, 40  # up to how many scores labels are upright, and are there


def draw_plan(
    axes: Axes,
    scores: Any,
    anchors: Any,
    plan: Any,
    *,
    names: Sequence[str] | None = None,
) -> None:
    """Draw a plan as lines from the scores, above in the order given, to the anchors below.

    The width of a line is its mass; one of less than a hundredth of a score's mass is left out. An
    anchor, with all that goes there, has a colour of its own; the area of its disc is its mass. For
    some dozens of scores at the width of a figure; `draw_plan_map` shows more.

    Args:
        axes: Where to draw.
        scores: (n,).
        anchors: (m,).
        plan: (n, m), not negative. That of a selection A (n,) is ``stack([A, 1 - A], -1) / n``.
        names: What to write below the anchors, by default their values.
    """
    x, y = numbers("scores", scores, "n"), numbers("anchors", anchors, "m")
    mass = _masses(plan, x.size, y.size)
    names = names_of(names, [f"{value:g}" for value in y], "anchors")
    above = [float(i) for i in range(x.size)]
    # Anchors have their places under the scores, the first and the last further inside.
    below = [(j + 0.5) * x.size / y.size - 0.5 for j in range(y.size)]
    shares = mass / mass.sum(1).max()
    crowding = min(1.0, 2 * UPRIGHT / x.size)
    colours = palette(y.size)
    for j in shares.sum(0).argsort()[::-1]:  # so that the few lie above the many
        visible = shares[:, j] * (shares[:, j] >= THINNEST)
        _draw_lines(axes, above, below[j], crowding * WIDEST * visible, colours[j])
    disc = crowding * DISC
    discs = _diameters(shares.sum(0), disc)
    edge = {"ec": ink_of(axes), "lw": 1, "marker": "o", "zorder": 2}
    axes.scatter(above, [1.0] * x.size, s=disc**2, color=paper_of(axes), **edge)
    axes.scatter(below, [0.0] * y.size, s=discs**2, color=colours, **edge)
    upright = x.size <= UPRIGHT
    for i in range(0, x.size, math.ceil(x.size / LABELS)):
        turned = 0 if upright else 90
        _label(axes, f"{x[i]:.3g}", (above[i], 1.0), disc / 2 + 4, rotation=turned)
    for name, place in zip(names, below, strict=True):
        _label(axes, name, (place, 0.0), -discs.max() / 2 - 3)
    bare(axes)
    include(axes, [-0.4, x.size - 0.6], [-0.45, 1.2 if upright else 1.35])  # with the labels


def draw_plan_map(
    axes: Axes, plan: Any, *, anchors: Any = None, most: float | None = None
) -> QuadMesh:
    """Draw a plan as colours: the scores from left to right in the order given, an anchor a row.

    Args:
        axes: Where to draw.
        plan: (n, m), not negative. That of a selection A (n,) is ``stack([A, 1 - A], -1) / n``.
        anchors: (m,) to write beside the rows.
        most: The mass of the darkest colour, by default the largest there is.

    Returns:
        What ``figure.colorbar`` wants.
    """
    mass = _masses(plan, "n", "m")
    n, m = mass.shape
    rows = None if anchors is None else numbers("anchors", anchors, m)
    if most is None:
        most = float(mass.max())
    elif not 0 < most < math.inf:
        raise ValueError(f"most must be positive and finite, got {most}")
    image = axes.pcolormesh(mass.T, cmap=MASS, vmin=0.0, vmax=most)
    bare(axes)
    for edge in (0, m):  # pale cells would have none
        axes.axhline(edge, color=ink_of(axes), lw=0.5, clip_on=False)
    if rows is not None:
        axes.set_yticks([j + 0.5 for j in range(m)], [f"{value:g}" for value in rows])
        axes.tick_params(labelleft=True, labelsize=SMALL)
    axes.set(xlim=(0, n), ylim=(m, 0))  # downwards
    return image


def _masses(plan: Any, *shape: int | str) -> Array:
    mass = amounts("plan", plan, *shape)
    if not mass.any():
        raise ValueError("plan must have some mass, all of it is zero")
    return mass


def _draw_lines(
    axes: Axes, above: Sequence[float], below: float, widths: Array, colour: str
) -> None:
    """The lines to one anchor, of the widths (n,) in points."""
    from matplotlib.collections import LineCollection

    drawn = [i for i, width in enumerate(widths) if width > 0]
    lines = LineCollection(
        [[(above[i], 1.0), (below, 0.0)] for i in drawn],
        linewidths=[widths[i] for i in drawn],
        colors=colour,
        alpha=0.75,
        zorder=1,
        capstyle="butt",
    )
    axes.add_collection(lines)


def _diameters(masses: Array, disc: float) -> Array:
    """Of anchors, in points: in the area a mass of one is a score's disc, if there is room."""
    wide = disc * masses**0.5
    shrunk = wide * min(1.0, LARGEST_DISC / wide.max())
    return shrunk.clip(disc / 2)  # never too small to be seen


def _label(axes: Axes, text: str, place: tuple[float, float], up: float, **how: Any) -> None:
    """Write above a place, or below it if ``up``, in points, is negative."""
    how.update(ha="center", va="bottom" if up > 0 else "top", fontsize=SMALL)
    axes.annotate(text, place, (0.0, up), textcoords="offset points", **how)
