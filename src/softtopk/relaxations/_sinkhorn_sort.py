"""The sort by optimal transport to a regular grid."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional import Solver, sorted_soft_topk
from ._candidates import Candidates, candidates_of


def sinkhorn_sort(
    scores: Tensor,
    k: int,
    *,
    eps: float = 1e-2,
    mask: Tensor | None = None,
    solver: Solver = "exact",
) -> Tensor:
    r"""Sort by optimal transport: the mass that goes to the first k of n ranks.

    A relaxation of ``one_hot(scores.argsort(descending=True))[:k].sum(0)``, namely n times the sum
    of the first k columns of the plan of

    .. math::
        \min_{\Gamma \ge 0} \sum_{ij} (z_i - y_j)^2 \Gamma_{ij}
        + \epsilon \sum_{ij} \Gamma_{ij} \log \Gamma_{ij}
        \quad\text{s.t.}\quad \Gamma 1 = \Gamma^\top 1 = \tfrac1n 1, \quad
        y = [1, \tfrac{n-2}{n-1}, \dots, \tfrac1{n-1}, 0],

    between a regular grid and the scores, standardised and squashed into it:
    :math:`z = \sigma((x - \mathrm{mean}\,x) / \mathrm{std}\,x)`, mean and standard deviation (that
    of the row itself, divided by n) over the elements that take part.

    Args:
        scores: (..., n), floating; float16 and bfloat16 are computed in float32.
        k: How many to select, 0 <= k <= n.
        eps: Regularisation strength, positive. As the scores are standardised, it does not depend
            on their scale.
        mask: Boolean, broadcasts to scores; True takes part. A masked element is treated as if it
            were deleted. So is a score of -inf. NaN or +inf makes its row NaN.
        solver: ``"exact"``, or ``"sinkhorn"`` or a `Sinkhorn` for the algorithm of the reference:
            ``Sinkhorn(max_iter=..., tol=...)`` sets its limit and tolerance, and a
            `ConvergenceWarning` says when the limit was reached.

    Returns:
        A (..., n), in [0, 1] to rounding, with sum k; where at most k elements take part 1
        everywhere. It does not change when the scores are shifted or multiplied by a positive
        number. Memory is O(n^2) a row, whatever k is.

    >>> scores = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2])
    >>> sinkhorn_sort(scores, 2, eps=0.05)
    tensor([0.0326, 0.1129, 0.9640, 0.8887, 0.0018])

    References:
        Cuturi, Teboul and Vert, Differentiable Ranks and Sorting using Optimal Transport, NeurIPS
        2019.
    """
    rows = candidates_of(scores, k, eps, mask)
    # The grid has steps of 1 / (n - 1). Measured in steps, with x^2 and y^2 absorbed by the
    # potentials, this is the problem of the sorted operator with all n ranks, which has a solver
    # that is faster and more exact than Sinkhorn's iteration.
    steps = (rows.size - 1).clamp(min=1).squeeze(-1).to(rows.scores.dtype)
    strength = rows.eps * steps
    ranks = sorted_soft_topk(_squash(rows), rows.n, eps=strength, mask=rows.part, solver=solver)
    return rows.settle(ranks[..., : rows.k].sum(-1))


def _squash(rows: Candidates) -> Tensor:
    """The logistic function of the standardised scores: (..., n) in (0, 1)."""
    x, part = rows.scores, rows.part
    size = rows.size.clamp(min=1)
    fixed = x.detach()
    low = fixed.masked_fill(~part, torch.finfo(x.dtype).max).amin(-1, keepdim=True)
    high = fixed.masked_fill(~part, torch.finfo(x.dtype).min).amax(-1, keepdim=True)
    # Standardised scores change neither with shift nor with scale, so both may be chosen freely and
    # need no derivative: here such that squares neither over- nor underflow.
    middle, radius = 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low
    # Equal scores have no deviation to divide by. Nor have those that are equal but for numbers so
    # small that their inverse, which is the derivative, is not finite.
    info = torch.finfo(x.dtype)
    equal = radius <= info.tiny / info.eps
    unit = ((x - middle) / torch.where(equal, 1.0, radius)).masked_fill(~part, 0.0)
    centred = (unit - unit.sum(-1, keepdim=True) / size).masked_fill(~part, 0.0)
    variance = centred.square().sum(-1, keepdim=True) / size
    return torch.sigmoid(centred / torch.where(equal, 1.0, variance).sqrt())
