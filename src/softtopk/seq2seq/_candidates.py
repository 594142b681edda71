"""The extensions of hypotheses, and the few of them that can matter."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..functional._rows import extremes_of, largest_cost

BLOCK = 64  # elements that are represented by their maximum in a first pass
FIRST = 64  # candidates to begin with


class Candidates(NamedTuple):
    """Some of the k * V extensions of a sentence's hypotheses, best first, (B, m) each."""

    scores: Tensor
    """Log-likelihoods, -inf where there are fewer than m; without gradient."""
    parents: Tensor
    """Which hypothesis is extended."""
    tokens: Tensor
    """By which token."""


def extend(scores: Tensor, log_probs: Tensor, finished: Tensor, eos: int) -> Tensor:
    """Log-likelihoods (B, k, V) of all extensions, without gradient.

    A finished hypothesis goes on with the end token alone, with probability one.
    """
    scores = scores.detach()
    extended = scores.unsqueeze(-1) + log_probs.detach()
    if finished.any():
        extended.masked_fill_(finished.unsqueeze(-1), -math.inf)
        extended[..., eos] = torch.where(finished, scores, extended[..., eos])
    return extended


def best_candidates(extended: Tensor, m: int) -> Candidates:
    """The best m of the extensions (B, k, V)."""
    vocabulary = extended.shape[-1]
    scores, flat = largest(extended.flatten(1), m)
    return Candidates(scores, flat // vocabulary, flat % vocabulary)


def influential_candidates(extended: Tensor, k: int, eps: Tensor | float) -> Candidates:
    """All of the extensions (B, k, V) that sorted SOFT top-k can tell from the others.

    Let c be the (k + 1)-th largest score, and y the anchors k, ..., 1, 0. In the plan A_il / A_i0
    is proportional to exp(2 x_i y_l / eps), and A_i0 falls as x_i rises. The k + 1 best elements
    have a mass of k + 1, of which the first k columns take k at most: so A_c0 >= 1 / (k + 1), and
    an element that lies gap below c has sum_l A_il <= (k + 1) exp(-2 gap / eps) outside the last
    column. With gap = eps / 2 log(n (k + 1) / u) all of them together have at most u, the unit
    of rounding: without them the plan is the same, up to that.
    """
    flat = extended.flatten(1)
    n = flat.shape[1]
    gap = 0.5 * eps * math.log(n * (k + 1) / torch.finfo(flat.dtype).eps)
    m = min(n, max(FIRST, 2 * k))
    while True:
        found = best_candidates(extended, m)
        least = found.scores[:, min(k, m - 1), None] - _column(gap)
        kept = (found.scores >= least) & found.scores.isfinite()
        # What is not finite comes first. Of it the first is enough to be seen in the result.
        kept[:, 0] |= ~(found.scores[:, 0] < math.inf)
        # They are sorted: if none of the last matters, nothing beyond does.
        if m == n or not kept[:, -1].any():
            width = max(k, int(kept.sum(1).max()))
            scores = found.scores.masked_fill(~kept, -math.inf)
            return Candidates(scores[:, :width], found.parents[:, :width], found.tokens[:, :width])
        m = min(n, 4 * m)


def normalised_eps(extended: Tensor, k: int, eps: float, normalize: str) -> Tensor:
    """The eps (B,) for the plain cost that equals ``eps`` for the normalised cost of all of them.

    The paper's cost is (x - y)^2 with x the negative log-likelihoods and anchors y from 0 to k.
    """
    return eps * largest_cost(extremes_of(-extended.flatten(1)), k, normalize).squeeze(1)


def largest(x: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The m largest of each row (B, n) in order, with their indices.

    As `torch.topk`, several times as fast for rows of ten thousands: m blocks with the largest
    maxima hold the m largest elements.
    """
    batch, n = x.shape
    blocks = n // BLOCK
    if blocks < 4 * m:
        return x.topk(m, dim=1)
    body, rest = x[:, : blocks * BLOCK].view(batch, blocks, BLOCK), x[:, blocks * BLOCK :]
    chosen = body.amax(-1).topk(m, dim=1, sorted=False).indices
    held = body.gather(1, chosen.unsqueeze(-1).expand(-1, -1, BLOCK))
    places = chosen.unsqueeze(-1) * BLOCK + torch.arange(BLOCK, device=x.device)
    places = torch.cat(
        [places.flatten(1), torch.arange(blocks * BLOCK, n, device=x.device).expand(batch, -1)], 1
    )
    values, index = torch.cat([held.flatten(1), rest], 1).topk(m, dim=1)
    return values, places.gather(1, index)


def _column(x: Tensor | float) -> Tensor | float:
    return x.unsqueeze(-1) if isinstance(x, Tensor) else x
