"""Figures 2 and 4 of the paper: top-k and sorted top-k of seven scores as optimal transport."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softtopk import soft_topk, sorted_soft_topk
from softtopk.plotting import draw_plan, new_figure
from softtopk.plotting.style import TEXT, WIDTH

from ._exhibit import Exhibit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = (0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1)
UNSORTED_K, SORTED_K = 5, 2
EPS = 0.5  # of the cost as it stands: about the gaps between the scores, so that several share


@dataclass(frozen=True)
class Plans:
    """The plan that selects the smallest scores, without and with regularisation."""

    scores: Tensor
    """(n,)."""
    anchors: Tensor
    """(m,), as in the paper: 0 for the smallest."""
    k: int
    eps: float
    hard: Tensor
    """(n, m)."""
    soft: Tensor
    """(n, m)."""


def plan_of(selected: Tensor) -> Tensor:
    """The plan that a selection stands for: (..., n, k) -> (..., n, k + 1).

    What an element does not give to the ranks goes to the last anchor.
    """
    rest = 1.0 - selected.sum(-1, keepdim=True)
    return torch.cat([selected, rest], -1) / selected.shape[-2]


def make_unsorted() -> Plans:
    scores = torch.tensor(SCORES, dtype=torch.float64)
    hard, soft = (
        plan_of(soft_topk(scores, UNSORTED_K, eps=EPS, largest=False, hard=hard).unsqueeze(-1))
        for hard in (True, False)
    )
    return Plans(scores, torch.arange(2.0), UNSORTED_K, EPS, hard, soft)


def make_sorted() -> Plans:
    scores = torch.tensor(SCORES, dtype=torch.float64)
    hard, soft = (
        plan_of(sorted_soft_topk(scores, SORTED_K, eps=EPS, largest=False, hard=hard))
        for hard in (True, False)
    )
    return Plans(scores, torch.arange(SORTED_K + 1.0), SORTED_K, EPS, hard, soft)


def draw_unsorted(data: Plans) -> Figure:
    return _draw(data, [f"0\nthe {data.k} smallest", "1\nthe others"])


def draw_sorted(data: Plans) -> Figure:
    return _draw(data, ["0\nthe smallest", "1\nthe second", "2\nthe others"])


def _draw(data: Plans, names: list[str]) -> Figure:
    figure = new_figure(columns=2, size=(WIDTH, 3.0))
    titles = ("without regularisation", f"eps = {data.eps:g}")
    for axes, plan, title in zip(figure.axes, (data.hard, data.soft), titles, strict=True):
        draw_plan(axes, data.scores, data.anchors, plan, names=names)
        axes.set_title(title, fontsize=TEXT)
    return figure


def caption_unsorted(data: Plans) -> str:
    n = len(data.scores)
    return (
        f"The {data.k} smallest of {n} scores by optimal transport: each score, above, has the "
        f"mass 1/{n}; the anchor 0 takes {data.k}/{n}, the anchor 1 the rest, and the cost is the "
        "squared distance. Without regularisation the mass of the smallest scores goes to 0 and "
        "that of the others to 1; with it, scores near the threshold divide theirs. The width of a "
        "line is its mass; what is less than 1 % of a score's is not drawn. "
        f"`soft_topk(scores, {data.k}, eps={data.eps:g}, largest=False)` is {n} times the column "
        "of the anchor 0."
    )


def caption_sorted(data: Plans) -> str:
    n, k = len(data.scores), data.k
    return (
        f"Sorted top-{k} of the scores of Figure 2: an anchor for each rank, with the mass 1/{n} "
        f"for each of the first {k} and {n - k}/{n} for the last. Without regularisation the "
        "smallest score goes to 0, the second smallest to 1, and all others to 2; with it, "
        f"neighbours share the ranks. `sorted_soft_topk(scores, {k}, eps={data.eps:g}, "
        f"largest=False)` is {n} times the columns of the first {k} anchors."
    )


PLAN = Exhibit(
    "plan",
    "Figure 2: the transport plan of top-5 of seven scores",
    make_unsorted,
    draw_unsorted,
    caption_unsorted,
)
SORTED_PLAN = Exhibit(
    "sorted_plan",
    "Figure 4: the transport plan of sorted top-2 of seven scores",
    make_sorted,
    draw_sorted,
    caption_sorted,
)
