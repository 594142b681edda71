"""Classes with the names and the arguments of code that is in circulation, solved exactly.

For projects that have a copy of the paper's listing, or of an operator like it: change the import,
and the rest of the code stays. Each docstring has the call of this package that takes its place in
the end. docs/coming_from.md compares the numbers, and has the traps of the originals.

The two classes of the listing do what it does to the scores: the cost is divided by its largest
entry over the *whole batch*, so that rows depend on each other, and -inf becomes a finite score
below all others. They differ from it on purpose:

- The plan is exact, and so is its gradient, which can be differentiated again. The listing stops
  after ``max_iter`` iterations, converged or not.
- ``solver="sinkhorn"`` takes as many iterations as the listing and returns the same plan. The
  gradient is then the implicit one at that plan: the listing's if it has converged. If it has not,
  the listing's gradient mixes the marginals that it wants with those that the plan has.
- Device and dtype are those of the scores, which may have any number of batch dimensions.
"""

from __future__ import annotations

import math
import warnings
from typing import Literal

import torch
from torch import Tensor, nn

from ._checks import (
    Count,
    check_choice,
    check_flag,
    check_integer,
    check_integer_k,
    check_positive,
    check_scores,
)
from .functional import ConvergenceWarning, entropic_plan, soft_topk, sorted_soft_topk
from .functional._rows import compute_dtype

__all__ = ["SmallestTopK_custom", "TopK", "TopK_custom"]


class _Listing(nn.Module):
    """What the two classes share. As in the listing, the state dict is empty."""

    def __init__(
        self, k: int, epsilon: float, max_iter: int, solver: str, anchors: list[float]
    ) -> None:
        super().__init__()
        self.k = check_integer("k", k, low=0)
        self.epsilon = check_positive("epsilon", epsilon)
        self.max_iter = check_integer("max_iter", max_iter)
        check_choice("solver", solver, ("exact", "sinkhorn"))
        self.solver = solver
        self.anchors = torch.tensor(anchors).view(1, 1, -1)

    def _filled(self, scores: Tensor) -> Tensor:
        """Scores in which -inf is as far below the least score of the batch as that is below the
        largest."""
        check_scores(scores, -1)
        check_integer_k(self.k, scores.shape[-1])
        if not scores.numel():
            return scores
        missing, fixed, info = scores == -math.inf, scores.detach(), torch.finfo(scores.dtype)
        low, high = fixed.masked_fill(missing, math.inf).amin(), fixed.amax()
        return scores.masked_fill(missing, (low - (high - low)).clamp(info.min, info.max))

    def _plan(self, scores: Tensor, places: list[int]) -> Tensor:
        """The plan (..., n, m) after ``max_iter`` iterations, for columns of so many places."""
        n = scores.shape[-1]
        wide = scores.to(compute_dtype(scores.dtype))
        distance = wide.unsqueeze(-1) - self.anchors.flatten().to(wide)
        longest = distance.detach().abs().amax() if distance.numel() else 1.0
        cost = (distance / longest).square()  # in this order it cannot overflow
        mu = torch.full_like(cost[..., 0], 1 / n)
        nu = cost.new_tensor(places) / n
        with warnings.catch_warnings():
            # Nothing is within a tolerance of zero, which is to take all iterations.
            warnings.simplefilter("ignore", ConvergenceWarning)
            solved = entropic_plan(cost, mu, nu, self.epsilon, tol=0.0, max_iter=self.max_iter)
        return solved.plan.to(scores.dtype)

    def extra_repr(self) -> str:
        names = ("k", "epsilon", "max_iter", "solver")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


class TopK_custom(_Listing):
    """The sorted operator under the name and with the arguments of the paper's listing.

    Without the class: ``sorted_soft_topk(scores, k, eps=epsilon, normalize="batch")``, and better
    without ``normalize``, at an eps in units of the scores. -inf then stands for an element that
    takes no part; here it is a score like others, and is selected if k needs it.

    Args:
        k: How many ranks.
        epsilon: Regularisation of the normalised cost.
        max_iter: The iterations of ``solver="sinkhorn"``. The exact solver needs none.
        solver: ``"exact"``, or ``"sinkhorn"`` for the numbers of the original.

    Returns:
        ``(A, None)``, as the original, with A of shape (..., n, k), the largest element first.

    >>> select = TopK_custom(2, epsilon=0.01)
    >>> A, _ = select(torch.tensor([[0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1]]))
    >>> A.shape
    torch.Size([1, 7, 2])
    >>> A.argmax(1)
    tensor([[2, 3]])
    """

    def __init__(
        self,
        k: int,
        epsilon: float = 0.1,
        max_iter: int = 200,
        *,
        solver: Literal["exact", "sinkhorn"] = "exact",
    ) -> None:
        super().__init__(k, epsilon, max_iter, solver, [float(k - i) for i in range(k + 1)])

    def forward(self, scores: Tensor) -> tuple[Tensor, None]:
        """Scores (..., n) -> n times the plan's first k columns, (..., n, k), and None."""
        scores = self._filled(scores)
        if self.solver == "exact":
            return sorted_soft_topk(scores, self.k, eps=self.epsilon, normalize="batch"), None
        n = scores.shape[-1]
        places = [1] * self.k + [n - self.k]
        return n * self._plan(scores, places)[..., : self.k], None


class SmallestTopK_custom(_Listing):
    """The unsorted operator that is in circulation as ``TopK_custom`` too. It selects the smallest.

    Put it in the place of the original by
    ``from softtopk.compat import SmallestTopK_custom as TopK_custom``. Without the class:
    ``soft_topk(scores, k, eps=epsilon, largest=False, normalize="batch")``, and better without
    ``normalize``. Most callers negate their scores; with ``largest=True`` they need not. Without
    ``normalize`` that gives the same numbers (negated scores have another largest cost).

    Args:
        plan: Return the plan of shape (..., n, 2), as some copies do: A is n times its first
            column. (Of these, some divide the cost of every row by its own largest entry:
            ``soft_topk(..., normalize="row")``, with a divisor that has no gradient here.)

    The other arguments are those of `TopK_custom`. A score of -inf is filled as there, with a value
    below all others: it is the *first* to be selected.

    Returns:
        A (..., n), the soft indicator of the k smallest.

    >>> select = SmallestTopK_custom(2, epsilon=0.01)
    >>> select(torch.tensor([[0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1]])).round(decimals=2)
    tensor([[0., 0., 0., 0., 1., 0., 1.]])
    """

    def __init__(
        self,
        k: int,
        epsilon: float = 0.1,
        max_iter: int = 200,
        *,
        plan: bool = False,
        solver: Literal["exact", "sinkhorn"] = "exact",
    ) -> None:
        super().__init__(k, epsilon, max_iter, solver, [0.0, 1.0])
        check_flag("plan", plan)
        self.plan = plan

    def forward(self, scores: Tensor) -> Tensor:
        """Scores (..., n) -> A of the k smallest, or the plan if ``plan`` was set."""
        scores = self._filled(scores)
        n = scores.shape[-1]
        if self.solver == "sinkhorn":
            plan = self._plan(scores, [self.k, n - self.k])
            return plan if self.plan else n * plan[..., 0]
        a = soft_topk(scores, self.k, eps=self.epsilon, largest=False, normalize="batch")
        return torch.stack([a, 1.0 - a], -1) / n if self.plan else a


class TopK:
    """The operator that is in circulation as ``TopK.apply(xs, k)``: sigmoids that sum to k.

    sigmoid(alpha (xs + t)) along the last dimension, with the t at which they sum to k. The
    original finds t by bisection. Without the class: ``soft_topk(xs, k, eps=2 / alpha)``, which
    has further arguments. So it is SOFT top-k at eps = 2.

    What differs: no bisection, so no number of iterations; k may be 0 or n, and differ between
    rows; -inf takes no part, where the original returns NaN; the gradient can be differentiated
    again. Some copies forget alpha in the gradient.

    >>> TopK.apply(torch.tensor([[0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1]]), 2).sum()
    tensor(2.)
    """

    @staticmethod
    def apply(xs: Tensor, k: Count, alpha: float = 1.0) -> Tensor:
        """`softtopk.soft_topk` with ``eps = 2 / alpha``."""
        return soft_topk(xs, k, eps=2.0 / check_positive("alpha", alpha))
