"""Our own: the bias of the temperature, and the bound of the paper's Theorem 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softtopk import soft_topk
from softtopk.plotting import draw_bias, new_figure
from softtopk.plotting.style import SMALL, TEXT, WIDTH

from ._exhibit import Exhibit
from ._plans import SCORES, UNSORTED_K, plan_of
from ._temperatures import K, scores_of_figure_3

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANGE = (-3, 1)  # powers of ten
POINTS = 81
SHOWN = 3e-8  # the smallest bias in the picture


@dataclass(frozen=True)
class Bias:
    """How far the plan that selects the k smallest scores is from the one at eps = 0."""

    title: str
    scores: Tensor
    """(n,)."""
    k: int
    gap: float
    """Between the k-th smallest score and the next."""
    eps: Tensor
    """(m,)."""
    bias: Tensor
    """(m,), in the Frobenius norm."""
    bound: Tensor
    """(m,)."""


def bias_of(title: str, scores: Tensor, k: int, eps: Tensor) -> Bias:
    ordered = scores.sort().values
    n, gap = len(scores), (ordered[k] - ordered[k - 1]).item()
    rows = scores.expand(len(eps), n)
    soft = plan_of(soft_topk(rows, k, eps=eps, largest=False).unsqueeze(-1))
    hard = plan_of(soft_topk(scores, k, hard=True, largest=False).unsqueeze(-1))
    bound = eps * (math.log(n) + math.log(2)) / (n * gap)
    return Bias(title, scores, k, gap, eps, torch.linalg.matrix_norm(soft - hard), bound)


def make() -> Sequence[Bias]:
    eps = torch.logspace(*RANGE, POINTS, dtype=torch.float64)
    paper = torch.tensor(SCORES, dtype=torch.float64)
    return [
        bias_of("the seven scores of Figure 2", paper, UNSORTED_K, eps),
        bias_of("the fifty scores of Figure 3", scores_of_figure_3(), K, eps),
    ]


def draw(data: Sequence[Bias]) -> Figure:
    figure = new_figure(columns=len(data), size=(WIDTH, 3.4))
    most = 2 * max(part.bound.max().item() for part in data)
    for axes, part in zip(figure.axes, data, strict=True):
        draw_bias(axes, part.eps, part.bias, part.bound)
        title = f"{part.title}\nk = {part.k}, gap {part.gap:.2g}"
        axes.set_title(title, fontsize=TEXT)
        axes.set(xlabel="eps", ylim=(SHOWN, most))
    figure.axes[0].set_ylabel("distance to the hard plan")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=SMALL
    )
    return figure


def caption(data: Sequence[Bias]) -> str:
    return (
        "The bias of the regularised plan, which is the Frobenius norm of its difference from the "
        "hard plan, and the bound of Theorem 2, eps (ln n + ln 2) / (n gap), where the gap is that "
        "between the k-th smallest score and the next; the cost is not normalised. The bound holds "
        "at every eps and is linear in it; the bias itself vanishes much faster once eps is "
        "smaller than the gap, and has a limit as eps grows, where the selection becomes uniform."
    )


BIAS = Exhibit(
    "bias",
    "Bias against eps, and the bound of Theorem 2",
    make,
    draw,
    caption,
)
