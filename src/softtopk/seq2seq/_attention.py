"""Attention of a decoder over the encoder's states."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._checks import check_eps, check_integer
from ..functional import soft_topk_softmax


class Memory(NamedTuple):
    """What the decoder reads of the source: the same for all hypotheses of a sentence."""

    values: Tensor
    """(B, S, d)."""
    keys: Tensor
    """(B, S, a): the part of the attention's scores that does not depend on the query."""
    mask: Tensor
    """(B, S) boolean, True where there is a token."""


class Attention(nn.Module, ABC):
    """What a `Seq2Seq` asks of its attention.

    Args:
        query_size: Of the decoder's state.
        memory_size: Of the encoder's states.
        size: Of the attention itself.
    """

    @abstractmethod
    def prepare(self, values: Tensor, mask: Tensor) -> Memory:
        """What is computed once per sentence, of states (B, S, m) and where there are tokens."""

    @abstractmethod
    def forward(self, query: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Queries (B * k, q) -> contexts (B * k, m) and weights (B * k, S).

        The k queries of a sentence stand next to each other.
        """


class TopKAttention(nn.Module):
    """An attention whose weights are a softmax, or that among the soft top k.

    Args:
        topk: Look at about this many tokens, by `softtopk.soft_topk_softmax`; None for the softmax.
        eps: Temperature of the selection, in units of the scores.
        hard_eval: In evaluation, look at exactly this many tokens.
    """

    def __init__(self, *, topk: int | None, eps: float, hard_eval: bool) -> None:
        super().__init__()
        if topk is not None:
            check_integer("topk", topk)
        check_eps(eps, torch.Size())
        self.topk, self.eps, self.hard_eval = topk, eps, hard_eval

    @property
    def hard(self) -> bool:
        """Whether the selection is exact now."""
        return self.hard_eval and not self.training

    def weights(self, scores: Tensor) -> Tensor:
        """Scores (..., S), -inf where there is no token -> weights, summing to one."""
        if self.topk is None or self.topk >= scores.shape[-1]:
            return scores.softmax(-1)
        return soft_topk_softmax(scores, self.topk, eps=self.eps, hard=self.hard)

    def extra_repr(self) -> str:
        if self.topk is None:
            return ""
        return f"topk={self.topk}, eps={self.eps:g}, hard_eval={self.hard_eval}"


class AdditiveAttention(TopKAttention, Attention):
    """Additive attention, softmax(v . tanh(W q + U m)), of Bahdanau et al. (2014).

    Args:
        query_size, memory_size, size: As for `Attention`.
        topk: Look at about this many tokens, by `softtopk.soft_topk_softmax`; None for the softmax.
        eps: Temperature of the selection, in units of the scores.
        hard_eval: In evaluation, look at exactly this many tokens.
    """

    def __init__(
        self,
        query_size: int,
        memory_size: int,
        size: int,
        *,
        topk: int | None = None,
        eps: float = 1.0,
        hard_eval: bool = False,
    ) -> None:
        super().__init__(topk=topk, eps=eps, hard_eval=hard_eval)
        self.query = nn.Linear(query_size, size)
        self.key = nn.Linear(memory_size, size, bias=False)
        self.score = nn.Linear(size, 1, bias=False)

    def prepare(self, values: Tensor, mask: Tensor) -> Memory:
        """Compute the keys of states (B, S, m), once per sentence."""
        return Memory(values, self.key(values), mask)

    def forward(self, query: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Queries (B * k, q) -> contexts (B * k, m) and weights (B * k, S)."""
        batch, length, _ = memory.keys.shape
        query = self.query(query).view(batch, -1, 1, memory.keys.shape[-1])
        scores = self.score(torch.tanh(query + memory.keys.unsqueeze(1))).squeeze(-1)
        weights = self.weights(scores.masked_fill(~memory.mask.unsqueeze(1), -math.inf))
        context = weights @ memory.values
        return context.flatten(0, 1), weights.view(-1, length)
