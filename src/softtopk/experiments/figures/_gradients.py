"""The appendix of the paper: where the gradient moves the scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softtopk import soft_topk
from softtopk.plotting import draw_gradient, new_figure
from softtopk.plotting.style import TEXT, WIDTH

from ._exhibit import Exhibit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N, K = 10, 3
WANTED = ((0, 1, 2), (2, 3, 4))
EPS = 0.1  # of the normalised cost, the default of the paper's listing


@dataclass(frozen=True)
class Push:
    """The gradient of the sum of A over some of the scores."""

    members: Sequence[int]
    gradient: Tensor
    """(n,)."""


@dataclass(frozen=True)
class Gradients:
    scores: Tensor
    """(n,)."""
    k: int
    eps: float
    selected: Tensor
    """(n,), of the k smallest scores."""
    pushes: Sequence[Push]


def make() -> Gradients:
    scores = torch.arange(N, dtype=torch.float64, requires_grad=True)
    selected = soft_topk(scores, K, eps=EPS, largest=False, normalize="row")
    pushes = []
    for members in WANTED:
        total = selected[list(members)].sum()
        (gradient,) = torch.autograd.grad(total, scores, retain_graph=True)
        pushes.append(Push(members, gradient))
    return Gradients(scores.detach(), K, EPS, selected.detach(), pushes)


def draw(data: Gradients) -> Figure:
    figure = new_figure(columns=len(data.pushes), size=(WIDTH, 3.0))
    for axes, push in zip(figure.axes, data.pushes, strict=True):
        inside = torch.zeros(len(data.scores), dtype=torch.bool)
        inside[list(push.members)] = True
        draw_gradient(axes, data.scores, data.selected, push.gradient, groups=inside)
        axes.set_title(f"I = {_set(push.members)}", fontsize=TEXT)
        axes.set(xlabel="score", xticks=range(len(data.scores)), ylim=(0.0, None))
    figure.axes[0].set_ylabel("A")
    limits = [limit for axes in figure.axes for limit in axes.get_xlim()]
    for axes in figure.axes:  # so that the panels have one scale
        axes.set_xlim(min(limits), max(limits))
    return figure


def caption(data: Gradients) -> str:
    n, k = len(data.scores), data.k
    return (
        f"Scores 0 to {n - 1}, of which the {k} smallest are selected, as in a kNN classifier, "
        "where they are distances. The arrows are the gradient of the sum of A over I (diamonds); "
        "their lengths can be compared within a panel. Left: I are the smallest scores, and the "
        "gap to the others widens. Right: I are not; they are pushed to be smaller, and all "
        "others, also those smaller than they are, to be larger. The arrows of a panel sum to "
        "zero. "
        f'A is `soft_topk(scores, {k}, eps={data.eps:g}, largest=False, normalize="row")`.'
    )


def _set(members: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, members)) + "}"


GRADIENT = Exhibit(
    "gradient",
    "Appendix: the gradient of SOFT top-k on ten scores",
    make,
    draw,
    caption,
)
