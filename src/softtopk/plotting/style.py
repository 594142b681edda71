"""One look for every picture: sizes, colours, and what is left out.

matplotlib is optional and imported when a picture is drawn. Its settings are left alone, so that
pictures of other packages in the same process stay as they are; `standard_look` changes them for a
while.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from .._optional import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 8.0, 4.2
"""Inches, for the 800 pixels of a README at 100 dpi: there text of 9 points is 12 pixels high."""
DPI = 200

TITLE, TEXT, SMALL = 11, 10, 9
"""Points: the line above a figure, that above one of its axes, and what stands beside lines."""

# By Okabe and Ito, who chose them to stay apart under colour blindness.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK = "#E69F00", "#56B4E9", "#000000"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
LINES = ("-", "--", "-.", ":")
MARKERS = "oD^sPv"

# For more than seven: Tol's muted scheme, made with the same purpose, a brown and greys.
INDIGO, SAND, FOREST, ROSE, CYAN = "#332288", "#DDCC77", "#117733", "#CC6677", "#88CCEE"
WINE, TEAL, OLIVE, MAGENTA, BROWN = "#882255", "#44AA99", "#999933", "#AA4499", "#661100"
LIGHT_GREY, GREY, DARK_GREY = "#999999", "#777777", "#666666"
CLASS_COLOURS = (INDIGO, SAND, FOREST, ROSE, CYAN, WINE, TEAL, OLIVE, MAGENTA, GREY)

MASS = "Blues"
"""The colour map of what is not negative: the darker the more."""


def palette(count: int) -> list[str]:
    """So many colours; from Tol's scheme if there are more than seven, and repeated above ten."""
    colours = COLOURS if count <= len(COLOURS) else CLASS_COLOURS
    return [colours[i % len(colours)] for i in range(count)]


def marker_of_one(count: int) -> str:
    """The marker of a line through this many points. One point alone has no line to see."""
    return "o" if count == 1 else ""


def include(axes: Axes, x: Iterable[float], y: Iterable[float]) -> None:
    """Make room for these places beside what the axes, or axes that share with them, show."""
    axes.update_datalim(list(zip(x, y, strict=True)))
    axes.autoscale_view()


class LineStyle(NamedTuple):
    """How one of several lines looks: by three means, so that grey and small prints work too."""

    colour: str
    line: str
    marker: str


def new_figure(
    *, rows: int = 1, columns: int = 1, size: tuple[float, float] = (WIDTH, HEIGHT)
) -> Figure:
    """A figure with rows of axes, with neither frame nor heavy grid.

    It belongs to no window, and closing it is not needed. In a notebook, axes of
    ``plt.subplots()`` do as well.
    """
    require("matplotlib", "a figure")
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    for axes in figure.subplots(rows, columns, squeeze=False).flat:
        tidy(axes)
    return figure


@contextmanager
def standard_look() -> Iterator[None]:
    """Draw as matplotlib does by default, whatever its settings are: for pictures in files.

    A picture takes the settings from when its parts are made, so this has to be around all of it.
    """
    from matplotlib import style as settings

    with settings.context("default", after_reset=True):
        yield


def tidy(axes: Axes) -> None:
    """Leave out the frame, except the two lines with numbers, and draw a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.5)
    axes.set_axisbelow(True)


def ink_of(axes: Axes) -> Any:
    """The colour that text has there: black, or white on a dark background."""
    return axes.xaxis.label.get_color()


def paper_of(axes: Axes) -> Any:
    """The colour of the background."""
    return axes.get_facecolor()


def bare(axes: Axes, *, labels: bool = False) -> None:
    """Leave out frame, grid and ticks, and unless wanted their labels: for what has no scale.

    The ticks are hidden, not removed: axes that share them may need them.
    """
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    if not labels:
        axes.tick_params(labelbottom=False, labelleft=False)


def legend_beside(axes: Axes, heights: Mapping[str, float] | None = None) -> None:
    """Name the lines on the right, where it hides nothing, the one of largest height first.

    A figure without a layout gets the constrained one: without, there would be no room.
    """
    figure = axes.figure.figure  # not one of its parts
    if figure.get_layout_engine() is None:
        figure.set_layout_engine("constrained")
    handles, labels = axes.get_legend_handles_labels()
    order = list(range(len(labels)))
    if heights is not None:
        order.sort(key=lambda i: -heights.get(labels[i], -math.inf))
    axes.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=SMALL,
        handlelength=3,
    )


def short(value: float) -> str:
    """A number as one would write it by hand.

    >>> short(0.001), short(1e-05)
    ('0.001', '1e-5')
    """
    return f"{value:g}".replace("e-0", "e-").replace("e+0", "e")


def plain_numbers(axis: Axis) -> None:
    """0.1, 1, 10 rather than powers, at the decades only."""
    from matplotlib.ticker import NullFormatter

    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axis.set_minor_formatter(NullFormatter())
