"""Figure 5 of the paper: the forward pass of a kNN classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softtopk import soft_topk
from softtopk.knn import pairwise_distances, soft_vote
from softtopk.plotting import draw_neighbours, draw_selection, draw_votes, new_figure
from softtopk.plotting.style import SMALL, TEXT, WIDTH

from ._exhibit import Exhibit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CENTRES = ((0.0, 0.0), (2.2, 0.3), (0.9, 2.0))
CLASSES = ("a", "b", "c")
PER_CLASS = 12
SPREAD = 0.55
QUERY = (0.95, 0.75)  # among the three, so that each has a part of the vote
K = 9  # the paper's
EPS = 0.01
OPTIONS: dict[str, Any] = {"normalize": "row"}  # the cost, as in the paper
SEED = 0


@dataclass(frozen=True)
class ForwardPass:
    """A query among labelled features in the plane, such as a network makes of images."""

    templates: Tensor
    """(n, 2)."""
    labels: Tensor
    """(n,)."""
    query: Tensor
    """(2,)."""
    k: int
    eps: float
    distances: Tensor
    """(n,), of the query to the templates."""
    selected: Tensor
    """(n,), A."""
    votes: Tensor
    """(classes,)."""


def make() -> ForwardPass:
    generator = torch.Generator().manual_seed(SEED)
    labels = torch.arange(len(CENTRES)).repeat_interleave(PER_CLASS)
    noise = torch.randn(len(labels), 2, generator=generator, dtype=torch.float64)
    templates = torch.tensor(CENTRES, dtype=torch.float64)[labels] + SPREAD * noise
    query = torch.tensor([QUERY], dtype=torch.float64)
    distances = pairwise_distances(query, templates)
    selected = soft_topk(-distances, K, eps=EPS, **OPTIONS)
    votes = soft_vote(query, templates, labels, K, eps=EPS, options=OPTIONS)
    return ForwardPass(templates, labels, query[0], K, EPS, distances[0], selected[0], votes[0])


def draw(data: ForwardPass) -> Figure:
    figure = new_figure(columns=3, size=(WIDTH, 3.0))
    plane, selection, vote = figure.axes
    draw_neighbours(plane, data.templates, data.query, data.selected, data.labels, names=CLASSES)
    plane.set_title("features", fontsize=TEXT)
    plane.legend(loc="upper left", frameon=False, fontsize=SMALL, handletextpad=0.1)
    draw_selection(selection, data.distances, data.selected, groups=data.labels)
    selection.set_title(f"A, k = {data.k}", fontsize=TEXT)
    selection.set_xlabel("distance to the query")
    draw_votes(vote, data.votes, names=CLASSES)
    vote.set_title("vote", fontsize=TEXT)
    vote.set_xlabel("class")
    return figure


def caption(data: ForwardPass) -> str:
    return (
        f"The forward pass of a kNN classifier, on made-up features of {len(data.labels)} samples "
        "of three classes. Left: the features; the query is the star, and a line to each sample is "
        "the wider the more it is selected. Middle: A against the distance. Right: the share of "
        f"each class among the {data.k} votes. Training increases that of the query's own class. "
        "With the arrays of the JSON file as tensors: "
        f"`softtopk.knn.soft_vote(query[None], templates, labels, {data.k}, eps={data.eps:g}, "
        f"options={OPTIONS})`."
    )


KNN = Exhibit(
    "knn",
    "Figure 5: the forward pass of a kNN classifier",
    make,
    draw,
    caption,
)
