"""How far from the truth: the bias of a temperature, and the error of a solver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ._data import amounts, numbers
from .style import BLUE, COLOURS, GREY, LINES, MARKERS, paper_of, short, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ._data import Array


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
        axes: Where to draw; both become logarithmic, and a value of zero is left out.
        eps: (m,), positive.
        bias: (m,), not negative.
        bound: (m,), not negative.
    """
    x = numbers("eps", eps, "m")
    y, most = amounts("bias", bias, x.size), amounts("bound", bound, x.size)
    if x.min() <= 0:
        raise ValueError(f"eps must be positive, found {x.min():g}")
    alone = "" if x.size > 1 else "o"  # a line of one point is not seen
    axes.plot(x, _positive(most), LINES[1], color=GREY, marker=alone, lw=1.5, label="bound")
    axes.plot(x, _positive(y), LINES[0], color=BLUE, marker=alone, lw=2, label="bias")
    axes.fill_between(
        x, most, 10 * most.max(), color=GREY, alpha=0.12, lw=0, label="excluded by the bound"
    )
    tidy(axes)
    axes.set(xscale="log", yscale="log")
    axes.margins(x=0)


def draw_convergence(axes: Axes, curves: Sequence[Convergence] | Convergence) -> None:
    """Draw errors against iterations: a colour and a marker for each temperature, a line for each
    solver; filled markers for the first of them, hollow ones for the others.

    Args:
        axes: Where to draw; both become logarithmic, and an error of zero is left out.
        curves: In the order of a legend.
    """
    curves = [curves] if isinstance(curves, Convergence) else list(curves)
    if not curves:
        raise ValueError("curves must have one at least, got none")
    data = []
    for curve in curves:
        x = numbers("iterations", curve.iterations, "m")
        if x.min() < 1:
            raise ValueError(f"iterations must be at least 1, found {x.min():g}")
        data.append((x, _positive(amounts("errors", curve.errors, x.size))))
    temperatures = list(dict.fromkeys(curve.eps for curve in curves))
    solvers = list(dict.fromkeys(curve.solver for curve in curves))
    for curve, (x, y) in zip(curves, data, strict=True):
        solver, temperature = solvers.index(curve.solver), temperatures.index(curve.eps)
        colour = COLOURS[temperature % len(COLOURS)]
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
