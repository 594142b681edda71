"""Losses of a ranking: at which ranks the relevant items are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._checks import Strength
from .._dispatch import is_immediate
from ..functional import sorted_soft_topk
from ..functional._rows import temperature
from ._queries import (
    Cutoffs,
    Reduction,
    cutoffs_of,
    eps_of,
    graded_queries,
    queries_of,
    reduced,
    weighted,
)

#: Beyond so many tau a sigmoid is 0 or 1 in every dtype.
DECIDED = 200.0


def ndcg_at_k_loss(
    scores: Tensor,
    relevance: Tensor,
    k: Cutoffs,
    *,
    weights: Sequence[float] | None = None,
    eps: Strength | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    group: Any = None,
) -> Tensor:
    r"""One minus NDCG@k: how much gain the first k ranks lack, discounted by the rank.

    With :math:`A_{il}` the soft indicator of "item i has rank l" (`softtopk.sorted_soft_topk`) and
    :math:`g_i` the relevance it is

    .. math:: 1 - \frac{1}{\mathrm{IDCG}_k} \sum_{l=1}^{k} \frac{\sum_i A_{il} g_i}{\log_2(l + 1)},

    where IDCG is the largest value that the sum can have. It is a relaxation of
    ``1 - sklearn.metrics.ndcg_score(relevance, scores, k=k)`` and equal to it as eps -> 0, ties
    included. It takes O(n k) memory and O(n k²) time. Several cutoffs share the operator of the
    largest one, so the result is not exactly the mean of single calls, unless eps is small.

    Args:
        relevance: (..., n), not negative: the gain of every item, as in scikit-learn. For the
            exponential gain of learning to rank give ``2.0**grades - 1``. An item with a positive
            relevance is a positive.

    The other arguments and the result are those of `recall_at_k_loss`.

    >>> scores = torch.tensor([[0.9, 0.3, 0.5, 0.1]])
    >>> relevance = torch.tensor([[1, 2, 0, 0]])
    >>> ndcg_at_k_loss(scores, relevance, 3, eps=1e-3)
    tensor(0.2398)
    """
    queries = graded_queries(scores, relevance, mask)
    ks, shares = cutoffs_of(k, weights)
    gains = queries.gains
    gains = gains / gains.amax(-1, keepdim=True).clamp(min=torch.finfo(gains.dtype).tiny)
    most = min(max(ks), gains.shape[-1])
    eps = eps_of(eps, queries.scores, queries.mask)
    ranks = sorted_soft_topk(queries.scores, most, eps=eps, mask=queries.mask)
    discounts = torch.arange(most, dtype=gains.dtype, device=gains.device).add(2.0).log2()

    def at_cutoffs(gain_of_rank: Tensor) -> Tensor:
        return (gain_of_rank / discounts).cumsum(-1)[..., [min(k, most) - 1 for k in ks]]

    # A sum and not a matrix product, which autocast would round.
    found = at_cutoffs((ranks * gains.unsqueeze(-1)).sum(-2))
    ideal = at_cutoffs(gains.topk(most).values)
    ideal = torch.where(queries.valid.unsqueeze(-1), ideal, 1.0)
    return reduced(1.0 - weighted(found / ideal, shares), queries.valid, reduction, group)


def average_precision_loss(
    scores: Tensor,
    positives: Tensor,
    *,
    eps: Strength | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    group: Any = None,
) -> Tensor:
    r"""One minus average precision: how many others are ranked before the positives.

    With tau = eps / 2, soft ranks among all items and among the positives P,

    .. math:: r_i = 1 + \sum_{j \ne i} \sigma\Bigl(\frac{x_j - x_i}{\tau}\Bigr),\qquad
        p_i = 1 + \sum_{j \in P, j \ne i} \sigma\Bigl(\frac{x_j - x_i}{\tau}\Bigr),

    it is :math:`1 - \frac{1}{|P|} \sum_{i \in P} p_i / r_i`: Smooth-AP. Where no scores are equal,
    it becomes ``1 - sklearn.metrics.average_precision_score(positives, scores)`` as eps -> 0. Of
    equal scores each counts as half ahead of the other. There is no k: the whole ranking counts.

    It takes O(n p) time and memory, p being the largest number of positives of a query (n under
    ``torch.compile``, which cannot look). The same by `softtopk.sorted_soft_topk` with k = n would
    take O(n²) with a much larger constant.

    Arguments and result as for `recall_at_k_loss`.

    >>> scores = torch.tensor([[0.9, 0.3, 0.5, 0.1]])
    >>> positives = torch.tensor([[True, True, False, False]])
    >>> average_precision_loss(scores, positives, eps=1e-3)
    tensor(0.1667)

    References:
        Brown, Xie, Kalogeiton and Zisserman, Smooth-AP: Smoothing the Path Towards Large-Scale
        Image Retrieval, ECCV 2020.
    """
    queries = queries_of(scores, positives, mask)
    tau = temperature(eps_of(eps, queries.scores, queries.mask), 1.0, queries.scores.dtype)
    if isinstance(tau, Tensor):
        tau = tau.unsqueeze(-1).unsqueeze(-1)
    limit = 0.25 * torch.finfo(queries.scores.dtype).max  # for differences that are numbers
    x = queries.scores.clamp(-limit, limit)
    if queries.mask is not None:
        x = x.masked_fill(~queries.mask, 0.0)
    fixed = x.numel() > 0 and is_immediate(x, queries.gains)
    most = int(queries.positives.max()) if fixed else x.shape[-1]
    wanted, index = queries.gains.topk(most)
    distance = x.unsqueeze(-2) - x.gather(-1, index).unsqueeze(-1)
    # What is decided is taken out of the division: its derivative in tau would be 0 times inf.
    decided = distance.detach().abs() > DECIDED * tau
    ahead = torch.sigmoid(distance.masked_fill(decided, 0.0) / tau)
    ahead = torch.where(decided, (distance > 0).to(x.dtype), ahead)
    if queries.mask is not None:
        ahead = ahead.masked_fill(~queries.mask.unsqueeze(-2), 0.0)
    # An item is half ahead of itself, which makes the one that a rank begins with.
    rank = 0.5 + ahead.sum(-1)
    rank_among_positives = 0.5 + (ahead * queries.gains.unsqueeze(-2)).sum(-1)
    precision = (wanted * rank_among_positives / rank).sum(-1) / queries.positives
    return reduced(1.0 - precision, queries.valid, reduction, group)
