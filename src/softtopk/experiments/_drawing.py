"""What the pictures have in common. matplotlib is optional and imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ._files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 8.0, 4.2  # inches, for 800 pixels of a README at 100 dpi


def new_figure(columns: int = 1, size: tuple[float, float] = (WIDTH, HEIGHT)) -> Figure:
    """A figure with a row of axes, with neither frame nor heavy grid."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    for axes in figure.subplots(1, columns, squeeze=False).flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, lw=0.5)
    return figure


def legend_beside(axes: Axes, heights: Mapping[str, float]) -> None:
    """Name the lines on the right, where it hides nothing, in the order of the heights."""
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: -heights[labels[i]])
    axes.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=9,
        handlelength=3,
    )


def save_png(figure: Figure, path: Path) -> Path:
    """Write the picture all at once, and return its path."""
    with replacing(path) as draft:
        figure.savefig(draft, format="png", dpi=200)
    return path
