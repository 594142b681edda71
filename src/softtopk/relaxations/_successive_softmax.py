"""Softmax k times, each time without the winners so far."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._candidates import CUTOFF, candidates_of, softmax


def successive_softmax(
    scores: Tensor, k: int, *, eps: float = 1.0, mask: Tensor | None = None
) -> Tensor:
    r"""Softmax k times: a softmax for each of the k largest, over what the earlier ones left.

    A relaxation of the sum of ``one_hot(argmax)`` over k rounds, of which each removes its winner,

    .. math::
        A = \sum_{j=1}^k \mathrm{softmax}\big(x^{(j)} / \epsilon\big),

    where :math:`x^{(j)}` is x with its j - 1 largest entries set to minus infinity.

    Args:
        scores: (..., n), floating; float16 and bfloat16 are computed in float32.
        k: How many to select, 0 <= k <= n.
        eps: Temperature of the softmax, positive.
        mask: Boolean, broadcasts to scores; True takes part. A masked element is treated as if it
            were deleted. So is a score of -inf. NaN or +inf makes its row NaN.

    Returns:
        A (..., n), not negative, with sum k, where at most k elements take part 1 everywhere. It
        is **not** bounded by one: the second of two equal scores far above the rest has 1/2 from
        the first round and 1 from the second. It is also not continuous: who is removed is a hard
        choice, so that A jumps where two of the k largest scores trade places, and tied scores
        differ in A in the order of `torch.topk`. Memory is O(k n) a row.

    >>> scores = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2])
    >>> successive_softmax(scores, 2, eps=0.5)
    tensor([0.0578, 0.1053, 0.6582, 1.1612, 0.0174])

    References:
        Baseline "Softmax k times" of Xie et al., Differentiable Top-k Operator with Optimal
        Transport, NeurIPS 2020, after Plötz and Roth, Neural Nearest Neighbors Networks, NeurIPS
        2018.
    """
    rows = candidates_of(scores, k, eps, mask)
    fixed = rows.scores.detach().masked_fill(~rows.part, -math.inf)
    best, index = fixed.topk(rows.k, dim=-1)
    rounds = torch.arange(rows.k, device=index.device)
    removed_in = torch.full_like(fixed, rows.k, dtype=torch.int64)
    removed_in = removed_in.scatter(-1, index, rounds.expand_as(index)).unsqueeze(-2)
    left = rows.part.unsqueeze(-2) & (removed_in >= rounds.unsqueeze(-1))  # (..., k, n)
    # Measured from the winner of its round an exponent near it keeps all its digits. A winner of
    # -inf is one of a round without anybody left; the clamp takes care of it. Its upper bound is
    # above the winner's exponent of zero: at a bound, clamp's derivative depends on the version of
    # torch.
    distance = rows.scores.unsqueeze(-2) - best.unsqueeze(-1)
    exponents = (distance / rows.eps).clamp(-CUTOFF, 1.0)
    return rows.settle(softmax(exponents, left).sum(-2))
