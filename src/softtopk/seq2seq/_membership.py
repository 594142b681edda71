"""Keep gold in the beam: a loss on the soft membership of its prefixes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..functional import log_soft_topk
from ._candidates import best_candidates, extend
from ._checks import check_eps, check_gold, check_integer, check_log_probs, check_search
from ._states import DecoderStep, State, repeat_rows, take_rows


def beam_membership_loss(
    step: DecoderStep,
    init_state: State,
    embedding: Tensor,
    gold: Tensor,
    *,
    beam_size: int = 5,
    eps: float = 1.0,
    bos: int = 2,
    eos: int = 3,
    pad: int = 0,
    candidates: int = 32,
) -> Tensor:
    """-log of the soft membership of gold's prefixes in the beam, in nats per gold token.

    Beam search loses the right sequence at the step at which its prefix is no longer among the k
    best. So the extensions of an ordinary beam search, with gold's among them, go through
    ``soft_topk`` with k = ``beam_size``, and the loss is -log of gold's share. Its gradient raises
    gold and lowers just those that crowd it out. When gold falls off, the beam restarts from
    gold's prefix alone, as Wiseman & Rush (2016) do with a margin loss.

    Args:
        step, init_state, embedding, beam_size, bos, eos, pad: As for `soft_beam_search`.
        gold: (B, T): tokens, end token, padding.
        eps: Temperature, in nats.
        candidates: How many extensions of a sentence take part, gold's included: the best. More
            than ``beam_size``; those far below the k-th have no share in the gradient.
    """
    batch, vocabulary = check_search(init_state, embedding, beam_size, bos=bos, eos=eos, pad=pad)
    check_gold(gold, batch, vocabulary, pad)
    check_eps(eps)
    check_integer("candidates", candidates)
    if candidates <= beam_size:
        raise ValueError(
            f"candidates must be more than beam_size={beam_size}, got candidates={candidates}"
        )
    others = min(candidates, beam_size * vocabulary) - 1
    device = gold.device

    inputs = embedding[torch.full((batch * beam_size,), bos, device=device)]
    state = repeat_rows(init_state, beam_size)
    scores = torch.full((batch, beam_size), -math.inf, device=device, dtype=embedding.dtype)
    scores[:, 0] = 0.0
    finished = torch.zeros(batch, beam_size, dtype=torch.bool, device=device)
    held = torch.zeros(batch, 1, dtype=torch.long, device=device)  # which hypothesis is gold's
    memberships = []
    for wanted in gold.unsqueeze(-1).unbind(1):
        log_probs, state = step(inputs, state)
        log_probs = check_log_probs(log_probs, batch * beam_size, vocabulary).view(batch, -1)
        extended = extend(scores, log_probs.view(batch, beam_size, -1), finished, eos)
        gold_place = held * vocabulary + wanted
        extended.flatten(1).scatter_(1, gold_place, -math.inf)  # gold comes first, and once
        found = best_candidates(extended, others)
        parents = torch.cat([held, found.parents], 1)
        tokens = torch.cat([wanted, found.tokens], 1)

        picked = log_probs.gather(1, parents * vocabulary + tokens)
        picked = picked.masked_fill(finished.gather(1, parents), 0.0)
        extensions = scores.gather(1, parents) + picked
        missing = torch.cat([torch.zeros_like(wanted, dtype=torch.bool), found.scores.isinf()], 1)
        extensions = extensions.masked_fill(missing, -math.inf)
        memberships.append(log_soft_topk(extensions, beam_size, eps=eps)[:, 0])

        best = extensions.detach().topk(beam_size, dim=1).indices
        is_gold = best == 0
        fallen = ~is_gold.any(1, keepdim=True)
        best = best.masked_fill(fallen, 0)
        held = is_gold.long().argmax(1, keepdim=True)
        scores = extensions.gather(1, best)
        alone = fallen & (torch.arange(beam_size, device=device) > 0)
        scores = scores.masked_fill(alone, -math.inf)
        finished = tokens.gather(1, best) == eos
        inputs = embedding[tokens.gather(1, best).flatten()]
        state = take_rows(state, parents.gather(1, best))
    counted = gold != pad
    losses = torch.stack(memberships, 1).masked_fill(~counted, 0.0)
    return -losses.sum() / counted.sum()
