"""Beam search, for inference."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import check_integer
from ._candidates import best_candidates, extend
from ._checks import check_length_penalty, check_search, run_step
from ._states import DecoderStep, State, rows_to_run, select_rows


class Hypotheses(NamedTuple):
    """The result of a beam search, best first."""

    tokens: Tensor
    """(B, n, L): with the end token, if it was reached, then padding; L is at most max_len."""
    scores: Tensor
    """(B, n): what they are ranked by, log-likelihood / length ** length_penalty; -inf where there
    are fewer sequences."""
    log_likelihoods: Tensor
    """(B, n)."""


@torch.no_grad()
def beam_search(
    step: DecoderStep,
    init_state: State,
    embedding: Tensor,
    *,
    max_len: int,
    beam_size: int = 5,
    bos: int = 2,
    eos: int = 3,
    pad: int = 0,
    length_penalty: float = 0.0,
    n_best: int = 1,
) -> Hypotheses:
    """The likeliest sequences that a beam search finds.

    At each step the ``beam_size`` best of all extensions are kept, by their log-likelihood divided
    by length ** ``length_penalty``. A finished hypothesis keeps its place as long as it is among
    them. With a beam that drops nothing this is an exhaustive search.

    Args:
        step: The decoder, see `DecoderStep`.
        init_state: Its first state, tensors of first axis B.
        embedding: (V, D), the inputs of the decoder by token.
        max_len: Of the result; sequences that have not ended by then compete as they are.
        beam_size: Hypotheses of a sentence.
        bos, eos, pad: The tokens before the first, after the last, and after that.
        length_penalty: 0 ranks by likelihood, 1 by likelihood per token; at most 5.
        n_best: How many to return, at most ``beam_size``.
    """
    batch, vocabulary = check_search(init_state, embedding, beam_size, bos=bos, eos=eos, pad=pad)
    check_integer("max_len", max_len)
    check_integer("n_best", n_best)
    if n_best > beam_size:
        raise ValueError(f"n_best must be at most beam_size={beam_size}, got n_best={n_best}")
    length_penalty = check_length_penalty(length_penalty)

    device = embedding.device
    tokens = torch.full((batch, beam_size, 0), pad, device=device)
    last = torch.full((batch, beam_size), bos, device=device)
    dtype = torch.promote_types(embedding.dtype, torch.float32)
    likelihoods = torch.full((batch, beam_size), -math.inf, device=device, dtype=dtype)
    likelihoods[:, 0] = 0.0
    lengths = torch.zeros(batch, beam_size, device=device, dtype=torch.long)
    finished = torch.zeros(batch, beam_size, dtype=torch.bool, device=device)
    over = torch.zeros(batch, dtype=torch.bool, device=device)
    state, origins = init_state, torch.arange(batch, device=device).repeat_interleave(beam_size)
    for t in range(max_len):
        live = ~finished & (likelihoods != -math.inf) & ~over.unsqueeze(1)
        if (needed := rows_to_run(step, live)) is None:
            break
        run, rows, places = needed
        state = select_rows(state, origins[rows])
        inputs = embedding[last.flatten()[rows]]
        log_probs, state = run_step(run, inputs, state, vocabulary, first=t == 0)
        log_probs = log_probs[places].view(batch, beam_size, vocabulary)
        log_probs = log_probs.masked_fill_(~live.unsqueeze(-1), -math.inf)  # not of its own row
        extended = extend(likelihoods, log_probs, finished, eos)
        grown = (lengths + ~finished).to(extended.dtype).unsqueeze(-1) ** length_penalty
        best = best_candidates(extended / grown, beam_size)
        likelihoods = extended.flatten(1).gather(1, best.parents * vocabulary + best.tokens)
        before = finished.gather(1, best.parents)
        lengths = lengths.gather(1, best.parents) + ~before
        last, finished = best.tokens, before | (best.tokens == eos)
        origins = places.view(batch, beam_size).gather(1, best.parents).flatten()
        shown = last.masked_fill(before, pad).unsqueeze(-1)
        tokens = tokens.gather(1, best.parents.unsqueeze(-1).expand_as(tokens))
        tokens = torch.cat([tokens, shown], -1)
        # A live hypothesis that could still gain would do so with no further loss, at full length.
        hope = likelihoods.masked_fill(finished, -math.inf) / max_len**length_penalty
        certain = best.scores.masked_fill(~finished, -math.inf) >= hope.amax(1, keepdim=True)
        over = certain[:, :n_best].all(1)
    return Hypotheses(tokens[:, :n_best], best.scores[:, :n_best], likelihoods[:, :n_best])
