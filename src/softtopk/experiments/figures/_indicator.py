"""Figure 1 of the paper: the soft top-1 indicator of two scalars, where the hard one jumps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softtopk import soft_topk
from softtopk.plotting import draw_indicator, new_figure
from softtopk.plotting.style import SMALL, TEXT, WIDTH

from ._exhibit import Exhibit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REACH = 3.0
# Even, so that the two scalars are never equal: of equal ones the hard choice is arbitrary.
POINTS = 400
TEMPERATURES = (0.5, 2.0)


@dataclass(frozen=True)
class Indicator:
    """The indicator of [x_1, 0] as x_1 moves."""

    moving: Tensor
    """(m,), x_1."""
    hard: Tensor
    """(m, 2)."""
    soft: dict[float, Tensor]
    """(m, 2) for each eps."""


def make() -> Indicator:
    moving = torch.linspace(-REACH, REACH, POINTS, dtype=torch.float64)
    pairs = torch.stack([moving, torch.zeros_like(moving)], -1)
    return Indicator(
        moving,
        soft_topk(pairs, 1, hard=True),
        {eps: soft_topk(pairs, 1, eps=eps) for eps in TEMPERATURES},
    )


def draw(data: Indicator) -> Figure:
    figure = new_figure(columns=1 + len(data.soft), size=(WIDTH, 2.8))
    hard, *soft = figure.axes
    draw_indicator(hard, data.moving, data.hard, hard=True)
    hard.set_title("hard top-1", fontsize=TEXT)
    hard.set_ylabel("indicator")
    hard.legend(loc="center left", frameon=False, fontsize=SMALL)
    for axes, (eps, selected) in zip(soft, data.soft.items(), strict=True):
        draw_indicator(axes, data.moving, selected)
        axes.set_title(f"SOFT top-1, eps = {eps:g}", fontsize=TEXT)
        axes.tick_params(labelleft=False)
    for axes in figure.axes:
        axes.set_xlabel("$x_1$, with $x_2 = 0$")
    return figure


def caption(data: Indicator) -> str:
    return (
        "Which of two scalars is the larger one? The hard indicator jumps where they are equal, "
        "and its derivative is zero everywhere else. The soft one is smooth, the more so the "
        "larger eps: A_1 = sigmoid((x_1 - x_2) / eps), and A_1 + A_2 = 1. "
        "A is `soft_topk(torch.tensor([x_1, 0.0]), 1, eps=eps)`, on the left with `hard=True`."
    )


INDICATOR = Exhibit(
    "indicator",
    "Figure 1: the top-1 indicator of two scalars as one of them moves",
    make,
    draw,
    caption,
)
