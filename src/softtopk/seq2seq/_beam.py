"""The hypotheses between two steps."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ._states import State, repeat_rows


class Beam(NamedTuple):
    """k hypotheses of each sentence."""

    inputs: Tensor
    """(B * k, D): the embeddings of their last tokens, or mixtures of them."""
    state: State
    scores: Tensor
    """(B, k): log-likelihoods, -inf where there is none."""
    finished: Tensor
    """(B, k)."""


def first_beam(init_state: State, embedding: Tensor, batch: int, k: int, bos: int) -> Beam:
    """One hypothesis, empty."""
    # Sums of log-probabilities need more digits than a half precision has.
    dtype = torch.promote_types(embedding.dtype, torch.float32)
    scores = torch.full((batch, k), -math.inf, device=embedding.device, dtype=dtype)
    scores[:, 0] = 0.0
    inputs = embedding[bos].expand(batch * k, -1)
    return Beam(inputs, repeat_rows(init_state, k), scores, scores.new_zeros(batch, k).bool())
