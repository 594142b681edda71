"""Pairwise distances between two sets of features, differentiable to any order."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from .._checks import check_choice

Metric = Literal["euclidean", "squared", "cosine"]
METRICS: tuple[Metric, ...] = ("euclidean", "squared", "cosine")


def pairwise_distances(query: Tensor, templates: Tensor, metric: Metric = "euclidean") -> Tensor:
    """Distances between every query and every template, ``(m, d), (n, d) -> (m, n)``.

    - ``"euclidean"``: |q - t|, as in the paper. It has no derivative where the two coincide; the
      gradient there is taken to be zero, as that of `torch.cdist` is.
    - ``"squared"``: |q - t|².
    - ``"cosine"``: 1 - cos(q, t), between 0 and 2. A feature of zero, or next to it (a subnormal
      length), has no direction: it is at a distance of 1 from everything.

    The first two are computed by a matrix product, which is several times as fast as differences
    and, unlike `torch.cdist` with differences, twice differentiable. Two features closer to each
    other than sqrt(machine epsilon) times the spread of all features are not told apart.

    >>> pairwise_distances(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[5., 0.]])
    """
    check_choice("metric", metric, METRICS)
    check_features("query", query)
    check_features("templates", templates)
    if query.shape[1] != templates.shape[1]:
        raise ValueError(
            "query and templates must have features of the same size, "
            f"got shapes {tuple(query.shape)} and {tuple(templates.shape)}"
        )
    if metric == "cosine":
        return 1 - _directions(query) @ _directions(templates).mT
    squared = _squared(query, templates)
    if metric == "squared":
        return squared
    # The square root has an infinite slope at zero, and zero times that would be NaN.
    # Not ``squared > 0``, which would make NaN, the sign of features that diverged, a zero.
    apart = squared != 0
    return torch.where(apart, squared, 1.0).sqrt() * apart


def check_features(name: str, features: Tensor) -> None:
    if not isinstance(features, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(features).__name__}")
    if not features.is_floating_point():
        raise TypeError(f"{name} must be of a floating dtype, got {features.dtype}; use .float()")
    if features.ndim != 2:
        raise ValueError(
            f"{name} must be of shape (samples, features), got {tuple(features.shape)}; "
            "use .flatten(1)"
        )


def _squared(queries: Tensor, templates: Tensor) -> Tensor:
    # |q|² + |t|² - 2 q·t cancels digits where the features lie far from the origin, so that is
    # moved among them. A shift of both does not change the distance: it needs no gradient.
    centre = templates.detach().mean(0)
    queries, templates = queries - centre, templates - centre
    norms = queries.square().sum(-1, keepdim=True) + templates.square().sum(-1)
    return (norms - 2 * queries @ templates.mT).clamp(min=0)


def _directions(features: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
    # The inverse of a subnormal number may overflow, and its gradient be infinity minus infinity.
    return features / torch.where(norm < torch.finfo(norm.dtype).tiny, math.inf, norm)
