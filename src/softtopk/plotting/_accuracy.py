"""How far from the truth: the bias of a temperature, and the error of a solver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ._data import amounts, increasing, numbers
from .style import (
    BLUE,
    GREY,
    LINES,
    MARKERS,
    marker_of_one,
    palette,
    paper_of,
    short,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ._data import Array

HIGHEST = 1e300  # above all that a logarithmic axis will show


class Convergence(NamedTuple):
    """The errors of a solver after some numbers of iterations."""

    solver: str
    eps: float
    iterations: Any
    """(m,), of at least 1 each."""
    errors: Any
    """(m,), not negative."""


def draw_bias(axes: Axes, eps: Any, bias: Any, bound: Any) -> None:
    """Draw the bias of a plan against the temperature, and the bound that it stays below.

    Args:
        axes: Where to draw; both become logarithmic, and a bias of zero is left out.
        eps: (m,), positive, in ascending order.
        bias: (m,), not negative.
        bound: (m,), positive.
    """
    from matplotlib.collections import PolyCollection

    x = increasing("eps", eps, beside="bias and bound")
    y, most = amounts("bias", bias, x.size), numbers("bound", bound, x.size)
    for name, values in (("eps", x), ("bound", most)):
        if values.min() <= 0:
            raise ValueError(f"{name} must be positive, found {values.min():g}")
    alone = marker_of_one(x.size)
    axes.plot(x, most, LINES[1], color=GREY, marker=alone, lw=1.5, label="bound")
    axes.plot(x, _positive(y), LINES[0], color=BLUE, marker=alone, lw=2, label="bias")
    # All above the bound, however much of it the axes come to show.
    edge = [(x[0], HIGHEST), *zip(x, most, strict=True), (x[-1], HIGHEST)]
    area = PolyCollection([edge], fc=GREY, alpha=0.12, lw=0, label="excluded by the bound")
    axes.add_collection(area, autolim=False)
    tidy(axes)
    axes.set(xscale="log", yscale="log")
    axes.margins(x=0)


def draw_convergence(axes: Axes, curves: Sequence[Convergence] | Convergence) -> None:
    """Draw errors against iterations: a colour and a marker for each temperature, a line for each
    solver; filled markers for the first of them, hollow ones for the others.

    Args:
        axes: Where to draw; both become logarithmic, and an error of zero is left out.
        curves: In the order of a legend; all that the axes are to show, for colours and lines are
            dealt out anew in each call.
    """
    import numpy as np

    curves = [curves] if isinstance(curves, Convergence) else list(curves)
    if not curves:
        raise ValueError("curves must have one at least, got none")
    data = []
    for curve in curves:
        x = numbers("iterations", curve.iterations, "m")
        if x.min() < 1:
            raise ValueError(f"iterations must be at least 1, found {x.min():g}")
        data.append((x, _positive(amounts("errors", curve.errors, x.size))))
    if all(np.isnan(y).all() for _, y in data):
        raise ValueError("errors must have one above zero, a logarithmic axis cannot show the rest")
    temperatures = list(dict.fromkeys(curve.eps for curve in curves))
    colours = palette(len(temperatures))
    solvers = list(dict.fromkeys(curve.solver for curve in curves))
    for curve, (x, y) in zip(curves, data, strict=True):
        solver, temperature = solvers.index(curve.solver), temperatures.index(curve.eps)
        colour = colours[temperature]
        axes.plot(
            x,
            y,
            color=colour,
            linestyle=LINES[solver % len(LINES)],
            lw=1.4 if solver else 2.2,
            marker=MARKERS[temperature % len(MARKERS)],
            ms=6,
            mfc=paper_of(axes) if solver else colour,
            label=f"{curve.solver}, eps = {short(curve.eps)}",
        )
    tidy(axes)
    axes.set(xscale="log", yscale="log")


def _positive(values: Array) -> Array:
    """The values with gaps at zero, for which a logarithmic axis has no place."""
    import numpy as np

    return np.where(values > 0, values, np.nan)
