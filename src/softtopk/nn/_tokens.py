"""A selector of tokens: soft in training, exact in evaluation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._checks import Strength, check_broadcast, check_flag, check_integer, check_mask
from ..functional import soft_topk
from ..functional._select import selection
from ._temperature import TWICE_K, Tempered, check_ratio, share_of, width_to_eps


class SelectedTokens(NamedTuple):
    """Result of `TokenSelector`, in both modes: row j of ``tokens`` is the token ``indices[j]`` of
    the input times ``weights[j]``. m is n in training and the number of selected ones, with the
    class tokens, in evaluation."""

    tokens: Tensor
    """(batch, m, d)"""
    indices: Tensor
    """(batch, m), ascending; 0 where ``mask`` is False in evaluation."""
    weights: Tensor
    """(batch, m), 1 for class tokens, 0 where ``mask`` is False."""
    mask: Tensor
    """(batch, m), False for padding: tokens that were masked, and in evaluation rows that are left
    over because a sample has fewer tokens."""


class TokenSelector(Tempered):
    """Keeps the k most useful tokens of every sequence or image, and learns which.

    In training every token is multiplied by its soft selection, A = ``soft_topk(scores, k)`` of
    ``scores = scorer(tokens)``, so that all scores have a gradient. In eval mode exactly the k
    tokens with the largest scores are gathered, in the order of their places, with a weight of one:
    the hard expression ``tokens.gather(1, scores.topk(k, dim=1).indices.sort().values)`` that this
    relaxes. As eps -> 0, A becomes one for these and zero for the others.

    Args:
        k: How many tokens to keep, class tokens not counted; a sequence with fewer keeps all.
        ratio: Instead: which share, between 0 and 1, of the tokens that take part, rounded up.
        dim: The size d of a token, for a linear scorer ``nn.Linear(dim, 1)``.
        scorer: Instead: a module (batch, n, d) -> (batch, n) or (batch, n, 1).
        n_class_tokens: So many tokens at the beginning stay, are not scored, and weigh one.
        eps: The temperature, in units of the scores.
        width: Instead: how many tokens shall be undecided on the first training batch, as in
            `SoftTopK`. Without eps and width: twice the number that is kept. Anneal it by
            `WidthSchedule`, so that training ends near the exact selection.
        learn_eps: As in `SoftTopK`.
        hard: In training too the weights are 0 or 1, with the gradient of the soft ones
            (straight-through). All tokens are still there.

    Called with tokens (batch, n, d); a ``mask`` (batch, n), True takes part; and ``k`` (batch,), an
    integer tensor, for a number of its own for every sample. Masked tokens are as if deleted, and
    may hold anything.

    >>> select = TokenSelector(3, dim=16, n_class_tokens=1)
    >>> images = torch.randn(2, 10, 16)
    >>> select(images).tokens.shape  # soft: all tokens, weighted
    torch.Size([2, 10, 16])
    >>> select.eval()(images).tokens.shape  # exact: the class token and three others
    torch.Size([2, 4, 16])
    """

    def __init__(
        self,
        k: int | None = None,
        *,
        ratio: float | None = None,
        dim: int | None = None,
        scorer: nn.Module | None = None,
        n_class_tokens: int = 0,
        eps: Strength | None = None,
        width: float | None = None,
        learn_eps: bool = False,
        hard: bool = False,
    ) -> None:
        super().__init__()
        if (k is None) == (ratio is None):
            raise ValueError(f"give k, a number of tokens, or ratio, got k={k} and ratio={ratio}")
        if (dim is None) == (scorer is None):
            raise ValueError("give dim, for a linear scorer, or scorer, a module, and not both")
        self.k = None if k is None else check_integer("k", k)
        self.ratio = None if ratio is None else check_ratio("ratio", ratio)
        self.n_class_tokens = check_integer("n_class_tokens", n_class_tokens, 0)
        check_flag("hard", hard)
        self.hard = hard
        if scorer is None:
            scorer = nn.Linear(check_integer("dim", dim), 1)
        self.dim, self.scorer = dim, scorer
        if eps is None and width is None:
            width = TWICE_K if k is None else max(2.0, 2.0 * k)
        self._hold(eps, width, learn_eps)

    def forward(
        self, tokens: Tensor, mask: Tensor | None = None, k: Tensor | None = None
    ) -> SelectedTokens:
        """Tokens (B, n, d), a mask (B, n) of those that take part, and a k (B,) if it varies."""
        self._check(tokens, mask, k)
        if mask is not None:
            mask = mask.expand(tokens.shape[:2])
            # Before anything reads them: even a weight of zero leaves a NaN.
            tokens = tokens.masked_fill(~mask.unsqueeze(-1), 0.0)
        first = self.n_class_tokens
        some = tokens[:, first:]
        part = None if mask is None else mask[:, first:]
        scores = self._scores(some)
        places, size = self._places(part, some.shape[1], k)
        calibrate = width_to_eps(scores, places, size, part)
        eps = self._eps_now(calibrate, not self.training, scores)
        if self.training:
            weights = soft_topk(scores, places, eps=eps, mask=part, hard=self.hard)
            indices = torch.arange(some.shape[1], device=tokens.device).expand(weights.shape)
            kept = torch.ones_like(indices, dtype=torch.bool) if part is None else part
        else:
            indices, weights, kept = selection(
                scores, places, size, eps=eps, hard=True, dim=-1, largest=True, mask=part
            )
        if first:
            stay = tokens.new_ones(len(tokens), first, dtype=torch.bool)
            stay = stay if mask is None else mask[:, :first]
            kept = torch.cat([stay, kept], 1)
            weights = torch.cat([stay.to(weights.dtype), weights], 1)
            at = torch.arange(first, device=tokens.device).expand(stay.shape)
            indices = torch.cat([at, indices + first], 1).where(kept | self.training, 0)
        if not self.training:
            tokens = tokens.take_along_dim(indices.unsqueeze(-1), 1)
        return SelectedTokens(tokens * weights.unsqueeze(-1), indices, weights, kept)

    def _scores(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.scorer(tokens)
        if scores.shape == (*tokens.shape[:2], 1):
            scores = scores.squeeze(-1)
        if scores.shape != tokens.shape[:2]:
            batch, n, _ = tokens.shape
            raise ValueError(
                f"scorer must return scores of shape ({batch}, {n}) or ({batch}, {n}, 1), "
                f"got {tuple(scores.shape)}"
            )
        return scores

    def _places(self, mask: Tensor | None, n: int, k: Tensor | None) -> tuple[int | Tensor, int]:
        """How many of n tokens to keep, one number or (batch,), and the largest it can be."""
        if k is not None:
            return k.clamp(max=n), int(k.max().clamp(max=n)) if k.numel() else 0
        if self.ratio is None:
            size = min(self.k or 0, n)
            return size, size
        size = share_of(self.ratio, n)
        return size if mask is None else share_of(self.ratio, mask.sum(-1)), size

    def _check(self, tokens: Tensor, mask: Tensor | None, k: Tensor | None) -> None:
        if not isinstance(tokens, Tensor) or tokens.ndim != 3 or not tokens.is_floating_point():
            found = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
            raise TypeError(f"tokens must be a floating tensor (batch, n, d), got {found}")
        if tokens.shape[1] <= self.n_class_tokens:
            raise ValueError(
                f"tokens must have more than n_class_tokens={self.n_class_tokens} tokens, got "
                f"shape {tuple(tokens.shape)}"
            )
        if self.dim not in (None, tokens.shape[-1]):
            raise ValueError(
                f"tokens must have dim={self.dim} features, got shape {tuple(tokens.shape)}"
            )
        check_mask(mask, tokens[..., 0], "the shape (batch, n)")
        if k is not None:
            if not isinstance(k, Tensor) or k.is_floating_point() or k.dtype is torch.bool:
                raise TypeError(f"k must be an integer tensor of shape (batch,), got {k}")
            check_broadcast("k", k.shape, tokens.shape[:1])

    def extra_repr(self) -> str:
        many = f"k={self.k}" if self.ratio is None else f"ratio={self.ratio}"
        return f"{many}, n_class_tokens={self.n_class_tokens}, {self._shown()}, hard={self.hard}"
