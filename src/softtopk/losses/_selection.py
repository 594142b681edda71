"""Losses of a selection: how many positives are among the k largest, and whether there is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._checks import Strength, check_flag
from ..functional import soft_topk
from ._queries import (
    Cutoffs,
    Queries,
    Reduction,
    cutoffs_of,
    queries_of,
    reduced,
    selected,
    weighted,
)


def recall_at_k_loss(
    scores: Tensor,
    positives: Tensor,
    k: Cutoffs,
    *,
    weights: Sequence[float] | None = None,
    eps: Strength | None = None,
    mask: Tensor | None = None,
    capped: bool = False,
    reduction: Reduction = "mean",
    group: Any = None,
) -> Tensor:
    r"""One minus recall@k: the share of a query's positives that are not among its k largest.

    With A the soft indicator of the k largest (`softtopk.soft_topk`) and P the positives, it is

    .. math:: 1 - \frac{1}{|P|} \sum_{i \in P} A_i,

    a relaxation of ``1 - positives.gather(-1, scores.topk(k).indices).sum(-1) / positives.sum(-1)``
    and equal to it as eps -> 0. It costs a call of the operator, O(n).

    Args:
        scores: (..., n), one score for each of the n items of every query. Higher is better. An
            item at -inf is never found.
        positives: (..., n), boolean: the items that should be found.
        k: The cutoff, or a list or tuple of them: the loss is then the mean over all of these, in
            one call. Where there are fewer than k items, all are selected.
        weights: For the mean over several cutoffs, a number for each; the default is equal ones.
        eps: Temperature, a float or a tensor that broadcasts to the shape (...) of the queries.
            None is 0.3 standard deviations of the query's scores, detached: their scale does not
            matter then. Scores that are far below all others, such as -1e9, do not count in it.
        mask: Boolean, broadcasts to scores; True takes part. A masked item is treated as if it were
            deleted, and a masked positive does not count.
        capped: Divide by min(k, positives) in place of the positives, so that the loss can reach 0
            with more than k positives, and several cutoffs have an equal say.
        reduction: ``"mean"`` or ``"sum"`` over the queries that have a positive (`valid_queries`),
            or ``"none"``: (...), with 0 for the others. The mean of no query is 0, with a gradient
            of zero.
        group: A process group of ``torch.distributed``, such as ``torch.distributed.group.WORLD``.
            The mean is then over the queries of all its ranks, by `softtopk.distributed.mean`. None
            is this process alone.

    Returns:
        The loss, between 0 and 1; float32 if the scores have a half precision.

    Items with equal scores share the places that are left for them: their loss is the expected one
    when ties are broken at random.

    >>> scores = torch.tensor([[0.9, 0.3, 0.5, 0.1]])
    >>> positives = torch.tensor([[True, True, False, False]])
    >>> recall_at_k_loss(scores, positives, 2, eps=1e-3)
    tensor(0.5000)
    >>> recall_at_k_loss(scores, positives, (1, 2, 3), eps=1e-3)
    tensor(0.3333)

    References:
        Patel, Tolias and Matas, Recall@k Surrogate Loss with Large Batches and Similarity Mixup,
        CVPR 2022, who relax the ranks.
    """
    queries = queries_of(scores, positives, mask)
    check_flag("capped", capped)
    ks, shares = cutoffs_of(k, weights)
    found = _found(queries, ks, eps)
    wanted = queries.positives.unsqueeze(-1)
    if capped:
        wanted = torch.minimum(wanted, wanted.new_tensor(ks))
    return reduced(1.0 - weighted(found / wanted, shares), queries.valid, reduction, group)


def precision_at_k_loss(
    scores: Tensor,
    positives: Tensor,
    k: Cutoffs,
    *,
    weights: Sequence[float] | None = None,
    eps: Strength | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    group: Any = None,
) -> Tensor:
    r"""One minus precision@k: the share of the k largest that are no positives.

    With A and P as for `recall_at_k_loss` it is

    .. math:: 1 - \frac{1}{k} \sum_{i \in P} A_i,

    a relaxation of ``1 - positives.gather(-1, scores.topk(k).indices).sum(-1) / k`` and equal to it
    as eps -> 0. It divides by k also where there are fewer than k items.

    Arguments, result and ties as for `recall_at_k_loss`.

    >>> scores = torch.tensor([[0.9, 0.3, 0.5, 0.1]])
    >>> positives = torch.tensor([[True, True, False, False]])
    >>> precision_at_k_loss(scores, positives, 3, eps=1e-3)
    tensor(0.3333)
    """
    queries = queries_of(scores, positives, mask)
    ks, shares = cutoffs_of(k, weights)
    found = _found(queries, ks, eps)
    losses = 1.0 - weighted(found / found.new_tensor(ks), shares)
    return reduced(losses, queries.valid, reduction, group)


def hit_at_k_loss(
    scores: Tensor,
    positives: Tensor,
    k: Cutoffs,
    *,
    weights: Sequence[float] | None = None,
    eps: Strength | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    group: Any = None,
) -> Tensor:
    r"""One minus hit@k: whether none of the positives is among the k largest.

    With A and P as for `recall_at_k_loss` it is

    .. math:: \prod_{i \in P} (1 - A_i),

    the probability that no positive is selected if each were selected by itself with probability A.
    It is a relaxation of ``~positives.gather(-1, scores.topk(k).indices).any(-1)`` and equal to it
    as eps -> 0. In metric learning hit@k is known as Recall@K, and in classification, with one
    positive, as top-k accuracy.

    Arguments and result as for `recall_at_k_loss`.

    >>> scores = torch.tensor([[0.9, 0.3, 0.5, 0.1], [0.1, 0.3, 0.5, 0.9]])
    >>> positives = torch.tensor([[True, True, False, False], [True, True, False, False]])
    >>> hit_at_k_loss(scores, positives, 2, eps=1e-3)
    tensor(0.5000)
    """
    queries = queries_of(scores, positives, mask)
    ks, shares = cutoffs_of(k, weights)
    indicator = selected(soft_topk, queries.scores, ks, eps, queries.mask)
    missed = (1.0 - indicator * queries.gains.unsqueeze(-2)).prod(-1)
    return reduced(weighted(missed, shares), queries.valid, reduction, group)


def _found(queries: Queries, ks: Sequence[int], eps: Strength | None) -> Tensor:
    """How many positives are selected at each cutoff: (..., cutoffs)."""
    indicator = selected(soft_topk, queries.scores, ks, eps, queries.mask)
    return (indicator * queries.gains.unsqueeze(-2)).sum(-1)
