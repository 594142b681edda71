"""Figure 3 of the paper: the plan, and A against the scores, at four temperatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softtopk import soft_topk
from softtopk.plotting import draw_plan_map, draw_selection, new_figure
from softtopk.plotting.style import SMALL, TEXT, WIDTH, short

from ._exhibit import Exhibit
from ._plans import plan_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N, K = 50, 5
TEMPERATURES = (1e-3, 5e-3, 1e-2, 5e-2)  # of the cost divided by its largest entry
SEED = 9  # a draw in which the scores around the threshold can be told apart


@dataclass(frozen=True)
class Temperatures:
    """The selection of the k smallest of n Gaussian scores, which are in ascending order."""

    scores: Tensor
    """(n,)."""
    k: int
    selected: dict[float, Tensor]
    """(n,) for each eps."""
    plans: dict[float, Tensor]
    """(n, 2) for each eps."""


def gaussian_scores(*shape: int, seed: int) -> Tensor:
    """Standard normal, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def scores_of_figure_3() -> Tensor:
    """(n,), in ascending order."""
    return gaussian_scores(N, seed=SEED).sort().values


def make() -> Temperatures:
    scores = scores_of_figure_3()
    selected = {
        eps: soft_topk(scores, K, eps=eps, largest=False, normalize="row") for eps in TEMPERATURES
    }
    plans = {eps: plan_of(a.unsqueeze(-1)) for eps, a in selected.items()}
    return Temperatures(scores, K, selected, plans)


def draw(data: Temperatures) -> Figure:
    figure = new_figure(rows=2, columns=len(data.plans), size=(WIDTH, 3.8))
    above, below = figure.axes[: len(data.plans)], figure.axes[len(data.plans) :]
    n = len(data.scores)
    others = torch.arange(n) >= data.k
    for number, (eps, plan) in enumerate(data.plans.items()):
        first = number == 0
        image = draw_plan_map(above[number], plan, anchors=[0, 1] if first else None, most=1 / n)
        above[number].set_title(f"eps = {short(eps)}", fontsize=TEXT)
        draw_selection(below[number], data.scores, data.selected[eps], groups=others)
        below[number].tick_params(labelleft=first, labelsize=SMALL)
        above[number].set_xlabel("scores, ascending", fontsize=SMALL)
        below[number].set_xlabel("score")
    above[0].set_ylabel("anchor")
    below[0].set_ylabel("A")
    figure.colorbar(image, ax=above, label="mass", ticks=[0, 1 / n], aspect=8, pad=0.01)
    return figure


def caption(data: Temperatures) -> str:
    n, k = len(data.scores), data.k
    return (
        f"{n} standard Gaussian scores, k = {k}, at four temperatures of the normalised cost. "
        "Above: the transport plan, with a column for each score, in ascending order; below: A "
        f"against the score, the {k} smallest as discs. As eps grows, the mass of the scores near "
        "the threshold is divided between the anchors. "
        f'A is `soft_topk(scores, {k}, eps=eps, largest=False, normalize="row")`.'
    )


FOUR_TEMPERATURES = Exhibit(
    "temperatures",
    "Figure 3: the plan and the indicator at four temperatures",
    make,
    draw,
    caption,
)
