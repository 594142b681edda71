"""The relaxations by name, as the command line and the records of runs call them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar, overload

from torch import Tensor

from ..functional import soft_topk
from ._hard import hard_topk
from ._neural_sort import neural_sort
from ._relaxed_subset import relaxed_subset
from ._sinkhorn_sort import sinkhorn_sort
from ._successive_softmax import successive_softmax


class Relaxation(Protocol):
    """The signature that relaxations of the top-k share: scores (..., n) -> A (..., n).

    A function may have more keyword arguments, with defaults.
    """

    def __call__(
        self, scores: Tensor, k: int, *, eps: float = ..., mask: Tensor | None = None
    ) -> Tensor: ...


R = TypeVar("R", bound=Relaxation)

_relaxations: dict[str, Relaxation] = {}


@overload
def register(name: str, relaxation: R, *, replace: bool = False) -> R: ...


@overload
def register(name: str, *, replace: bool = False) -> Callable[[R], R]: ...


def register(
    name: str, relaxation: R | None = None, *, replace: bool = False
) -> R | Callable[[R], R]:
    """Give a relaxation a name for `get`, by a call or as a decorator.

    Args:
        name: Lower-case words joined by hyphens.
        relaxation: A callable with the signature of `Relaxation`; None makes a decorator.
        replace: Allow a name that is taken.

    >>> @register("uniform")
    ... def uniform(scores, k, *, eps=1.0, mask=None):
    ...     return torch.full_like(scores, k / scores.shape[-1])
    >>> get("uniform")(torch.zeros(4), 2)
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(
            f"name must be lower-case words joined by hyphens, such as 'my-top-k', got {name!r}"
        )
    if relaxation is None:
        return lambda decorated: register(name, decorated, replace=replace)
    if not callable(relaxation):
        raise TypeError(f"relaxation must be callable, got {relaxation!r}")
    if name in _relaxations and not replace:
        raise ValueError(
            f"name={name!r} is taken by {_relaxations[name]!r}; choose another or set replace=True"
        )
    _relaxations[name] = relaxation
    return relaxation


def get(relaxation: str | Relaxation) -> Relaxation:
    """The relaxation of that name; a callable is returned as it is.

    >>> get("neural-sort") is neural_sort
    True
    """
    if not isinstance(relaxation, str):
        if not callable(relaxation):
            raise TypeError(f"relaxation must be a name or callable, got {relaxation!r}")
        return relaxation
    if relaxation not in _relaxations:
        raise ValueError(
            f"there is no relaxation {relaxation!r}, only {', '.join(names())}; "
            "softtopk.relaxations.register(name, function) adds one"
        )
    return _relaxations[relaxation]


def is_ours(relaxation: str | Relaxation) -> bool:
    """Whether it is one of this package, and not one that a user wrote or registered."""
    return any(get(relaxation) is ours for ours in _ours)


def names() -> tuple[str, ...]:
    """The names of all relaxations, in the order of their registration.

    >>> names()[:3]
    ('soft-topk', 'neural-sort', 'stochastic-neural-sort')
    """
    return tuple(_relaxations)


register("soft-topk", soft_topk)
register("neural-sort", neural_sort)
register("stochastic-neural-sort", partial(neural_sort, stochastic=True))
register("sinkhorn-sort", sinkhorn_sort)
register("relaxed-subset", relaxed_subset)
register("successive-softmax", successive_softmax)
register("hard", hard_topk)
_ours = tuple(_relaxations.values())
