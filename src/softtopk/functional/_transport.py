"""The operators as general transport problems, for ``solver="sinkhorn"``.

A column of the plan stands for a range of places: [0, k) and [k, n) for the unsorted operator,
[0, 1), ..., [k-1, k), [k, n) for the sorted one. The elements at +inf take the first places, and as
they have no finite cost, pairs of element and column that have no place in common are forbidden.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._checks import Count
from ._rows import Rows, places_of
from ._sinkhorn import EntropicPlan, Sinkhorn, entropic_plan


def indicator_by_sinkhorn(rows: Rows, k: Count, setting: Sinkhorn) -> Tensor:
    """A (..., n) of the unsorted operator: n times the first column of the plan."""
    result, _, count = _solve(rows, _edges(rows, k), 1, setting)
    return _without_excluded(rows, result.plan[..., 0] * count)


def log_indicator_by_sinkhorn(rows: Rows, k: Count, setting: Sinkhorn) -> Tensor:
    """log A (..., n) from the potentials, finite where A underflows."""
    result, cost, count = _solve(rows, _edges(rows, k), 1, setting)
    exponent = result.row_potential + result.col_potential[..., :1] - cost[..., 0]
    empty = exponent == -math.inf
    log_a = exponent.masked_fill(empty, 0.0) / rows.eps + torch.log(count)
    return _without_excluded(rows, log_a.masked_fill(empty, -math.inf), -math.inf)


def threshold_by_sinkhorn(rows: Rows, k: Count, setting: Sinkhorn) -> Tensor:
    """Threshold (..., 1): the score that the two columns of the plan share equally."""
    edges = _edges(rows, k)
    result, _, _ = _solve(rows, edges, 1, setting)
    first, second = result.col_potential.split(1, -1)
    middle = sum(_anchors(rows, 1)) / 2
    threshold = middle - 0.5 * rows.scale * (first - second)
    places = places_of(k, rows.scores)
    threshold = torch.where(places >= edges[..., 2:], -math.inf, threshold)
    return torch.where(places <= 0, math.inf, threshold)


def ranking_by_sinkhorn(rows: Rows, k: int, setting: Sinkhorn) -> Tensor:
    """A (..., n, k) of the sorted operator: n times the first k columns of the plan."""
    x = rows.scores
    edges = torch.arange(k + 1, dtype=x.dtype, device=x.device)
    edges = torch.cat([edges, torch.full_like(edges[:1], rows.n)])
    result, _, count = _solve(rows, _cap(edges, x), k, setting)
    plan = result.plan[..., :k] * count.unsqueeze(-1)
    return _without_excluded(rows, plan.mT).mT


def _anchors(rows: Rows, last: int) -> list[float]:
    """y of the paper in canonical form, first place first: there the smallest are wanted."""
    return [float(last - j if rows.largest else -j) for j in range(last + 1)]


def _edges(rows: Rows, k: Count) -> Tensor:
    """Where the columns of the unsorted operator begin and end: (..., 3)."""
    x = rows.scores
    places = places_of(k, x).to(x.dtype)
    return _cap(
        torch.cat([torch.zeros_like(places), places, torch.full_like(places, rows.n)], -1), x
    )


def _cap(edges: Tensor, x: Tensor) -> Tensor:
    taking_part = (x != -math.inf).sum(-1, keepdim=True)
    return torch.minimum(edges, taking_part.to(x.dtype))


def _solve(
    rows: Rows, edges: Tensor, last_anchor: int, setting: Sinkhorn
) -> tuple[EntropicPlan, Tensor, Tensor]:
    """Solve the transport problem whose columns are the places between ``edges`` (..., m + 1).

    Returns the result, the cost (..., n, m) and the number of elements that take part (..., 1).
    """
    x = rows.scores
    ahead, excluded = x == math.inf, x == -math.inf
    count = edges[..., -1:].clamp(min=1.0)
    mu = (~excluded).to(x.dtype) / count
    nu = edges.diff(dim=-1) / count

    anchors = torch.tensor(_anchors(rows, last_anchor), dtype=x.dtype, device=x.device)
    finite = x.masked_fill(ahead | excluded, 0.0).unsqueeze(-1)
    scale = rows.scale.unsqueeze(-1) if isinstance(rows.scale, Tensor) else rows.scale
    # (x - y)^2 less x^2, which the row potential absorbs and which could overflow.
    cost = anchors * (anchors - 2.0 * finite) / scale
    n_ahead = ahead.sum(-1, keepdim=True)
    starts, ends = edges[..., :-1] < n_ahead, edges[..., 1:] > n_ahead
    for_ahead = torch.where(starts, 0.0, math.inf).to(x.dtype).unsqueeze(-2)
    cost = torch.where(ahead.unsqueeze(-1), for_ahead, cost)
    crowded_out = ~(ends | (nu <= 0)).unsqueeze(-2) & ~(ahead | excluded).unsqueeze(-1)
    cost = cost.masked_fill(crowded_out, math.inf)

    eps = rows.eps.squeeze(-1) if isinstance(rows.eps, Tensor) else rows.eps
    result = entropic_plan(cost, mu, nu, eps, tol=setting.tol, max_iter=setting.max_iter)
    return result, cost, count


def _without_excluded(rows: Rows, values: Tensor, fill: float = 0.0) -> Tensor:
    """Elements that take no part are unaffected even by a NaN elsewhere in their row."""
    excluded = rows.scores == -math.inf
    if values.ndim > excluded.ndim:
        excluded = excluded.unsqueeze(-2)
    return values.masked_fill(excluded, fill)
