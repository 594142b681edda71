"""Pruning to a budget, with the choice of the weights learned."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._checks import Strength, check_flag, check_integer
from ..functional import soft_topk
from ._temperature import Tempered, check_ratio, share_of, width_to_eps


class TopKPruning(Tempered):
    """A parametrization: the k weights of largest magnitude stay. See `topk_prune_`."""

    def __init__(
        self,
        k: int,
        *,
        eps: Strength | None = None,
        width: float | None = None,
        hard: bool = False,
    ) -> None:
        super().__init__()
        check_flag("hard", hard)
        self.k, self.hard = check_integer("k", k), hard
        if eps is None and width is None:
            width = max(2.0, 2.0 * k)
        self._hold(eps, width, False)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask(weight)

    def mask(self, weight: Tensor) -> Tensor:
        """The soft selection of the weights in training, in eval mode exactly k ones."""
        size = weight.abs().flatten()
        hard = self.hard or not self.training
        eps = self._eps_now(width_to_eps(size, self.k, self.k), hard, size)
        return soft_topk(size, self.k, eps=eps, hard=hard).view(weight.shape)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """What is assigned to the weight is what is pruned."""
        return weight

    def extra_repr(self) -> str:
        return f"k={self.k}, {self._shown()}, hard={self.hard}"


def topk_prune_(
    module: nn.Module,
    name: str = "weight",
    *,
    k: int | None = None,
    density: float | None = None,
    eps: Strength | None = None,
    width: float | None = None,
    hard: bool = False,
) -> TopKPruning:
    """Train with a budget: all but k weights of a module become zero, and which is learned.

    A relaxation of magnitude pruning, ``weight * mask`` with the mask of
    ``weight.abs().flatten().topk(k).indices``: in training the mask is the soft top-k of the
    magnitudes of the whole tensor, so a weight below the threshold is smaller, not gone, has a
    gradient, and can come back. In eval mode the mask is exact. It is registered by
    ``torch.nn.utils.parametrize``: the optimiser, ``state_dict`` and ``deepcopy`` see the dense
    weight as ``module.parametrizations.<name>.original``. So make the optimiser afterwards.

    Args:
        module: One that has the parameter ``name``; changed in place.
        k: How many weights stay.
        density: Instead: which share of them, between 0 and 1, rounded up.
        eps: The temperature, in units of the weights.
        width: Instead: how many weights shall be undecided on the first training batch, as in
            `SoftTopK`. Without eps and width: 2 k. Anneal it by `WidthSchedule`, so that training
            ends near the exact mask.
        hard: In training too the mask is exact, with the gradient of the soft one
            (straight-through).

    Returns:
        The parametrization, a `TopKPruning`. When training is over, `finish_pruning` puts the
        pruned weights in its place.

    >>> layer = torch.nn.Linear(20, 10)
    >>> pruning = topk_prune_(layer, density=0.1)
    >>> layer.eval().weight.count_nonzero()
    tensor(20)
    >>> finish_pruning(layer)
    >>> layer.weight.count_nonzero(), isinstance(layer.weight, torch.nn.Parameter)
    (tensor(20), True)
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"name must be a parameter of {type(module).__name__}, got name={name!r}")
    if (k is None) == (density is None):
        raise ValueError(f"give k, a number of weights, or density, got k={k}, density={density}")
    if k is None:
        k = share_of(check_ratio("density", density or 0.0), weight.numel())
    elif check_integer("k", k) > weight.numel():
        raise ValueError(f"k must be at most the {weight.numel()} weights of {name}, got k={k}")
    pruning = TopKPruning(k, eps=eps, width=width, hard=hard).to(weight.device)
    pruning.train(module.training)
    parametrize.register_parametrization(module, name, pruning)
    return pruning


def finish_pruning(model: nn.Module) -> None:
    """Make every `topk_prune_` inside ``model`` permanent: exact masks, ordinary parameters."""
    for module in list(model.modules()):
        for name, found in list(getattr(module, "parametrizations", {}).items()):
            if any(isinstance(part, TopKPruning) for part in found):
                found.eval()
                parametrize.remove_parametrizations(module, name)
