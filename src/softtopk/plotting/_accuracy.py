"""How far from the truth: the bias of a temperature, and the error of a solver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ._data import numbers
from .style import BLUE, COLOURS, GREY, LINES, MARKERS, short, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMALLEST = 1e-17  # on a logarithmic axis, which has no place for zero


class Convergence(NamedTuple):
    """The errors of a solver after some numbers of iterations."""

    solver: str
    eps: float
    iterations: Any
    """(m,), of at least 1 each."""
    errors: Any
    """(m,), not negative."""


def draw_bias(axes: Axes, eps: Any, bias: Any, bound: Any) -> None:
    """Draw the bias of a plan against the temperature, and below what it has to stay.

    Args:
        axes: Where to draw; both become logarithmic.
        eps: (m,), positive.
        bias: (m,).
        bound: (m,).
    """
    x = numbers("eps", eps, "m")
    y, most = numbers("bias", bias, x.size), numbers("bound", bound, x.size)
    if x.min() <= 0:
        raise ValueError(f"eps must be positive, found {x.min():g}")
    axes.plot(x, most.clip(SMALLEST), color=GREY, linestyle=LINES[1], lw=1.5, label="bound")
    axes.plot(x, y.clip(SMALLEST), color=BLUE, lw=2, label="bias")
    axes.fill_between(x, most, most.max() * 10, color=GREY, alpha=0.12, lw=0)
    tidy(axes)
    axes.set(xscale="log", yscale="log", xlim=(x.min(), x.max()))


def draw_convergence(axes: Axes, curves: Sequence[Convergence]) -> None:
    """Draw errors against iterations: a colour and a marker for each temperature, a line for each
    solver; filled markers for the first of them, hollow ones for the others.

    Args:
        axes: Where to draw; both become logarithmic.
        curves: In the order of the legend.
    """
    if not curves:
        raise ValueError("curves must have one at least, got none")
    temperatures = list(dict.fromkeys(curve.eps for curve in curves))
    solvers = list(dict.fromkeys(curve.solver for curve in curves))
    for curve in curves:
        x = numbers("iterations", curve.iterations, "m")
        y = numbers("errors", curve.errors, x.size)
        if x.min() < 1:
            raise ValueError(f"iterations must be at least 1, found {x.min():g}")
        solver, temperature = solvers.index(curve.solver), temperatures.index(curve.eps)
        colour = COLOURS[temperature % len(COLOURS)]
        axes.plot(
            x,
            y.clip(SMALLEST),
            color=colour,
            linestyle=LINES[solver % len(LINES)],
            lw=1.4 if solver else 2.2,
            marker=MARKERS[temperature % len(MARKERS)],
            ms=6,
            mfc="white" if solver else colour,
            label=f"{curve.solver}, eps = {short(curve.eps)}",
        )
    tidy(axes)
    axes.set(xscale="log", yscale="log")
