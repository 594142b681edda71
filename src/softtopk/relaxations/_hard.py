"""The hard top-k, as a baseline with the signature of the relaxations."""

from __future__ import annotations

import math

from torch import Tensor

from ._candidates import candidates_of


def hard_topk(scores: Tensor, k: int, *, eps: float = 1.0, mask: Tensor | None = None) -> Tensor:
    r"""Hard top-k: the 0/1 indicator of the k largest elements, relaxed by nothing.

    ``torch.zeros_like(scores).scatter(-1, scores.topk(k).indices, 1.0)``, which is what the
    relaxations become as eps -> 0.

    Args:
        scores: (..., n), floating.
        k: How many to select, 0 <= k <= n.
        eps: Checked, and without effect: this is the limit eps -> 0. It is there so that a sweep
            over relaxations and temperatures can include the hard selection.
        mask: Boolean, broadcasts to scores; True takes part. A masked element is treated as if it
            were deleted. So is a score of -inf. NaN or +inf makes its row NaN.

    Returns:
        A (..., n), in {0, 1}, with sum k, or 1 everywhere in a row with fewer than k elements.
        Ties are broken as `torch.topk` breaks them. The gradient is zero, as that of any piecewise
        constant function: what stands before it is not trained.

    >>> hard_topk(torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2]), 2)
    tensor([0., 0., 1., 1., 0.])
    """
    rows = candidates_of(scores, k, eps, mask)
    index = rows.scores.detach().masked_fill(~rows.part, -math.inf).topk(rows.k, dim=-1).indices
    # Not zeros_like: like that of the relaxations, the result depends on the scores for autograd.
    nothing = rows.scores - rows.scores
    return rows.settle(nothing.scatter(-1, index, 1.0))
