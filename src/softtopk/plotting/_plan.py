"""Transport plans: as lines between scores and anchors, and as colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._data import names_of, numbers
from .style import COLOURS, MASS, SMALL, bare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh

    from ._data import Array

WIDEST = 7.0  # points: the line of an element whose mass goes to one anchor
THINNEST = 0.01  # of that mass: what is less is not drawn, its line could hardly be seen
DISC = 15.0  # points: the diameter of a score


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
    anchor, with all that goes there, has a colour of its own; the area of its disc is its mass.

    Args:
        axes: Where to draw.
        scores: (n,).
        anchors: (m,).
        plan: (n, m), not negative.
        names: What to write below the anchors, by default their values.
    """
    x, y = numbers("scores", scores, "n"), numbers("anchors", anchors, "m")
    mass = _masses(plan, x.size, y.size)
    names = names_of(names, [f"{value:g}" for value in y], "anchors")
    # Anchors have their places under the scores, the first and the last further inside.
    above = [float(i) for i in range(x.size)]
    below = [(j + 0.5) * x.size / y.size - 0.5 for j in range(y.size)]
    whole = mass.sum(1).max()
    for i, left in enumerate(above):
        for j, right in enumerate(below):
            if (share := mass[i, j] / whole) >= THINNEST:
                axes.plot(
                    [left, right],
                    [1.0, 0.0],
                    color=COLOURS[j % len(COLOURS)],
                    lw=WIDEST * share,
                    solid_capstyle="butt",
                    alpha=0.75,
                    zorder=1,
                )
    area = DISC**2
    axes.scatter(above, [1.0] * x.size, s=area, c="white", ec="black", lw=1, zorder=2)
    areas = area * (mass.sum(0) / whole).clip(0.3)  # never too small to be seen
    colours = [COLOURS[j % len(COLOURS)] for j in range(y.size)]
    axes.scatter(below, [0.0] * y.size, s=areas, c=colours, ec="black", lw=1, zorder=2)
    for place, value in zip(above, x, strict=True):
        axes.annotate(f"{value:g}", (place, 1.0), (0, 12), **_beside("bottom"))
    for place, name in zip(below, names, strict=True):
        axes.annotate(name, (place, 0.0), (0, -22), **_beside("top"))
    bare(axes)
    axes.set(xticks=[], yticks=[], xlim=(-0.6, x.size - 0.4), ylim=(-0.55, 1.3))


def draw_plan_map(axes: Axes, plan: Any, *, anchors: Any = None, most: float | None = None) -> Any:
    """Draw a plan as colours: the scores from left to right in the order given, an anchor a row.

    Args:
        axes: Where to draw.
        plan: (n, m), not negative.
        anchors: (m,) to write beside the rows.
        most: The mass of the darkest colour, by default the largest there is.

    Returns:
        What ``figure.colorbar`` wants.
    """
    mass = _masses(plan, "n", "m")
    n, m = mass.shape
    labels = [""] * m
    if anchors is not None:
        labels = [f"{value:g}" for value in numbers("anchors", anchors, m)]
    image: QuadMesh = axes.pcolormesh(mass.T, cmap=MASS, vmin=0.0, vmax=most or mass.max())
    bare(axes)
    axes.invert_yaxis()
    axes.axhline(0, color="black", lw=0.5, clip_on=False)  # pale cells would have no edge
    axes.axhline(m, color="black", lw=0.5, clip_on=False)
    axes.set_xticks([])
    axes.set_yticks([j + 0.5 for j in range(m)], labels, fontsize=SMALL)
    axes.set_xlim(0, n)
    return image


def _masses(plan: Any, *shape: int | str) -> Array:
    mass = numbers("plan", plan, *shape)
    if mass.min() < 0:
        raise ValueError(f"plan must not be negative, found {mass.min():g}")
    if not mass.any():
        raise ValueError("plan must have some mass, all of it is zero")
    return mass


def _beside(side: str) -> dict[str, Any]:
    return {"textcoords": "offset points", "ha": "center", "va": side, "fontsize": SMALL}
