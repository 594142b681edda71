"""A router for mixtures of experts."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from .._checks import Strength, check_choice, check_integer, check_mask, check_positive
from ..functional import balanced_soft_topk, soft_topk
from ..functional._rows import compute_dtype, indices_of
from ..functional._softmax import softmax_or_zero
from ._temperature import Tempered, share_of, width_to_eps

Choice = Literal["token", "expert", "both"]


class Routing(NamedTuple):
    """Result of `TopKRouter`, for tokens (..., T, d) and E experts."""

    gates: Tensor
    """(..., T, E): the weights of a dense mixture, in which every expert sees every token. In
    training all are above zero; in eval mode only those of chosen pairs are."""
    dispatch: Tensor
    """(..., T, E), boolean: the chosen pairs, exactly."""
    indices: Tensor
    """(..., T, k): the experts of every token, ascending. With ``choice="expert"`` (..., E, c): the
    tokens of every expert."""
    weights: Tensor
    """The gates of these pairs, divided by their sum for every token (not with
    ``choice="expert"``): what a sparse mixture weighs by, the same in training and in eval mode. 0
    where a masked token has none."""
    load: Tensor
    """(..., E): how much every expert takes, the sum of the selection over the tokens."""


class TopKRouter(Tempered):
    """Decides which of ``n_experts`` experts see a token, and learns it without a balancing loss.

    A relaxation of ``gate(tokens).topk(k)``. With scores f = gate(tokens) and the soft selection A,
    the gates are softmax(f + log A) over the experts, as in `soft_topk_softmax`: in the limit
    eps -> 0 the softmax among the chosen ones. A is one of

    - ``choice="token"``: every token its k best experts, ``soft_topk(f, k)``. Nothing limits how
      many tokens an expert gets.
    - ``choice="expert"``: every expert its c best tokens, ``soft_topk(f, c, dim=-2)``. The load is
      exact, but a token may have any number of experts, also none; so the gates are A softmax(f),
      whose sum is not one.
    - ``choice="both"``: every token k experts, and no expert more than c tokens, in one problem:
      `balanced_soft_topk`, in eval mode the best assignment that meets both.

    with the capacity c = ceil(capacity_factor k T / n_experts), T the tokens that take part.

    **Causality**: with "expert" and "both" the experts of a token depend on the other tokens of its
    sequence (of the axis T), also on later ones, in training and in evaluation. A language model
    that generates token by token needs "token". Leading axes are problems of their own: flatten
    (batch, T, d) to (batch * T, d) to balance over the batch.

    Args:
        n_experts: E.
        k: Experts of every token.
        dim: The size d of a token, for a linear gate ``nn.Linear(dim, n_experts, bias=False)``.
        gate: Instead: a module (..., T, d) -> (..., T, E).
        choice: See above.
        capacity_factor: At least 1; 1 is perfect balance. Not for "token".
        eps: The temperature, in units of the scores. Without eps and width it is 2: tau = 1, that
            of the softmax in the gates, to which a gate learns to scale its scores.
        width: Instead: how many experts of a token (for "expert": tokens of an expert) shall be
            undecided on the first training batch, as in `SoftTopK`.
        learn_eps: As in `SoftTopK`.

    Called with tokens (..., T, d) and a ``mask`` (..., T), True takes part. A masked token has no
    expert, takes no capacity, and may hold anything.

    A whole mixture, which computes the chosen pairs only:

    >>> experts = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
    >>> router = TopKRouter(4, 2, dim=8, choice="both")
    >>> tokens = torch.randn(10, 8)
    >>> routing = router(tokens)
    >>> mixed = torch.zeros_like(tokens)
    >>> for e, expert in enumerate(experts):
    ...     token, place = (routing.indices == e).nonzero(as_tuple=True)
    ...     weight = routing.weights[token, place].unsqueeze(-1)
    ...     mixed = mixed.index_add(0, token, weight * expert(tokens[token]))
    >>> routing.dispatch.sum(0)  # 10 tokens, 2 experts each
    tensor([5, 5, 5, 5])
    """

    def __init__(
        self,
        n_experts: int,
        k: int = 2,
        *,
        dim: int | None = None,
        gate: nn.Module | None = None,
        choice: Choice = "token",
        capacity_factor: float = 1.0,
        eps: Strength | None = None,
        width: float | None = None,
        learn_eps: bool = False,
    ) -> None:
        super().__init__()
        self.n_experts, self.k = check_integer("n_experts", n_experts), check_integer("k", k)
        if k > n_experts:
            raise ValueError(f"k must be at most n_experts={n_experts}, got k={k}")
        if (dim is None) == (gate is None):
            raise ValueError("give dim, for a linear gate, or gate, a module, and not both")
        check_choice("choice", choice, ("token", "expert", "both"))
        if check_positive("capacity_factor", capacity_factor) < 1:
            raise ValueError(f"capacity_factor must be at least 1, got {capacity_factor}")
        if choice == "token" and capacity_factor != 1:
            raise ValueError("capacity_factor has no effect with choice='token'; leave it out")
        if gate is None:
            gate = nn.Linear(check_integer("dim", dim), n_experts, bias=False)
        self.dim, self.gate = dim, gate
        self.choice: Choice = choice
        self.capacity_factor = float(capacity_factor)
        if eps is None and width is None:
            eps = 2.0
        self._hold(eps, width, learn_eps)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Routing:
        """Tokens (..., d) and a mask (...) of those that take part -> where they go."""
        self._check(tokens, mask)
        if mask is not None:
            mask = mask.expand(tokens.shape[:-1]).unsqueeze(-1)
            tokens = tokens.masked_fill(~mask, 0.0)
        scores = self.gate(tokens)
        if scores.shape != (*tokens.shape[:-1], self.n_experts):
            raise ValueError(
                f"gate must return scores of shape {(*tokens.shape[:-1], self.n_experts)}, got "
                f"{tuple(scores.shape)}"
            )
        dtype, scores = scores.dtype, scores.to(compute_dtype(scores.dtype))
        selection, chosen = self._select(scores, mask)
        dispatch = chosen > 0.5
        part = selection if self.training else selection.where(dispatch, 0.0)
        if self.choice == "expert":
            gates = part * scores.softmax(-1)
            indices, weights = self._listed(gates.mT, dispatch.mT, self._size(scores), 0.0)
        else:
            # Of the chosen pairs by themselves: the others may leave nothing of their gates.
            log_a = selection.clamp(min=torch.finfo(scores.dtype).tiny).log()
            gates = softmax_or_zero((scores + log_a).masked_fill(part == 0, -math.inf))
            indices, logits = self._listed(scores + log_a, dispatch, self.k, -math.inf)
            weights = softmax_or_zero(logits)
        # A NaN chooses nothing, and shall be seen.
        broken = selection.isnan()
        gates = gates.masked_fill(broken, math.nan)
        broken = broken.any(-2 if self.choice == "expert" else -1).unsqueeze(-1)
        weights = weights.masked_fill(broken, math.nan)
        load = selection.sum(-2)
        return Routing(gates.to(dtype), dispatch, indices, weights.to(dtype), load.to(dtype))

    def _select(self, scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The soft selection and the exact one, (..., T, E)."""
        if not scores.numel():
            return scores, scores.detach()
        n: Any = scores.shape[-2] if mask is None else mask.sum(-2)
        share = self.capacity_factor * self.k / self.n_experts
        capacity: Any = share_of(share, n) if self.choice != "token" else 0
        options: dict[str, Any] = {"mask": mask}
        if self.choice == "expert":
            options["dim"] = -2
            # No expert gets a token twice.
            places = capacity.minimum(n) if isinstance(n, Tensor) else min(capacity, n)
            calibrate = width_to_eps(scores, places, mask=mask, dim=-2)
        else:
            places = self.k
            calibrate = width_to_eps(scores, places, mask=mask)
        options["eps"] = self._eps_now(calibrate, False, scores)

        def select(scores: Tensor, hard: bool) -> Tensor:
            if self.choice == "both":
                found = balanced_soft_topk(scores, self.k, capacity, hard=hard, **options)
                return found.selection
            return soft_topk(scores, places, hard=hard, **options)

        return select(scores, False), select(scores.detach(), True).detach()

    def _size(self, scores: Tensor) -> int:
        """The largest number of tokens that an expert may have."""
        tokens = scores.shape[-2]
        return min(share_of(self.capacity_factor * self.k / self.n_experts, tokens), tokens)

    def _listed(
        self, values: Tensor, dispatch: Tensor, size: int, fill: float
    ) -> tuple[Tensor, Tensor]:
        """The chosen pairs of every row as indices (..., size), and their values."""
        indices = indices_of(dispatch, size)
        there = torch.arange(size, device=values.device) < dispatch.sum(-1, keepdim=True)
        if not values.numel():
            return indices, values.new_full(indices.shape, fill)
        return indices, values.gather(-1, indices).where(there, fill)

    def _check(self, tokens: Tensor, mask: Tensor | None) -> None:
        if not isinstance(tokens, Tensor) or tokens.ndim < 2 or not tokens.is_floating_point():
            found = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
            raise TypeError(f"tokens must be a floating tensor (..., T, d), got {found}")
        if self.dim not in (None, tokens.shape[-1]):
            raise ValueError(
                f"tokens must have dim={self.dim} features, got shape {tuple(tokens.shape)}"
            )
        check_mask(mask, tokens[..., 0], "the shape (..., T)")

    def extra_repr(self) -> str:
        shown = f"n_experts={self.n_experts}, k={self.k}, choice={self.choice!r}"
        if self.choice != "token":
            shown += f", capacity_factor={self.capacity_factor}"
        return f"{shown}, {self._shown()}"
