"""Keep gold in the beam: a loss on the soft membership of its prefixes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._checks import check_integer, check_positive
from ..functional import log_soft_topk
from ._beam import Beam, first_beam
from ._candidates import best_candidates, extend
from ._checks import check_gold, check_search, run_step
from ._states import DecoderStep, State, take_rows


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
        candidates: How many extensions of a sentence take part, the best ones, gold's included;
            more than ``beam_size``. Leaving out the rest is an approximation: with eps = 1 a long
            tail has a share, too.
    """
    batch, vocabulary = check_search(init_state, embedding, beam_size, bos=bos, eos=eos, pad=pad)
    check_gold(gold, batch, vocabulary, bos=bos, pad=pad, eos=eos)
    check_positive("eps", eps)
    check_integer("candidates", candidates)
    if candidates <= beam_size:
        raise ValueError(
            f"candidates must be more than beam_size={beam_size}, got candidates={candidates}"
        )
    others = min(candidates, beam_size * vocabulary) - 1
    beam = first_beam(init_state, embedding, batch, beam_size, bos)
    held = torch.zeros(batch, 1, dtype=torch.long, device=gold.device)  # which of them is gold's
    memberships = []
    for t, wanted in enumerate(gold.unsqueeze(-1).unbind(1)):
        log_probs, state = run_step(step, beam.inputs, beam.state, vocabulary, first=t == 0)
        scores, parents, tokens = _extensions(beam, log_probs, held, wanted, others, eos)
        memberships.append(log_soft_topk(scores, beam_size, eps=eps)[:, 0])

        best = scores.detach().topk(beam_size, dim=1).indices
        is_gold = best == 0
        fallen = ~is_gold.any(1, keepdim=True)
        best = best.masked_fill(fallen, 0)
        held = is_gold.long().argmax(1, keepdim=True)  # the first, also after a restart
        empty = fallen & (torch.arange(beam_size, device=gold.device) > 0)
        last = tokens.gather(1, best)
        beam = Beam(
            embedding[last.flatten()],
            take_rows(state, parents.gather(1, best)),
            scores.gather(1, best).masked_fill(empty, -math.inf),
            last == eos,
        )
    counted = gold != pad
    losses = torch.stack(memberships, 1).masked_fill(~counted, 0.0)
    return -losses.sum() / counted.sum()


def _extensions(
    beam: Beam, log_probs: Tensor, held: Tensor, wanted: Tensor, others: int, eos: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, parents and tokens (B, 1 + others): gold's extension, then the best of the rest.

    Gold's is that of the hypothesis ``held`` by the token ``wanted``, (B, 1) each.
    """
    batch, k = beam.scores.shape
    log_probs = log_probs.reshape(batch, k, -1)
    vocabulary = log_probs.shape[-1]
    extended = extend(beam.scores, log_probs, beam.finished, eos)
    extended.flatten(1).scatter_(1, held * vocabulary + wanted, -math.inf)  # gold only once
    found = best_candidates(extended, others)
    parents = torch.cat([held, found.parents], 1)
    tokens = torch.cat([wanted, found.tokens], 1)
    picked = log_probs.flatten(1).gather(1, parents * vocabulary + tokens)
    picked = picked.masked_fill(beam.finished.gather(1, parents), 0.0)
    missing = torch.cat([torch.zeros_like(wanted).bool(), found.scores.isinf()], 1)
    scores = (beam.scores.gather(1, parents) + picked).masked_fill(missing, -math.inf)
    return scores, parents, tokens
