"""The risk of what a search returns: the expected error of the hypotheses that survive a selection.

Minimum risk training (Shen et al. 2016) lowers the expected error of a list of hypotheses y_i,

    R = sum_i q_i risk(y_i),        q = softmax(scores / tau).

The softmax looks at the whole list. A search keeps few, so here SOFT top-k selects: q = A / k. As
eps goes to 0, R is the mean risk of the k hypotheses that the search ranks first. As eps grows, it
is the mean of the list. Its gradient lowers the scores of those hypotheses near the threshold whose
risk is above that of the others there, and raises the rest of them. How many are near is the width;
what is beyond it, safely in or out, is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .._checks import (
    Strength,
    check_eps,
    check_flag,
    check_integer,
    check_mask,
    check_scores,
)
from .._dispatch import is_readable
from ..functional import eps_for, soft_topk
from ._beam_search import beam_search
from ._checks import check_gold, check_length_penalty, check_search, check_tokens, run_step
from ._states import DecoderStep, State, at_least_single, rows_to_run, select_rows

Risk = Callable[[Tensor, Tensor], Tensor]
"""Hypotheses (B, n, L), gold (B, T) -> the risk of each (B, n)."""
#: In units of the scores. The gradient grows as 1 / eps: a list of near ties would be all of it.
LEAST_EPS = 0.01


def expected_risk(
    scores: Tensor,
    risk: Tensor,
    *,
    k: int | None = 1,
    width: float | None = None,
    eps: Strength | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The mean risk of the k hypotheses that a soft selection keeps: (..., n) -> (...).

    sum_i A_i risk_i / k with A = `soft_topk` of the scores. The hard expression that it relaxes is
    ``risk.gather(-1, scores.topk(k).indices).mean(-1)``. In a list of fewer than k hypotheses all
    are kept; one of none has the risk 0.

    Args:
        scores: (..., n), what the search ranks by.
        risk: (..., n), the smaller the better; a constant.
        k: How many survive. With more than one the runners-up have to be good as well. None: the
            softmax of scores / (eps / 2) in place of a selection. Minimum risk training as Shen et
            al. have it, with their sharpness alpha, is ``k=None, eps=2 / alpha`` for whole
            log-likelihoods.
        width: How many hypotheses of a list are undecided, see `eps_for`. It gives each list its
            own eps, for k = 1 if k is None. Default: all of them.
        eps: The temperature itself, in place of a width; one for all lists, or (...).
        mask: Boolean, broadcasts to the scores: False leaves a hypothesis out, as does a score of
            -inf.

    >>> scores, risk = torch.tensor([-0.4, -0.5, -0.9]), torch.tensor([0.3, 0.1, 0.8])
    >>> [round(expected_risk(scores, risk, eps=eps).item(), 3) for eps in (1e-3, 0.5, 1e3)]
    [0.3, 0.279, 0.4]
    """
    check_scores(scores, -1)
    check_mask(mask, scores)
    if not isinstance(risk, Tensor) or risk.shape != scores.shape:
        got = tuple(risk.shape) if isinstance(risk, Tensor) else type(risk).__name__
        raise ValueError(
            f"risk must be a tensor of the shape of scores, {tuple(scores.shape)}, got {got}"
        )
    _check_selection(k, width, eps)
    valid = scores.detach() != -math.inf  # not a sequence that cannot occur, either
    valid = valid if mask is None else valid & mask
    dtype, scores = scores.dtype, at_least_single(scores)
    risk = risk.detach().to(scores.dtype).masked_fill(~valid, 0.0)
    if is_readable(risk) and not risk.isfinite().all():
        place = tuple((~risk.isfinite()).nonzero()[0].tolist())
        raise ValueError(
            f"risk must be finite, got {risk[place].item()} at index {place}, the last of which is "
            "the hypothesis; is there a division by a length of 0?"
        )
    eps = check_eps(_eps_of(scores, k, width, valid) if eps is None else eps, scores.shape[:-1])
    if k is None:
        kept = _softmax(scores, eps, valid)
    else:
        eps = eps.squeeze(-1) if isinstance(eps, Tensor) else eps
        places = valid.sum(-1).clamp(max=k)
        kept = soft_topk(scores, places, eps=eps, mask=valid) / places.clamp(min=1).unsqueeze(-1)
    return (kept * risk).sum(-1).to(dtype)


def _check_selection(k: int | None, width: float | None, eps: Strength | None) -> None:
    if k is not None:
        check_integer("k", k)
    if width is not None and eps is not None:
        raise ValueError(f"give width or eps, not both: got width={width} and eps={eps}")


def _softmax(scores: Tensor, eps: Strength, mask: Tensor) -> Tensor:
    """Of scores / (eps / 2), from the best of a list on: nothing overflows."""
    best = scores.detach().masked_fill(~mask, -math.inf).amax(-1, keepdim=True)
    behind = (scores - best).masked_fill(~mask, 0.0)
    logits = (2 * behind / eps).masked_fill(~mask & mask.any(-1, keepdim=True), -math.inf)
    return logits.softmax(-1)


def _eps_of(scores: Tensor, k: int | None, width: float | None, mask: Tensor) -> Tensor:
    """The temperature of each list at which this many of it are undecided, all by default.

    Where a list has no more than k hypotheses there is a choice only if gold comes to it: the
    threshold is then between the last two.
    """
    places = torch.minimum(mask.sum(-1) - 1, torch.as_tensor(k or 1)).clamp(min=1)
    width = scores.shape[-1] if width is None else width
    return torch.as_tensor(eps_for(scores, places, width=width, mask=mask))


def sequence_scores(
    step: DecoderStep,
    init_state: State,
    embedding: Tensor,
    tokens: Tensor,
    *,
    length_penalty: float = 0.0,
    bos: int = 2,
    eos: int = 3,
    pad: int = 0,
) -> Tensor:
    """What `beam_search` ranks sequences by, with gradient: (B, n, L) -> (B, n).

    log-likelihood / length ** ``length_penalty``. Sequences of a sentence that begin alike are
    computed once as far as they do: the hypotheses of one search share much. A decoder that writes
    the padding token itself should end its sequences: without an end token, padding at the end of a
    sequence is not counted.

    Args:
        step, init_state, embedding, bos, eos, pad, length_penalty: As for `beam_search`.
        tokens: n sequences for each of the B sentences, with the end token if they have one, then
            padding. One of padding alone has the score 0.
    """
    batch, vocabulary = check_search(init_state, embedding, 1, bos=bos, eos=eos, pad=pad)
    length_penalty = check_length_penalty(length_penalty)
    check_tokens("tokens", tokens, batch, vocabulary, "(B, n, L)")
    lengths = _lengths(tokens, eos, pad)
    return _scores_of(step, init_state, embedding, tokens, lengths, length_penalty, bos)


def _scores_of(
    step: DecoderStep,
    init_state: State,
    embedding: Tensor,
    tokens: Tensor,
    lengths: Tensor,
    length_penalty: float,
    bos: int,
) -> Tensor:
    vocabulary = embedding.shape[0]
    batch, n, longest = tokens.shape
    columns = torch.arange(n, device=tokens.device)
    sentences = torch.arange(batch, device=tokens.device).unsqueeze(1)
    same = torch.ones(batch, n, n, dtype=torch.bool, device=tokens.device)  # the prefixes i and j
    place = sentences.expand(batch, n)  # in the state
    last = torch.full((batch, n), bos, device=tokens.device)
    state, total = init_state, None
    for t in range(longest):
        live = lengths > t
        # Of the live sequences with one prefix, the first stands for all of them.
        first = (same & live.unsqueeze(1)).long().argmax(-1)
        if (needed := rows_to_run(step, live & (first == columns))) is None:
            break
        run, rows, places = needed
        state = select_rows(state, place.flatten()[rows])
        inputs = embedding[last.flatten()[rows]]
        log_probs, state = run_step(run, inputs, state, vocabulary, first=t == 0)
        # What a sequence that is over has the place of does not count.
        place = places[first + n * sentences]
        last = tokens[..., t]
        picked = log_probs.flatten().gather(0, (place * vocabulary + last).flatten())
        picked = at_least_single(picked.view(batch, n)).masked_fill(~live, 0.0)
        total = picked if total is None else total + picked
        same = same & (last.unsqueeze(1) == last.unsqueeze(2))
    if total is None:  # of no row of the embedding: zeros that have a gradient
        total = at_least_single(embedding[:0].sum()).expand(batch, n)
    return total / lengths.clamp(min=1).to(total.dtype) ** length_penalty


def beam_risk_loss(
    step: DecoderStep,
    init_state: State,
    embedding: Tensor,
    gold: Tensor,
    *,
    risk: Risk | Tensor,
    k: int | None = 1,
    width: float | None = None,
    eps: Strength | None = None,
    beam_size: int | None = None,
    length_penalty: float = 0.0,
    max_len: int | None = None,
    include_gold: bool = False,
    candidates: Tensor | None = None,
    bos: int = 2,
    eos: int = 3,
    pad: int = 0,
) -> Tensor:
    """The expected risk of the hypotheses of a beam search that survive a soft selection.

    A search without gradient finds the ``beam_size`` hypotheses that it ranks first. They are
    scored again with gradient, as the search ranks them, and `expected_risk` selects among them.
    The loss is the mean over the sentences, each with the weight of its number of gold tokens, as a
    longer sentence counts more in BLEU too.

    Let the step have no dropout: the scores are then those of the search.

    Args:
        step, init_state, embedding, bos, eos, pad: As for `beam_search`.
        gold: (B, T): tokens, end token, padding.
        risk: How bad each hypothesis is, such as 1 - BLEU of the sentence: a function of hypotheses
            (B, n, L) and ``gold``, both copies, that gives (B, n), or these numbers themselves,
            with ``candidates``. The hypotheses have their end token, if they reached it, then
            padding; one that does not exist is padding alone, and its risk does not count.
        k, width, eps: As for `expected_risk`. A width is that of the hypotheses that were searched
            for, without gold unless it was found, as it may lie far from all of them. Scores nearer
            to each other than 0.01 are as good as equal: eps is at least that.
        beam_size: Hypotheses that are searched for, 8 by default.
        length_penalty: As for `beam_search`. Give the one that you will search with.
        max_len: Of the hypotheses. Default: 1.25 times the longest gold, plus 2: what is longer is
            hardly ever good.
        include_gold: Whether gold is one of the hypotheses, the first of then n + 1. Where the
            search found it, padding is in its place. A ``risk`` as a tensor is then (B, n + 1).
        candidates: (B, n, L), in place of a search, such as those of an earlier epoch. One that is
            there twice counts twice. A sentence of which none is there has the risk 0.
    """
    if candidates is not None and (beam_size is not None or max_len is not None):
        raise ValueError("beam_size and max_len are for a search, not for given candidates")
    beam_size = 8 if beam_size is None else beam_size
    batch, vocabulary = check_search(init_state, embedding, beam_size, bos=bos, eos=eos, pad=pad)
    lengths = check_gold(gold, batch, vocabulary, bos=bos, pad=pad, eos=eos)
    check_flag("include_gold", include_gold)
    _check_selection(k, width, eps)
    length_penalty = check_length_penalty(length_penalty)
    if not isinstance(risk, Tensor) and not callable(risk):
        raise TypeError(f"risk must be a function or a tensor, got {type(risk).__name__}")
    if candidates is None:
        if isinstance(risk, Tensor):
            raise ValueError(
                "risk as a tensor belongs to hypotheses that are known: give them as candidates, "
                "or a function as risk"
            )
        hypotheses = beam_search(
            step,
            init_state,
            embedding,
            max_len=longest_for(int(lengths.max())) if max_len is None else max_len,
            beam_size=beam_size,
            bos=bos,
            eos=eos,
            pad=pad,
            length_penalty=length_penalty,
            n_best=beam_size,
        )
        missing = hypotheses.scores.isinf()
        if (none := missing.all(1)).any():
            raise ValueError(
                f"step leaves no hypothesis of sentence {int(none.nonzero()[0])}: it has given "
                "-inf for every token"
            )
        candidates = hypotheses.tokens.masked_fill(missing.unsqueeze(-1), pad)
        sizes = _lengths(candidates, eos).masked_fill(missing, 0)
    else:
        check_tokens("candidates", candidates, batch, vocabulary, "(B, n, L)")
        sizes = _lengths(candidates, eos, pad)
        beyond = torch.arange(candidates.shape[-1], device=sizes.device) >= sizes.unsqueeze(-1)
        candidates = candidates.masked_fill(beyond, pad)
    if include_gold:
        candidates, sizes = _with_gold(candidates, sizes, gold, lengths, pad)
    if (n := candidates.shape[1]) < 2:
        raise ValueError("there must be two hypotheses or more, as beam_size or candidates, got 1")
    if k is not None and k >= n:
        raise ValueError(
            f"k must be below the number of hypotheses, {n}, got k={k}: if all are selected, "
            "nothing is learned"
        )
    with torch.no_grad():
        # Copies: a metric may well take the end tokens out of what it is given.
        measured = risk if isinstance(risk, Tensor) else risk(candidates.clone(), gold.clone())
    if not isinstance(measured, Tensor) or measured.shape != candidates.shape[:2]:
        shape = tuple(measured.shape) if isinstance(measured, Tensor) else type(measured).__name__
        raise ValueError(
            f"risk must give a tensor (B, n) = {tuple(candidates.shape[:2])}, one number for each "
            f"hypothesis, got {shape}"
        )
    scores = _scores_of(step, init_state, embedding, candidates, sizes, length_penalty, bos)
    if torch.is_grad_enabled() and embedding.requires_grad and not scores.requires_grad:
        raise ValueError(
            "step must keep the gradient: what it returns has none, as under torch.no_grad()"
        )
    mask = sizes > 0
    if eps is None:
        first = int(include_gold)
        eps = _eps_of(scores[:, first:], k, width, mask[:, first:]).clamp(min=LEAST_EPS)
    risks = expected_risk(scores, measured.to(scores.device), k=k, eps=eps, mask=mask)
    return (risks * lengths).sum() / lengths.sum()


def longest_for(gold: int) -> int:
    """How many tokens hypotheses may have, if the longest gold has this many."""
    return 5 * gold // 4 + 2


def _lengths(tokens: Tensor, eos: int, pad: int | None = None) -> Tensor:
    """Tokens up to the end, or up to the padding. A decoder may write padding, too: what a search
    returned has its length without an end."""
    longest = tokens.shape[-1]
    ended = tokens == eos
    whole = longest if pad is None else longest - (tokens != pad).flip(-1).long().argmax(-1)
    whole = torch.where(ended.any(-1), ended.long().argmax(-1) + 1, whole)
    return whole if pad is None else whole.masked_fill((tokens == pad).all(-1), 0)


def _with_gold(
    candidates: Tensor, sizes: Tensor, gold: Tensor, lengths: Tensor, pad: int
) -> tuple[Tensor, Tensor]:
    """(B, 1 + n, L), (B, 1 + n): gold first; where it is among the candidates, padding first."""
    longest = max(candidates.shape[-1], gold.shape[-1])
    candidates = F.pad(candidates, (0, longest - candidates.shape[-1]), value=pad)
    gold = F.pad(gold, (0, longest - gold.shape[-1]), value=pad).unsqueeze(1)
    found = (candidates == gold).all(-1).any(1, keepdim=True)
    gold = gold.masked_fill(found.unsqueeze(-1), pad)
    sizes = torch.cat([lengths.unsqueeze(1).masked_fill(found, 0), sizes], 1)
    return torch.cat([gold, candidates], 1), sizes
