"""What the relaxations share: argument checks, masks, the rows that leave nothing to choose, noise.

A relaxation sees rows ``(..., n)`` of finite float32 or float64 and which elements take part. It
returns whatever its formula says; `Candidates.settle` puts right everything that is not its
business.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import check_eps, check_integer_k, check_mask, check_scores
from .._random import source
from ..functional._rows import compute_dtype

#: exp(-CUTOFF) is zero in every dtype. What lies further below the largest exponent can be moved up
#: to it without any effect, and then neither overflows nor puts 0 * inf into a derivative.
CUTOFF = 1e4


class Candidates(NamedTuple):
    """The arguments that all relaxations share, checked."""

    scores: Tensor  #: (..., n), float32 or float64, finite; 0 where an element takes no part
    part: Tensor  #: (..., n), boolean: which elements take part
    broken: Tensor  #: (..., 1), boolean: rows with a NaN or +inf that takes part
    k: int
    eps: float
    dtype: torch.dtype  #: of the scores as given

    @property
    def n(self) -> int:
        return self.scores.shape[-1]

    @property
    def size(self) -> Tensor:
        """How many take part, (..., 1)."""
        return self.part.sum(-1, keepdim=True)

    def settle(self, selection: Tensor) -> Tensor:
        """``selection`` (..., n), with ones in rows in which at most k elements take part, and
        zeros at elements that take none, in the dtype of the scores as given."""
        selection = torch.where(self.size <= self.k, 1.0, selection)
        selection = selection.masked_fill(self.broken, math.nan).masked_fill(~self.part, 0.0)
        return selection.to(self.dtype)


def candidates_of(scores: Tensor, k: int, eps: float, mask: Tensor | None) -> Candidates:
    """Check the arguments."""
    dim = check_scores(scores, -1)
    k = check_integer_k(k, scores.shape[dim], "this relaxation")
    if isinstance(eps, Tensor):
        raise TypeError(
            f"eps must be a float for this relaxation, got a tensor of shape {tuple(eps.shape)}; "
            "only soft_topk takes a tensor"
        )
    eps = float(check_eps(eps, scores.shape[:-1]))
    check_mask(mask, scores)
    part = scores != -math.inf
    if mask is not None:
        part = part & mask
    # Filling before anything else makes a masked element equal to a deleted one, NaN included.
    x = scores.to(compute_dtype(scores.dtype)).masked_fill(~part, 0.0)
    infinite = ~x.isfinite()
    broken = infinite.any(-1, keepdim=True)
    return Candidates(x.masked_fill(infinite, 0.0), part, broken, k, eps, scores.dtype)


def softmax(exponents: Tensor, part: Tensor) -> Tensor:
    """Softmax over the elements that take part, and zeros for the others: (..., n) -> (..., n).

    The fill is finite, so that a row in which none takes part is no NaN.
    """
    lowest = torch.finfo(exponents.dtype).min
    weights = torch.softmax(exponents.masked_fill(~part, lowest), -1)
    return weights.masked_fill(~part, 0.0)


def gumbel_like(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard Gumbel noise of the shape and dtype of x: minus the log of exponential noise."""
    generator = source() if generator is None else generator
    return -torch.empty_like(x).exponential_(generator=generator).log()


def check_generator(generator: torch.Generator | None, noisy: bool, remedy: str) -> None:
    """A generator must be one, and there must be something for it to generate."""
    if generator is None:
        return
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator or None, got {generator!r}; "
            "use torch.Generator().manual_seed(...)"
        )
    if not noisy:
        raise ValueError(f"generator has no effect without noise; {remedy} or leave it out")
