"""Pruning: a weight that keeps its k largest entries, learned while it is trained."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._checks import check_integer_k
from ._modules import SoftTopK
from ._temperature import check_ratio, share_of


class TopKPruning(SoftTopK):
    """A weight times the soft top-k of its magnitudes: what `topk_prune_` parametrises a module by.

    A relaxation of ``torch.where(w.abs() >= w.abs().flatten().topk(k).values[-1], w, 0)``, and in
    eval mode exactly that, but of equal magnitudes the first are kept. All dimensions of the weight
    are one row.
    """

    def forward(self, weight: Tensor) -> Tensor:  # type: ignore[override]
        """The weight, times the soft selection of its largest magnitudes."""
        return weight * super().forward(weight.abs())


def topk_prune_(
    module: nn.Module,
    name: str = "weight",
    *,
    k: int | None = None,
    density: float | None = None,
    eps: float | None = None,
    width: float | None = None,
    learn_eps: bool = False,
    hard: bool = False,
) -> nn.Module:
    """Train a weight of a module to a budget: the k largest entries stay, the others become zero.

    Magnitude pruning after training removes what the network relies on. Here the weight that the
    module uses is its own times `soft_topk` of the magnitudes, from the first step on: entries near
    the threshold compete for the k places by their gradient. `WidthSchedule` makes the choice
    harder step by step; in eval mode it is exact; `finish_pruning_` makes it so for good. An entry
    far below the threshold gets hardly any gradient, so begin with a large width.

    Args:
        module: The module with the weight, such as a linear layer. It is changed in place.
        name: The name of the parameter.
        k: How many entries stay; or
        density: which share of them, above 0 and at most 1, rounded up.
        eps, width, learn_eps, hard: As in `SoftTopK`. Without ``eps`` and ``width``, the width is
            the number of entries that stay. eps follows from a width now and whenever that is set:
            call ``recalibrate()`` after you have loaded other weights.

    Returns:
        The module. It is parametrised by ``torch.nn.utils.parametrize``: the optimiser gets the
        dense weight, ``module.parametrizations[name].original``. Make the optimiser afterwards.

    >>> layer = topk_prune_(nn.Linear(20, 10), density=0.1)
    >>> layer.eval().weight.count_nonzero()
    tensor(20)
    """
    if parametrize.is_parametrized(module, name):
        raise ValueError(
            f"name={name!r} is parametrised already, by a pruning or by something else"
        )
    weight = getattr(module, name, None)
    if not isinstance(weight, nn.Parameter) or not weight.is_floating_point() or not weight.numel():
        raise ValueError(
            f"name must be that of a parameter of floating dtype with entries, got name={name!r} "
            f"for {type(module).__name__}"
        )
    if (k is None) == (density is None):
        raise ValueError(f"give k or density, one of them, got k={k} and density={density}")
    n = weight.numel()
    if density is not None:
        k = share_of(check_ratio("density", density), n)
    k = check_integer_k(k, n, "pruning")  # type: ignore[arg-type]
    if eps is None and width is None:
        width = max(1, min(k, n - k))
    pruning = TopKPruning(
        k,
        eps=eps,
        width=width,
        learn_eps=learn_eps,
        hard=hard,
        hard_eval=True,
        dim=tuple(range(weight.ndim)),
    )
    pruning.to(device=weight.device).train(module.training)
    parametrize.register_parametrization(module, name, pruning)
    return module


def finish_pruning_(model: nn.Module) -> nn.Module:
    """Make every choice of `topk_prune_` in a model hard for good: the weights are parameters
    again, with zeros where nothing was kept.

    They are dense: a training that goes on will fill the zeros. A deep copy of a pruned module
    shares its class in torch, and loses its weight with this call: copy afterwards.

    >>> layer = finish_pruning_(topk_prune_(nn.Linear(20, 10), k=5))
    >>> layer.weight.count_nonzero()
    tensor(5)
    """
    for module in list(model.modules()):
        if not parametrize.is_parametrized(module):
            continue
        for name, parts in list(module.parametrizations.items()):  # type: ignore[operator,union-attr]
            if any(isinstance(part, TopKPruning) for part in parts):
                parts.eval()
                parametrize.remove_parametrizations(module, name)
    return model
