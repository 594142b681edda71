"""Our own: the bias of the temperature, a bound that holds, and that of the paper's Theorem 2.

The hard plan minimises the cost alone. Let L be the mass of A that leaks out of the selection; as
much leaks in. With the anchors 0 and 1 a unit of A that changes places costs at least 2 gap / n, so
the soft plan costs at least 2 gap L / n more. It costs at most eps times the entropy that it gains,
the mean of the entropies of (A_i, 1 - A_i): ln 2 at most. The error l_i of A_i is at most 1, and
the errors sum to 2 L, so that with both columns of the plan

    |Gamma_eps - Gamma_0|_F^2 = 2 sum_i l_i^2 / n^2 <= 4 L / n^2 <= 2 eps ln 2 / (n gap).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softtopk import soft_topk
from softtopk.plotting import draw_bias, new_figure
from softtopk.plotting.style import LINES, SMALL, TEXT, VERMILION, WIDTH

from ._exhibit import Exhibit
from ._plans import SCORES, UNSORTED_K, plan_of
from ._temperatures import K, scores_of_figure_3

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THEOREM_2 = "Theorem 2 of the paper"
RANGE = (-3, 1)  # powers of ten
POINTS = 81
SHOWN = 3e-8  # the smallest bias in the picture
CLUSTERED = 1000  # scores; in two clusters, Theorem 2 fails from 250 on
CLUSTER = 0.01  # the width of a cluster, small beside the gap: all its elements leak alike


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
    """(m,), which holds."""
    theorem_2: Tensor
    """(m,), as the paper states it."""


def bias_of(title: str, scores: Tensor, k: int, eps: Tensor) -> Bias:
    ordered = scores.sort().values
    n, gap = len(scores), (ordered[k] - ordered[k - 1]).item()
    rows = scores.expand(len(eps), n)
    soft = plan_of(soft_topk(rows, k, eps=eps, largest=False).unsqueeze(-1))
    hard = plan_of(soft_topk(scores, k, hard=True, largest=False).unsqueeze(-1))
    bias = torch.linalg.matrix_norm(soft - hard)
    bound = (2 * eps * math.log(2) / (n * gap)).sqrt()
    theorem_2 = eps * (math.log(n) + math.log(2)) / (n * gap)
    return Bias(title, scores, k, gap, eps, bias, bound, theorem_2)


def clustered_scores(n: int) -> Tensor:
    """(n,), half of them at most 0, the others at least 1."""
    near = torch.linspace(0, CLUSTER, n // 2, dtype=torch.float64)
    return torch.cat([-near, 1 + near])


def make() -> Sequence[Bias]:
    eps = torch.logspace(*RANGE, POINTS, dtype=torch.float64)
    paper = torch.tensor(SCORES, dtype=torch.float64)
    return [
        bias_of("the seven scores of Figure 2", paper, UNSORTED_K, eps),
        bias_of("the fifty scores of Figure 3", scores_of_figure_3(), K, eps),
        bias_of("1,000 in two clusters", clustered_scores(CLUSTERED), CLUSTERED // 2, eps),
    ]


def draw(data: Sequence[Bias]) -> Figure:
    figure = new_figure(columns=len(data), size=(WIDTH, 3.4))
    most = 2 * max(part.theorem_2.max().item() for part in data)
    for axes, part in zip(figure.axes, data, strict=True):
        draw_bias(axes, part.eps, part.bias, part.bound)
        axes.plot(part.eps, part.theorem_2, LINES[2], color=VERMILION, lw=1.5, label=THEOREM_2)
        title = f"{part.title}\nk = {part.k}, gap {part.gap:.2g}"
        axes.set_title(title, fontsize=TEXT)
        axes.set(xlabel="eps", ylim=(SHOWN, most))
    figure.axes[0].set_ylabel("distance to the hard plan")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=SMALL
    )
    return figure


def caption(data: Sequence[Bias]) -> str:
    clusters = data[-1]
    one = int((clusters.eps - 1).abs().argmin())
    return (
        "The bias of the regularised plan, which is the Frobenius norm of its difference from the "
        "hard plan, and two bounds of it; the gap is that between the k-th smallest score and the "
        "next, and the cost is not normalised. The square root of 2 eps ln 2 / (n gap) is a bound "
        "for all scores; the maths page of the docs has the proof. Theorem 2 of the paper "
        "states eps (ln n + ln 2) / (n gap), which the bias exceeds on the right, where many "
        f"elements leak at once: at eps = 1 it is {clusters.bias[one]:.2g}, and Theorem 2 allows "
        f"{clusters.theorem_2[one]:.2g}. The bias itself vanishes much faster than either once "
        "eps is smaller than the gap, and has a limit as eps grows, where the selection becomes "
        "uniform."
    )


BIAS = Exhibit(
    "bias",
    "Bias against eps, and two bounds",
    make,
    draw,
    caption,
)
