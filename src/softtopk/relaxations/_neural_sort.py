"""NeuralSort: a row-wise softmax in the place of the permutation matrix that sorts."""

from __future__ import annotations

import math
from numbers import Integral

import torch
import torch.nn.functional as F
from torch import Tensor

from .._checks import check_flag
from ._candidates import CUTOFF, Candidates, candidates_of, check_generator, gumbel_like, softmax


def neural_sort(
    scores: Tensor,
    k: int,
    *,
    eps: float = 1.0,
    mask: Tensor | None = None,
    stochastic: bool = False,
    samples: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""NeuralSort: the first k rows of a relaxed sorting permutation, summed.

    A relaxation of ``one_hot(scores.argsort(descending=True))[:k].sum(0)``. The row of rank i is

    .. math::
        \hat P_i = \mathrm{softmax}\big(((n + 1 - 2 i)\, x - A_x 1) / \epsilon\big), \quad
        (A_x)_{jl} = |x_j - x_l|, \qquad A = \sum_{i=1}^k \hat P_i.

    Args:
        scores: (..., n), floating; float16 and bfloat16 are computed in float32.
        k: How many to select, 0 <= k <= n.
        eps: Temperature of the softmax (tau of the reference), positive.
        mask: Boolean, broadcasts to scores; True takes part. A masked element is treated as if it
            were deleted. So is a score of -inf. NaN or +inf makes its row NaN.
        stochastic: Add Gumbel noise to the scores. They are then the log-weights of a Plackett-Luce
            distribution over permutations, and its expected selection is what is relaxed.
        samples: How many noisy copies to average over, if ``stochastic``.
        generator: Source of the noise, if ``stochastic``.

    Returns:
        A (..., n), not negative, with sum k, where at most k elements take part 1 everywhere. It
        is **not** bounded by one: the rows of the matrix sum to one, its columns need not. The
        derivative has kinks at ties, where it is one of the one-sided ones. Memory is O(k n) for
        each row and sample.

    >>> scores = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2])
    >>> neural_sort(scores, 2)
    tensor([0.0607, 0.1542, 0.9099, 0.8722, 0.0029])
    >>> noisy = neural_sort(scores, 2, stochastic=True, samples=100)
    >>> round(noisy.sum().item(), 4)
    2.0

    References:
        Grover et al., Stochastic Optimization of Sorting Networks via Continuous Relaxations,
        ICLR 2019.
    """
    check_flag("stochastic", stochastic)
    _check_samples(samples, stochastic)
    check_generator(generator, stochastic, "set stochastic=True")
    rows = candidates_of(scores, k, eps, mask)
    if not stochastic:
        return rows.settle(_first_rows(rows, rows.scores))
    copies = rows.scores.expand(samples, *rows.scores.shape)
    noisy = copies + gumbel_like(copies.detach(), generator)
    return rows.settle(_first_rows(rows, noisy).mean(0))


def _check_samples(samples: int, stochastic: bool) -> None:
    if isinstance(samples, bool) or not isinstance(samples, Integral):
        raise TypeError(f"samples must be an int, got {samples!r}")
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got samples={samples}")
    if samples != 1 and not stochastic:
        raise ValueError(f"samples={samples} has no effect without noise; set stochastic=True")


def _first_rows(rows: Candidates, x: Tensor) -> Tensor:
    """The sum of the first k rows: (..., n) -> (..., n).

    In descending order x_0 >= x_1 >= ..., with ranks counted from zero, the exponents of row i fall
    off from their maximum, at rank i, by |2 (m - i) + 1| (x_m - x_(m+1)) on the way from rank m to
    m + 1 or back: the sums of absolute differences of neighbours differ by
    (2 m + 2 - n) (x_m - x_(m+1)), and n cancels. So sorting gives the exponents in O(k n) after
    O(n log n), without the n x n differences, as sums of terms of one sign, which lose no digits at
    a low temperature, and without regard to what is masked, which comes last. The function is the
    same, kinks at ties included; the derivative there is the one for the order of the sort.
    """
    keys = x.detach().masked_fill(~rows.part, -math.inf)
    order = keys.argsort(dim=-1, descending=True, stable=True)
    ordered = x.gather(-1, order)
    inside = torch.arange(rows.n, device=x.device) < rows.size
    # The lower bound is below the gap of a tie: at a bound, clamp's derivative depends on torch's
    # version. Only gaps of what is masked are negative, and those are filled.
    gaps = ((ordered[..., :-1] - ordered[..., 1:]) / rows.eps).clamp(-1.0, CUTOFF)
    gaps = gaps.masked_fill(~inside[..., 1:], 0.0).unsqueeze(-2)

    steps = torch.arange(rows.n - 1, device=x.device)
    ranks = torch.arange(rows.k, device=x.device).unsqueeze(-1)
    weight = (2 * (steps - ranks) + 1).to(x.dtype)  # (k, n - 1)
    behind = (gaps * weight.clamp(min=0)).cumsum(-1)
    near = max(rows.k - 1, 0)  # how many gaps lie ahead of any of the rows
    ahead = (gaps[..., :near] * (-weight[:, :near]).clamp(min=0)).flip(-1).cumsum(-1).flip(-1)
    distance = F.pad(behind, (1, 0)) + F.pad(ahead, (0, rows.n - near))
    selection = softmax(-distance, inside.unsqueeze(-2)).sum(-2)
    return torch.zeros_like(selection).scatter(-1, order, selection)
