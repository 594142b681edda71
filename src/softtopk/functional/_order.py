"""Soft sort, soft ranks and soft quantiles: numbers that are read off the plans of the operators.

The sorted operator gives the share A_ij of element i in rank j. The value in rank j is then the
mean of the scores by the column A_j, and the rank of element i the mean of the ranks by the row
A_i. A quantile needs no plan: it is the threshold of the unsorted operator, at the right k.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._checks import Dims, Strength, check_flag, check_integer_k, check_scores, check_share
from .._dispatch import is_readable
from ._rows import Rows, algebra_dtype, extremes_of, rows_of
from ._sorted import sorted_soft_topk
from ._unsorted import topk_threshold


def soft_sort(
    scores: Tensor,
    k: int | None = None,
    *,
    eps: Strength = 0.1,
    dim: int = -1,
    descending: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Soft sort: the values in order, each a mean of the scores.

    A relaxation of ``scores.sort(dim, descending).values``, of which the first k are returned; with
    ``descending=True`` of ``scores.topk(k, dim).values``. The value in rank j is

    .. math:: \textstyle\sum_i A_{ij} x_i, \qquad \sum_i A_{ij} = 1,

    where A is `sorted_soft_topk`, exact at every eps. It lies between the least and the largest
    score, and comes after the values in the ranks before it.

    Args:
        k: How many values, from the front; all n if it is None.
        descending: The largest first, else the smallest first.
        mask: As in `soft_topk`. Ranks that a row with fewer than k elements cannot fill are 0.

    The other arguments are those of `soft_topk`. Scores at the infinity that would be sorted to
    the end take no part, and those at the other one come first.

    Returns:
        Of the shape of scores, with k elements along ``dim``. Derivatives as in `soft_topk`, except
        that k has none.

    The plan has n k entries: for all ranks of 10,000 elements 400 MB in float32, a few times over.
    The time grows with n k², as k equations are solved at once. For sorts of thousands of elements
    a projection (torchsort) costs less; docs/coming_from.md compares them.

    >>> scores = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1])
    >>> soft_sort(scores, eps=0.1)
    tensor([-0.1861,  0.0997,  0.4003,  0.6867,  1.4027,  1.9039,  2.2928])
    >>> soft_sort(scores, 2, eps=0.1, descending=True)  # torch.topk(scores, 2).values, softly
    tensor([2.2928, 1.9039])
    """
    check_scores(scores, dim)  # the values in order have one dimension
    rows, plan = _ranking(scores, k, eps, dim, descending, mask)
    x = rows.canonical().scores
    # Measured from the middle of the row, so that the rounding of A is not multiplied by an offset
    # of all scores, and the sum cannot overflow.
    high, minus_low = extremes_of(x.detach()).split(1, -1)
    middle = (0.5 * high - 0.5 * minus_low).nan_to_num(nan=0.0)  # NaN where no score is finite
    deviation = (x - middle).masked_fill(~x.isfinite(), 0.0)
    values = middle + (plan * deviation.unsqueeze(-1)).sum(-2)
    ranks = torch.arange(plan.shape[-1], device=x.device)
    values = values + torch.where(ranks < (x == math.inf).sum(-1, keepdim=True), math.inf, 0.0)
    values = values if descending else -values
    values = torch.where(ranks < (x != -math.inf).sum(-1, keepdim=True), values, 0.0)
    return rows.restore(values)


def soft_rank(
    scores: Tensor,
    k: int | None = None,
    *,
    eps: Strength = 0.1,
    dim: Dims = -1,
    descending: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Soft ranks, counted from 1: the place of every element in the order.

    A relaxation of ``scipy.stats.rankdata(scores)``, and of ``rankdata(-scores)`` with
    ``descending=True``: tied elements share the mean of their ranks. The rank of element i is

    .. math:: \textstyle\sum_{j=1}^{n} j A_{ij}, \qquad \sum_j A_{ij} = 1,

    where A is `sorted_soft_topk`, exact at every eps. All ranks sum to n (n + 1) / 2.

    Args:
        k: Count to k only: every place after the first k counts as k + 1. The plan has then n k
            entries, not n².
        descending: Rank 1 is the largest, else the smallest.
        mask: As in `soft_topk`. The rank of an element that takes no part is 0.

    The other arguments are those of `soft_topk`. The cost is that of `soft_sort`.

    Returns:
        Of the shape of scores. Derivatives as in `soft_topk`, except that k has none.

    >>> scores = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1])
    >>> soft_rank(scores, eps=0.01)
    tensor([3., 4., 7., 6., 1., 5., 2.])
    >>> soft_rank(scores, 2, eps=0.1, descending=True)
    tensor([3.0000, 3.0000, 1.0179, 1.9887, 3.0000, 2.9934, 3.0000])
    """
    rows, plan = _ranking(scores, k, eps, dim, descending, mask)
    last = plan.shape[-1] + 1
    before_last = torch.arange(last - 1, 0, -1, device=plan.device)
    ranks = last - (before_last * plan).sum(-1)
    excluded = rows.canonical().scores == -math.inf
    return rows.restore(ranks.masked_fill(excluded, 0.0))


def _ranking(
    scores: Tensor,
    k: int | None,
    eps: Strength,
    dim: Dims,
    descending: bool,
    mask: Tensor | None,
) -> tuple[Rows, Tensor]:
    """The arguments, checked, and A (..., n, k), not in half precision."""
    check_flag("descending", descending)
    rows = rows_of(
        scores, eps=eps, dim=dim, largest=descending, mask=mask, normalize=None, last_anchor=1
    )
    k = rows.n if k is None else check_integer_k(k, rows.n)
    plan = sorted_soft_topk(rows.scores, k, eps=eps, largest=descending, mask=rows.mask)
    return rows, plan


def soft_quantile(
    scores: Tensor,
    q: float | Tensor,
    *,
    eps: Strength = 0.1,
    dim: Dims = -1,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Soft quantiles, in O(n).

    A relaxation of ``scores.quantile(q, dim, interpolation="nearest")``: the threshold t of

    .. math:: \textstyle\sum_i \sigma(2 (x_i - t) / \epsilon) = n - \tfrac12 - q (n - 1),

    that is `topk_threshold` at a k between 1/2 and n - 1/2. As eps -> 0 it becomes the score whose
    place in ascending order, counted from 0, is nearest to q (n - 1), and the midpoint of two if
    both are equally near. (``torch.quantile`` takes the even place then. Its default,
    ``interpolation="linear"``, is another number between the same two scores.) A large eps moves
    the outer quantiles away from the scores: beyond the largest for q = 1.

    Args:
        q: Between 0 and 1: a float, or a tensor with at most one dimension, whose size is then the
            first of the result.
        mask: As in `soft_topk`; n is the number of elements that take part in a row. The quantile
            of a row without any is 0.

    The other arguments are those of `soft_topk`. Infinite scores are values like others.

    Returns:
        Of the shape of scores without ``dim``. Derivatives as in `topk_threshold`; that in a tensor
        q is large at low temperature, where the quantile jumps.

    >>> scores = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1])
    >>> soft_quantile(scores, 0.5, eps=0.1)
    tensor(0.7005)
    >>> soft_quantile(scores, torch.tensor([0.0, 0.25, 1.0]), eps=0.01)
    tensor([-0.2000,  0.2500,  2.3000])
    """
    rows = rows_of(scores, eps=eps, dim=dim, largest=True, mask=mask, normalize=None, last_anchor=1)
    q = _check_q(q, rows)
    x, taking_part = rows.scores, rows.mask
    n = rows.n if taking_part is None else taking_part.sum(-1, dtype=algebra_dtype(x))
    if isinstance(q, Tensor) and q.ndim:
        x = x.expand(*q.shape, *x.shape)
        q = q.view(-1, *(1 for _ in rows.batch))
    k = n - 0.5 - q * (n - 1)
    if isinstance(k, Tensor):
        k = k.clamp(min=0.0)  # no element takes part
    quantile = topk_threshold(x, k, eps=eps, mask=taking_part)
    if isinstance(n, Tensor):
        quantile = torch.where(n > 0, quantile, 0.0)
    return quantile.to(rows.dtype)


def _check_q(q: float | Tensor, rows: Rows) -> float | Tensor:
    """A tensor comes back beside the scores, in the dtype in which k is kept exact."""
    if not isinstance(q, Tensor):
        return check_share("q", q)
    if not q.is_floating_point() or q.ndim > 1:
        raise ValueError(
            "q must be a number, or a floating tensor of at most one dimension, got "
            f"{q.dtype} of shape {tuple(q.shape)}"
        )
    if is_readable(q) and not bool(((q >= 0) & (q <= 1)).all()):
        raise ValueError(
            f"q must be between 0 and 1, got values from {q.min().item()} to {q.max().item()}"
        )
    return q.to(rows.given.device, algebra_dtype(rows.given))
