"""The operators as modules."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .._checks import Count, Strength, check_choice, check_eps, check_flag, check_integer_k, check_k
from ..functional import Normalize, Solver, soft_topk, sorted_soft_topk
from ..functional._sinkhorn import sinkhorn_of


class _TopK(nn.Module):
    """Holds the options of an operator.

    ``k`` and ``eps`` may be tensors: a parameter is registered as one and can be learned, any other
    tensor becomes a buffer that moves with the module.
    """

    k: Any
    eps: Any

    def __init__(
        self,
        k: Count,
        *,
        eps: Strength = 0.1,
        dim: int = -1,
        largest: bool = True,
        normalize: Normalize = None,
        hard: bool = False,
        solver: Solver = "exact",
    ) -> None:
        super().__init__()
        # What does not depend on the scores is checked here rather than at the first call.
        check_eps(eps, eps.shape if isinstance(eps, Tensor) else torch.Size())
        check_flag("largest", largest)
        check_choice("normalize", normalize, (None, "row", "batch"))
        check_flag("hard", hard)
        sinkhorn_of(solver)
        self._hold("k", k)
        self._hold("eps", eps)
        self.dim = dim
        self.largest = largest
        self.normalize = normalize
        self.hard = hard
        self.solver = solver

    def _hold(self, name: str, value: Count | Strength) -> None:
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            self.register_buffer(name, value)
        else:
            setattr(self, name, value)

    def _options(self) -> dict[str, Any]:
        names = ("eps", "dim", "largest", "normalize", "hard", "solver")
        return {name: getattr(self, name) for name in names}

    def extra_repr(self) -> str:
        options = {"k": self.k, **self._options()}
        return ", ".join(f"{name}={_brief(value)}" for name, value in options.items())


def _brief(value: object) -> str:
    if isinstance(value, Tensor) and value.numel() != 1:
        return f"tensor of shape {tuple(value.shape)}"
    return f"{value.item():.6g}" if isinstance(value, Tensor) else repr(value)


class SoftTopK(_TopK):
    """`softtopk.soft_topk` as a module, with the same options.

    >>> select = SoftTopK(2, eps=torch.nn.Parameter(torch.tensor(1.0)))  # a learnable temperature
    >>> select(torch.tensor([0.4, 0.7, 2.3, 1.9])).detach()
    tensor([0.1372, 0.2246, 0.8767, 0.7615])
    """

    def __init__(self, k: Count, **options: Any) -> None:
        check_k(k, math.inf, k.shape if isinstance(k, Tensor) else torch.Size())
        super().__init__(k, **options)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return soft_topk(scores, self.k, mask=mask, **self._options())


class SortedSoftTopK(_TopK):
    """`softtopk.sorted_soft_topk` as a module, with the same options.

    >>> SortedSoftTopK(2, eps=0.1)(torch.tensor([0.4, 0.7, 2.3, 1.9])).shape
    torch.Size([4, 2])
    """

    def __init__(self, k: int, **options: Any) -> None:
        super().__init__(check_integer_k(k, math.inf), **options)

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        return sorted_soft_topk(scores, self.k, mask=mask, **self._options())
