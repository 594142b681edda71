"""The public operators."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ._arguments import Count, Strength, check_flag, check_integer_k, check_k, check_scores
from ._fusion import fuses
from ._indicator import indicator, indicator_of, is_direct
from ._rank_indicator import rank_indicator_of
from ._ranking import ranking_of
from ._rows import Rows, chosen_of, largest_of, rank_distances, rows_of, temperature
from ._sinkhorn import Sinkhorn
from ._threshold import logits_of, threshold_of
from ._transport import (
    indicator_by_sinkhorn,
    log_indicator_by_sinkhorn,
    ranking_by_sinkhorn,
    threshold_by_sinkhorn,
)

Normalize = Literal["row", "batch"] | None
Solver = Literal["exact", "sinkhorn"] | Sinkhorn


def soft_topk(
    scores: Tensor,
    k: Count,
    *,
    eps: Strength = 0.1,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    normalize: Normalize = None,
    hard: bool = False,
    solver: Solver = "exact",
) -> Tensor:
    r"""SOFT top-k: the soft indicator of the k largest elements.

    A relaxation of the hard selection
    ``torch.zeros_like(scores).scatter(dim, scores.topk(k, dim).indices, 1.0)``, namely n times the
    first column of the plan of

    .. math::
        \min_{\Gamma \ge 0} \sum_{ij} (x_i - y_j)^2 \Gamma_{ij}
        + \epsilon \sum_{ij} \Gamma_{ij} \log \Gamma_{ij}
        \quad\text{s.t.}\quad \Gamma 1 = \tfrac1n 1,\
        \Gamma^\top 1 = [\tfrac kn, \tfrac{n-k}n], \quad y = [1, 0],

    which is :math:`A_i = \sigma(2 (x_i - t) / \epsilon)` with the threshold t that makes A sum to
    k. The threshold is solved for directly, to machine precision at every eps.

    Args:
        scores: Any shape and floating dtype; float16 and bfloat16 are computed in float32.
        k: How many to select, 0 <= k <= n: an int, a float, or a tensor that broadcasts to the
            batch shape (the shape of scores without ``dim``). The values of a tensor are checked
            on the CPU only, and not inside ``torch.compile``; this goes for eps too.
        eps: Regularisation strength, positive: a float or a tensor that broadcasts to the batch
            shape. As eps -> 0 the result becomes the hard selection, as eps grows it becomes k/n.
        dim: The dimension to select along.
        largest: Select the largest elements, else the smallest.
        mask: Boolean, broadcasts to scores; True takes part. A masked element is treated exactly
            as if it were deleted: A = 0 and no gradient. So is a score of -inf (+inf if not
            ``largest``). A row with fewer than k elements left selects all of them. A NaN that
            takes part makes its row NaN.
        normalize: ``"row"`` divides the cost of each row by its largest entry, ``"batch"`` that of
            all rows by the largest of all, as the paper's code does: its values of eps refer to
            that. The divisor is detached.
        hard: Return the exact selection, as ``torch.topk`` does, with the gradient of the soft one
            (straight-through). Of equal scores the first are selected. A fractional k is rounded.
        solver: ``"exact"``, or ``"sinkhorn"`` or a `Sinkhorn` for the paper's algorithm.

    Returns:
        A, of the shape and dtype of scores, in [0, 1], with sum k along ``dim``. Differentiable in
        scores, in eps, and in a floating k: in reverse mode to any order, in forward mode, and in
        forward over reverse mode. (Forward over forward mode is wrong for every
        ``torch.autograd.Function`` with a jvp, and forward mode inside ``torch.compile`` raises.)

    >>> scores = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1])
    >>> soft_topk(scores, 2, eps=1.0)
    tensor([0.0713, 0.1227, 0.7744, 0.6066, 0.0226, 0.3620, 0.0404])
    >>> soft_topk(scores, 2, eps=0.01).round(decimals=4)
    tensor([0., 0., 1., 1., 0., 0., 0.])
    >>> soft_topk(scores, 5, eps=0.01, largest=False).round(decimals=4)
    tensor([1., 1., 0., 0., 1., 1., 1.])

    References:
        Xie et al., Differentiable Top-k Operator with Optimal Transport, NeurIPS 2020.
    """
    unmodified = mask is None and normalize is None and largest is True and hard is False
    if unmodified and solver == "exact" and is_direct(scores, k, eps, dim):
        return indicator(scores, None, k, temperature(eps, 1.0, scores.dtype))
    check_flag("hard", hard)
    rows, k = unsorted_rows(
        scores, k, eps=eps, dim=dim, largest=largest, mask=mask, normalize=normalize
    )
    sinkhorn = sinkhorn_setting(solver)
    if sinkhorn is not None:
        soft = indicator_by_sinkhorn(rows.canonical(), k, sinkhorn)
    elif fuses(rows, k):
        soft = indicator_of(rows, k)
    else:
        soft = torch.sigmoid(logits_of(rows.canonical(), k))
    if hard:
        soft = straight_through(hard_selection(rows.canonical(), k), soft)
    return rows.restore(soft)


def log_soft_topk(
    scores: Tensor,
    k: Count,
    *,
    eps: Strength = 0.1,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    normalize: Normalize = None,
    solver: Solver = "exact",
) -> Tensor:
    """Logarithm of `soft_topk`, exact also where the latter underflows to 0 or rounds to 1.

    A relaxation of ``torch.log(hard_indicator)``. Arguments as for `soft_topk`. An element that
    takes no part has -inf; every other one is finite, unless k = 0.

    >>> log_soft_topk(torch.tensor([0.0, 1.0, 2.0]), 1, eps=1 / 128)
    tensor([-384., -128.,   -0.])
    """
    rows, k = unsorted_rows(
        scores, k, eps=eps, dim=dim, largest=largest, mask=mask, normalize=normalize
    )
    rows = rows.canonical()
    return rows.restore(log_indicator_of(rows, k, sinkhorn_setting(solver)))


def topk_threshold(
    scores: Tensor,
    k: Count,
    *,
    eps: Strength = 0.1,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    normalize: Normalize = None,
    solver: Solver = "exact",
) -> Tensor:
    """The soft threshold between the k largest elements and the rest.

    A relaxation of the midpoint between the k-th and the (k+1)-th element, that is of
    ``scores.quantile((n - k) / n, dim, interpolation="midpoint")``: the t of
    ``soft_topk = sigmoid(2 (scores - t) / eps)``. Arguments as for `soft_topk`.

    Returns:
        t, of the shape of scores without ``dim``: -inf where everything is selected, +inf where
        nothing is (the other way round if not ``largest``).

    >>> scores = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1])
    >>> topk_threshold(scores, 2, eps=0.01)
    tensor(1.6500)
    """
    rows, k = unsorted_rows(
        scores, k, eps=eps, dim=dim, largest=largest, mask=mask, normalize=normalize
    )
    rows = rows.canonical()
    sinkhorn = sinkhorn_setting(solver)
    if sinkhorn is not None:
        threshold = threshold_by_sinkhorn(rows, k, sinkhorn)
    else:
        pivot, offset, _ = threshold_of(rows, k)
        threshold = torch.where(pivot.isinf(), pivot, pivot + rows.tau * offset)
    threshold = threshold if rows.largest else -threshold
    return threshold.to(rows.dtype).squeeze(-1)


def sorted_soft_topk(
    scores: Tensor,
    k: int,
    *,
    eps: Strength = 0.1,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    normalize: Normalize = None,
    hard: bool = False,
    solver: Solver = "exact",
) -> Tensor:
    r"""Sorted SOFT top-k: the soft indicator of "element i has rank l", for the k largest.

    A relaxation of ``one_hot(scores.topk(k, dim).indices, n).mT``, namely n times the first k
    columns of the plan of

    .. math::
        \min_{\Gamma \ge 0} \sum_{ij} (x_i - y_j)^2 \Gamma_{ij}
        + \epsilon \sum_{ij} \Gamma_{ij} \log \Gamma_{ij}
        \quad\text{s.t.}\quad \Gamma 1 = \tfrac1n 1,\
        \Gamma^\top 1 = [\tfrac1n, \dots, \tfrac1n, \tfrac{n-k}n], \quad y = [k, \dots, 1, 0].

    Args:
        k: How many ranks, an int with 0 <= k <= n; k = n is a soft sort.
        hard: Return the exact ranking, with the gradient of the soft one. Of equal scores the
            first has the first rank.

    The other arguments are those of `soft_topk`, except that the normalised cost refers to the
    anchors 0..k.

    Returns:
        Of the shape of scores with a last axis of size k added. Sums to one over ``dim`` for every
        rank (to zero for the ranks that a row with fewer than k elements cannot fill), and to at
        most one over the ranks.

    >>> scores = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1])
    >>> ranks = sorted_soft_topk(scores, 2, eps=0.1)
    >>> ranks.round(decimals=2)
    tensor([[0.0000, 0.0000],
            [0.0000, 0.0000],
            [0.9800, 0.0200],
            [0.0200, 0.9800],
            [0.0000, 0.0000],
            [0.0000, 0.0100],
            [0.0000, 0.0000]])
    >>> (ranks * scores.unsqueeze(-1)).sum(-2)  # soft values of the two largest
    tensor([2.2928, 1.9039])
    """
    check_flag("hard", hard)
    dim = check_scores(scores, dim)
    k = check_integer_k(k, scores.shape[dim])
    rows = rows_of(
        scores,
        eps=eps,
        dim=dim,
        largest=largest,
        mask=mask,
        normalize=normalize,
        last_anchor=max(k, 1),
    )
    sinkhorn = sinkhorn_setting(solver)
    if k == 0:
        soft = rows.scores[..., :0] * rows.tau  # empty, and still in the graph
        soft = soft.unsqueeze(-2).expand(*rows.scores.shape, 0)
    elif sinkhorn is not None:
        soft = ranking_by_sinkhorn(rows.canonical(), k, sinkhorn)
    elif fuses(rows, k):
        soft = rank_indicator_of(rows, k)
    else:
        soft = ranking_of(rank_distances(rows.canonical(), k))[..., :k]
    if hard:
        soft = straight_through(_hard_ranking(rows.canonical(), k), soft)
    return rows.restore(soft, -2)


def unsorted_rows(
    scores: Tensor,
    k: Count,
    *,
    eps: Strength,
    dim: int,
    largest: bool,
    mask: Tensor | None,
    normalize: Normalize,
) -> tuple[Rows, Count]:
    rows = rows_of(
        scores, eps=eps, dim=dim, largest=largest, mask=mask, normalize=normalize, last_anchor=1
    )
    return rows, check_k(k, rows.n, rows.batch)


def log_indicator_of(rows: Rows, k: Count, sinkhorn: Sinkhorn | None) -> Tensor:
    """log A (..., n) of rows in canonical form."""
    if sinkhorn is not None:
        return log_indicator_by_sinkhorn(rows, k, sinkhorn)
    logits = logits_of(rows, k)
    # log sigmoid as a softplus, which keeps less for backward than logsigmoid. At -inf its slope
    # is 1, which would let the constant -inf move the threshold.
    return torch.where(logits == -math.inf, -math.inf, -F.softplus(-logits, threshold=50.0))


def sinkhorn_setting(solver: Solver) -> Sinkhorn | None:
    """The Sinkhorn setting that ``solver`` stands for, None for the exact solver."""
    if isinstance(solver, Sinkhorn):
        return solver
    if solver == "sinkhorn":
        return Sinkhorn()
    if solver != "exact":
        raise ValueError(f"solver must be 'exact', 'sinkhorn' or a Sinkhorn(...), got {solver!r}")
    return None


def hard_selection(rows: Rows, k: Count) -> Tensor:
    """The 0/1 selection of the round(k) largest; elements that take no part are never selected."""
    x = rows.scores.detach()
    chosen = chosen_of(x, k.detach().round() if isinstance(k, Tensor) else round(k))
    return (chosen & (x != -math.inf)).to(x.dtype)


def _hard_ranking(rows: Rows, k: int) -> Tensor:
    x = rows.scores.detach()
    index, best = largest_of(x, k)
    order = best.argsort(dim=-1, descending=True, stable=True)
    index = index.gather(-1, order).unsqueeze(-2)
    selected = torch.zeros(*x.shape, k, dtype=x.dtype, device=x.device).scatter(-2, index, 1.0)
    return selected.masked_fill((x == -math.inf).unsqueeze(-1), 0.0)


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    return hard + (soft - soft.detach())
