"""Beam search whose top-k is the sorted SOFT operator: Algorithm 2 of the paper.

The log-likelihoods are those of the appendix: of the predecessor and token with the largest weight.
Everything is in the log domain, and eps in units of log-likelihood.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._checks import check_choice, check_integer, check_not_negative, check_positive
from ..functional import Sinkhorn, sorted_soft_topk
from ._beam import Beam, first_beam
from ._candidates import Candidates, best_candidates, extend, influential_candidates, normalised_eps
from ._checks import check_finite, check_gold, check_search, run_step
from ._states import DecoderStep, State, at_least_single, mix_rows

Normalize = Literal["row", "batch"] | None
Solver = Literal["exact", "sinkhorn"] | Sinkhorn
Follow = Literal["best", "gold"]


class SoftBeams(NamedTuple):
    """The result of a soft beam search over k hypotheses."""

    tokens: Tensor
    """(B, k, L): of the largest weight, with the end token, then padding; in the order of rank."""
    log_likelihoods: Tensor
    """(B, k), differentiable; -inf where there are fewer sequences, NaN if a step returned NaN."""
    gold_log_probs: Tensor | None
    """(B, T): of the gold tokens along the best hypothesis, 0 at the padding; differentiable."""


@dataclass(frozen=True)
class Selection:
    """How the soft top-k is made."""

    beam_size: int
    eps: float
    normalize: Normalize
    solver: Solver
    bound: float | None
    """Of the gradient that a sentence sends through its selection in a step; None for none."""

    def __post_init__(self) -> None:
        check_positive("eps", self.eps)
        if self.normalize is not None:
            check_choice("normalize", self.normalize, ("row", "batch"))

    def candidates(self, extended: Tensor) -> tuple[Candidates, Tensor | float]:
        """The extensions (B, k, V) that matter, and the eps of the plain cost."""
        k = self.beam_size
        eps: Tensor | float = self.eps
        if self.normalize is not None:
            eps = normalised_eps(extended, k, self.eps, self.normalize)
        if self.solver != "exact":
            # Sinkhorn is run as in the paper, on all extensions.
            return best_candidates(extended, extended[0].numel()), eps
        return influential_candidates(extended, k, eps), eps

    def weights(self, scores: Tensor, eps: Tensor | float) -> Tensor:
        """Scores (B, m) of candidates -> A (B, m, k)."""
        if self.bound is not None:
            scores = _Bounded.apply(scores, self.bound)
        return sorted_soft_topk(scores, self.beam_size, eps=eps, solver=self.solver)


class _Bounded(torch.autograd.Function):
    """The identity, whose gradient has in each row a norm of at most ``bound``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        ctx.bound = bound
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        # By the largest entry first: the square of one that exploded would overflow.
        size = grad.abs().amax(-1, keepdim=True)
        unit = grad / torch.where(size > 0, size, 1.0)
        length = unit.norm(dim=-1, keepdim=True)
        return torch.where(size * length > ctx.bound, unit * (ctx.bound / length), grad), None


class Move(NamedTuple):
    """What a step did, (B, k) each."""

    parents: Tensor
    """The predecessor of each rank."""
    tokens: Tensor
    """The token of each rank."""
    scores: Tensor
    """The log-likelihood of each rank."""
    gold_log_probs: Tensor | None
    """Of gold's next token, by hypothesis before the step."""


class Proposal(NamedTuple):
    """The next beam, before its states are mixed."""

    move: Move
    inputs: Tensor
    """(B, k, D)."""
    shares: Tensor
    """(B, k, k): of the hypotheses before the step in those after it; a column sums to one, or to
    zero if its rank is empty."""
    state: State
    """Of the hypotheses before the step."""


def soft_beam_search(
    step: DecoderStep,
    init_state: State,
    embedding: Tensor,
    *,
    max_len: int | None = None,
    beam_size: int = 5,
    eps: float = 0.1,
    bos: int = 2,
    eos: int = 3,
    pad: int = 0,
    normalize: Normalize = None,
    solver: Solver = "exact",
    selection_clip: float | None = None,
    gold: Tensor | None = None,
) -> SoftBeams:
    r"""Beam search that is differentiable, by sorted SOFT top-k.

    A relaxation of `beam_search`: as eps -> 0 it keeps the same hypotheses. With x_ij the
    log-likelihood of hypothesis i extended by token j, and A = sorted_soft_topk(x) over all of
    them, hypothesis l of the next step has

    .. math::
        E_l = \sum_{ij} A_{ij,l} w_j, \qquad h_l = \sum_{ij} A_{ij,l} h_i.

    A here is n times the plan, so each of its columns sums to one and both are convex combinations:
    no further normalisation is needed. The token and the predecessor of l are those of its largest
    weight, and so is its log-likelihood. A finished hypothesis is extended by the end token alone,
    with probability one.

    Extensions that together cannot change A by more than a rounding error are left out: at
    eps = 0.1 those about 1.4 nats below the (k + 1)-th best. A step keeps the log-probabilities,
    B k V numbers, for the backward pass, and little more; with ``normalize`` or Sinkhorn, where all
    extensions count, also A with k times as many.

    For large eps two ranks can have their largest weight at the same extension, and then the same
    sequence: that is the paper's rule.

    Args:
        step: The decoder, see `DecoderStep`.
        init_state: Its first state, tensors of first axis B.
        embedding: (V, D), the inputs of the decoder by token.
        max_len: Number of steps; by default the length of ``gold``.
        beam_size: Hypotheses of a sentence, the paper's k.
        eps: Temperature, in nats.
        bos, eos, pad: The tokens before the first, after the last, and after that.
        normalize: Divide the cost by its largest entry, over the extensions of a sentence
            (``"row"``) or of all (``"batch"``), as the paper's listing does. It makes eps = 0.1
            spread A over the whole vocabulary.
        solver: ``"exact"``, or ``"sinkhorn"`` or a `Sinkhorn` for the paper's algorithm, which is
            run on all extensions.
        selection_clip: Bounds the norm of the gradient that a sentence sends through A to the
            scores in one step; 0 stops it. Without a bound it is multiplied by up to 1 / eps in
            every step: it explodes with the length of the sentence.
        gold: (B, T), sequences to score along the best hypothesis: tokens, end token, padding.
    """
    batch, vocabulary = check_search(init_state, embedding, beam_size, bos=bos, eos=eos, pad=pad)
    check_finite(init_state)
    bound = None if selection_clip is None else check_not_negative("selection_clip", selection_clip)
    selection = Selection(beam_size, eps, normalize, solver, bound)
    lengths = (
        None if gold is None else check_gold(gold, batch, vocabulary, bos=bos, pad=pad, eos=eos)
    )
    if max_len is None:
        if gold is None:
            raise ValueError("max_len must be given if gold is not")
        max_len = gold.shape[1]
    check_integer("max_len", max_len)
    if gold is not None and max_len < gold.shape[1]:
        raise ValueError(
            f"max_len must be at least the length of gold, {gold.shape[1]}, got {max_len}"
        )
    beam = first_beam(init_state, embedding, batch, beam_size, bos)
    moves = []
    for t in range(max_len):
        wanted = gold[:, t] if gold is not None and t < gold.shape[1] else None
        proposal = propose(step, beam, embedding, selection, eos, wanted, first=t == 0)
        beam = accept(proposal, eos)
        moves.append(proposal.move)
    tokens = backtrack(moves, eos, pad)
    along = None
    if gold is not None and lengths is not None:
        along = gold_along_best(moves, lengths).masked_fill(gold == pad, 0.0)
    return SoftBeams(tokens, beam.scores, along)


def propose(
    step: DecoderStep,
    beam: Beam,
    embedding: Tensor,
    selection: Selection,
    eos: int,
    gold: Tensor | None,
    *,
    first: bool,
) -> Proposal:
    """One step of Algorithm 2; ``gold`` (B,) are tokens to score."""
    batch, k = beam.scores.shape
    vocabulary = embedding.shape[0]
    log_probs, state = run_step(step, beam.inputs, beam.state, vocabulary, first=first)
    log_probs = log_probs.reshape(batch, k * vocabulary)
    extended = extend(beam.scores, log_probs.view(batch, k, -1), beam.finished, eos)
    found, eps = selection.candidates(extended)

    # One gather for all, since its derivative fills a tensor of the size of log_probs.
    m = found.scores.shape[1]
    places = found.parents * vocabulary + found.tokens
    if gold is not None:
        starts = torch.arange(k, device=gold.device) * vocabulary
        places = torch.cat([places, starts + gold.unsqueeze(1)], 1)
    picked = at_least_single(log_probs.gather(1, places))

    ended = beam.finished.gather(1, found.parents)
    scores = beam.scores.gather(1, found.parents) + picked[:, :m].masked_fill(ended, 0.0)
    scores = torch.where(found.scores.isinf(), found.scores, scores)
    weights = selection.weights(scores, eps)  # (B, m, k)
    choice = weights.argmax(1)
    # With fewer candidates than ranks the last ranks are empty, of weight zero.
    there = (found.scores != -math.inf).sum(1, keepdim=True)
    filled = torch.arange(k, device=choice.device) < there
    move = Move(
        found.parents.gather(1, choice),
        found.tokens.gather(1, choice),
        scores.gather(1, choice).masked_fill(~filled, -math.inf),
        None if gold is None else picked[:, m:],
    )
    owner = F.one_hot(found.parents, k).to(weights.dtype)
    inputs = mixed_embeddings(weights, found.tokens, embedding)
    return Proposal(move, inputs, owner.mT @ weights, state)


def mixed_embeddings(weights: Tensor, tokens: Tensor, embedding: Tensor) -> Tensor:
    """Sums (B, k, D) of the embeddings of ``tokens`` (B, m) with ``weights`` (B, m, k)."""
    batch, m, k = weights.shape
    vocabulary = embedding.shape[0]
    weights = weights.to(embedding.dtype)
    if m <= vocabulary // 16:
        return weights.mT @ embedding[tokens]
    # Their B m D numbers would be more than the weights by token, and a token can occur k times.
    by_token = weights.new_zeros(batch, vocabulary, k)
    by_token = by_token.scatter_add(1, tokens.unsqueeze(-1).expand(-1, -1, k), weights)
    return by_token.mT @ embedding


def accept(proposal: Proposal, eos: int) -> Beam:
    """The beam of a proposal."""
    move = proposal.move
    state = mix_rows(proposal.state, proposal.shares, move.parents)
    return Beam(proposal.inputs.flatten(0, 1), state, move.scores, move.tokens == eos)


def backtrack(moves: list[Move], eos: int, pad: int) -> Tensor:
    """The tokens (B, k, L) of the hypotheses after the last move."""
    at = torch.arange(moves[0].tokens.shape[1], device=moves[0].tokens.device)
    at = at.expand_as(moves[0].tokens)
    tokens = []
    for move in reversed(moves):
        tokens.append(move.tokens.gather(1, at))
        at = move.parents.gather(1, at)
    out = torch.stack(tokens[::-1], -1)
    ends = (out == eos).long()
    return out.masked_fill(ends.cumsum(-1) > ends, pad)


def ancestors_of_best(moves: list[Move], lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The best hypothesis of each sentence after as many steps as it has gold tokens.

    Returns, (B, T) each: which hypothesis it was before each step, and the token it took; both
    undefined beyond the sentence's length.
    """
    at = torch.zeros_like(lengths)
    before, tokens = [], []
    for t in reversed(range(len(moves))):
        move = moves[t]
        best = move.scores.detach().argmax(1)
        at = torch.where(lengths == t + 1, best, at).unsqueeze(1)
        tokens.append(move.tokens.gather(1, at).squeeze(1))
        at = move.parents.gather(1, at).squeeze(1)
        before.append(at)
    return torch.stack(before[::-1], 1), torch.stack(tokens[::-1], 1)


def gold_along_best(moves: list[Move], lengths: Tensor) -> Tensor:
    """Log-probabilities (B, T) of gold, from the states along the best hypothesis.

    NaN for a sentence whose search met one: it has no best hypothesis.
    """
    before, _ = ancestors_of_best(moves, lengths)
    scored = [move.gold_log_probs for move in moves if move.gold_log_probs is not None]
    along = torch.stack(
        [x.gather(1, before[:, t, None]).squeeze(1) for t, x in enumerate(scored)], 1
    )
    met = torch.stack([move.scores.isnan().any(1) for move in moves], 1)  # from then on, True
    return along.masked_fill(met.gather(1, lengths.unsqueeze(1) - 1), math.nan)


def soft_beam_loss(
    step: DecoderStep,
    init_state: State,
    embedding: Tensor,
    gold: Tensor,
    *,
    beam_size: int = 5,
    eps: float = 0.1,
    bos: int = 2,
    eos: int = 3,
    pad: int = 0,
    normalize: Normalize = None,
    solver: Solver = "exact",
    selection_clip: float | None = None,
    follow: Follow = "best",
) -> Tensor:
    """Negative log-likelihood of ``gold`` (B, T) under soft beam search, in nats per gold token.

    The search runs as many steps as the sentence has gold tokens. Where the hypothesis that is
    followed has ended before gold, the rest of gold is scored by what the decoder makes of further
    end tokens. Other arguments as for `soft_beam_search`.

    Args:
        selection_clip: In units of the gradient of one token: the bound is divided by the number of
            gold tokens, as the loss is.
        follow: Which hypothesis gold is scored along. ``"best"``, the paper's: the likeliest at
            the end. Where it has a word more or less than gold, all later positions are compared
            with the wrong gold token. ``"gold"``: the hypothesis whose tokens are gold's so far;
            when there is none left, the search restarts from gold alone.
    """
    check_choice("follow", follow, ("best", "gold"))
    batch, vocabulary = check_search(init_state, embedding, beam_size, bos=bos, eos=eos, pad=pad)
    check_finite(init_state)
    lengths = check_gold(gold, batch, vocabulary, bos=bos, pad=pad, eos=eos)
    counted = gold != pad
    bound = None
    if selection_clip is not None:
        bound = check_not_negative("selection_clip", selection_clip) / int(counted.sum())
    selection = Selection(beam_size, eps, normalize, solver, bound)
    beam = first_beam(init_state, embedding, batch, beam_size, bos)
    if follow == "gold":
        along = _along_gold(step, beam, embedding, selection, gold, eos)
        return -along.masked_fill(~counted, 0.0).sum() / counted.sum()
    moves = []
    for t, wanted in enumerate(gold.unbind(1)):
        proposal = propose(step, beam, embedding, selection, eos, wanted, first=t == 0)
        beam = accept(proposal, eos)
        moves.append(proposal.move)
    along = gold_along_best(moves, lengths)
    return -along.masked_fill(~counted, 0.0).sum() / counted.sum()


def _along_gold(
    step: DecoderStep,
    beam: Beam,
    embedding: Tensor,
    selection: Selection,
    gold: Tensor,
    eos: int,
) -> Tensor:
    """Log-probabilities (B, T) of gold from the hypotheses that are gold's prefixes."""
    held = torch.zeros(len(gold), 1, dtype=torch.long, device=gold.device)  # by which of them
    along = []
    for t, wanted in enumerate(gold.unbind(1)):
        proposal = propose(step, beam, embedding, selection, eos, wanted, first=t == 0)
        move = proposal.move
        assert move.gold_log_probs is not None
        along.append(move.gold_log_probs.gather(1, held))
        kept = (move.parents == held) & (move.tokens == wanted.unsqueeze(1))
        fallen = ~kept.any(1, keepdim=True)
        if fallen.any():
            score = beam.scores.gather(1, held) + along[-1]
            proposal = _restart(proposal, fallen, held, wanted.unsqueeze(1), score, embedding)
        beam = accept(proposal, eos)
        held = kept.long().argmax(1, keepdim=True)  # the first, also after a restart
    return torch.cat(along, 1)


def _restart(
    proposal: Proposal,
    fallen: Tensor,
    held: Tensor,
    token: Tensor,
    score: Tensor,
    embedding: Tensor,
) -> Proposal:
    """Where ``fallen``, the extension of hypothesis ``held`` by ``token``, and no other; (B, 1)."""
    move = proposal.move
    k = move.parents.shape[1]
    nothing = torch.full_like(move.scores[:, 1:], -math.inf)
    restarted = move._replace(
        parents=torch.where(fallen, held, move.parents),
        tokens=torch.where(fallen, token, move.tokens),
        scores=torch.where(fallen, torch.cat([score, nothing], 1), move.scores),
    )
    alone = F.one_hot(held, k).mT.to(proposal.shares.dtype)  # (B, k, 1)
    return Proposal(
        restarted,
        torch.where(fallen.unsqueeze(-1), embedding[token], proposal.inputs),
        torch.where(fallen.unsqueeze(-1), alone, proposal.shares),
        proposal.state,
    )
