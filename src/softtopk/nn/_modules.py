"""The operators as modules."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .._checks import (
    Count,
    Dims,
    Strength,
    check_choice,
    check_dims,
    check_flag,
    check_k,
    check_ranks,
)
from ..functional import Normalize, Solver, soft_topk, sorted_soft_topk
from ..functional._rows import size_of
from ..functional._sinkhorn import sinkhorn_of
from ..functional._temperature import common_eps
from ._temperature import Tempered, brief


class _TopK(Tempered):
    """Holds the options of an operator.

    ``k`` may be a tensor: a parameter is registered as one and can be learned, any other tensor
    becomes a buffer that moves with the module.
    """

    k: Any
    _sorted: bool

    def __init__(
        self,
        k: Count,
        *,
        eps: Strength | None = None,
        width: float | None = None,
        learn_eps: bool = False,
        hard_eval: bool = False,
        dim: Dims = -1,
        largest: bool = True,
        normalize: Normalize = None,
        hard: bool = False,
        solver: Solver = "exact",
    ) -> None:
        super().__init__()
        # What does not depend on the scores is checked here rather than at the first call.
        self._check_k(k)
        check_flag("hard_eval", hard_eval)
        check_flag("largest", largest)
        check_choice("normalize", normalize, (None, "row", "batch"))
        check_flag("hard", hard)
        sinkhorn_of(solver)
        if eps is None and width is None:
            places = float(k.detach().double().mean()) if isinstance(k, Tensor) else k
            width = max(2.0, 2 * places)
        self._hold(eps, width, learn_eps, normalize=normalize)
        if isinstance(k, Tensor) and not isinstance(k, nn.Parameter):
            self.register_buffer("k", k)
        else:
            self.k = k
        self.hard_eval = hard_eval
        self.dim = dim
        self.largest = largest
        self.normalize: Normalize = normalize
        self.hard = hard
        self.solver: Solver = solver

    def _check_k(self, k: Any) -> None:
        raise NotImplementedError

    def _options(self, scores: Tensor, mask: Tensor | None, **rows: Any) -> dict[str, Any]:
        """The arguments of the operator besides the scores and k. ``rows`` says where they are."""

        def calibrate(width: float) -> Tensor:
            ragged = scores.is_nested or rows.get("offsets") is not None
            if not ragged:
                width = min(width, size_of(scores, check_dims(scores, self.dim)))
            return common_eps(
                scores,
                self.k,
                width=width,
                dim=self.dim,
                largest=self.largest,
                mask=mask,
                sorted=self._sorted,
                **rows,
            )

        hard = self.hard or (self.hard_eval and not self.training)
        return {
            "eps": self._eps_now(calibrate, hard, scores, self.k),
            "dim": self.dim,
            "largest": self.largest,
            "mask": mask,
            "normalize": self.normalize,
            "hard": hard,
            "solver": self.solver,
            **rows,
        }

    def extra_repr(self) -> str:
        temperature = "eps" if self.width is None else "width"
        names = ("k", temperature, "learn_eps", "hard_eval", "dim", "largest", "normalize", "hard")
        return ", ".join(f"{name}={brief(getattr(self, name))}" for name in (*names, "solver"))


def _own_batch(k: object) -> torch.Size:
    return k.shape if isinstance(k, Tensor) else torch.Size()


class SoftTopK(_TopK):
    """`softtopk.soft_topk` as a module.

    Args:
        k: As in `soft_topk`; a tensor that is a parameter can be learned.
        eps: The temperature, in units of the scores.
        width: Instead: how many elements shall be undecided. The first training batch decides eps
            (`softtopk.eps_for`, the median of its rows), which is then kept, in the state dict too,
            as ``calibrated_eps``. So scores that grow in training sharpen the selection. Without
            ``eps`` and ``width``, the width is 2 k. A width above the size of a row is that size.
        learn_eps: Learn eps from there: its logarithm is the parameter ``log_eps``.
        hard_eval: In eval mode return the exact selection.
        dim, largest, normalize, hard, solver: As in `soft_topk`.

    ``recalibrate()`` lets the next training batch decide again, and `WidthSchedule` anneals the
    width. In eval mode before any training batch, every call has the eps of its own scores. A batch
    without a scale, such as scores that are all zero, decides nothing. Ragged rows are given as to
    `soft_topk`: ``select(scores, offsets=offsets)``, or nested scores. With several processes,
    calibrate before ``DistributedDataParallel`` takes the module, or give an eps.

    >>> select = SoftTopK(2, width=4)
    >>> select(torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1])).round(decimals=2)
    tensor([0.0200, 0.0500, 0.8900, 0.7000, 0.0000, 0.3300, 0.0100])
    >>> select.eps.item() > 0
    True
    """

    _sorted = False

    def _check_k(self, k: Any) -> None:
        check_k(k, math.inf, _own_batch(k))

    def forward(
        self, scores: Tensor, mask: Tensor | None = None, offsets: Tensor | None = None
    ) -> Tensor:
        """A of the scores, in their shape; the arguments are those of `soft_topk`."""
        return soft_topk(scores, self.k, **self._options(scores, mask, offsets=offsets))


class SortedSoftTopK(_TopK):
    """`softtopk.sorted_soft_topk` as a module; the arguments are those of `SoftTopK`.

    >>> SortedSoftTopK(2)(torch.tensor([0.4, 0.7, 2.3, 1.9])).shape
    torch.Size([4, 2])
    """

    _sorted = True

    def _check_k(self, k: Any) -> None:
        check_ranks(k, math.inf, _own_batch(k))

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores (..., n) -> (..., n, k), as `sorted_soft_topk` returns them."""
        return sorted_soft_topk(scores, self.k, **self._options(scores, mask))
