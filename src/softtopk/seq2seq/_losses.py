"""Teacher forcing, and its mixture with a loss of the search."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from .._checks import check_choice, check_share
from ._checks import check_gold, check_search, run_step
from ._membership import beam_membership_loss
from ._risk import beam_risk_loss
from ._soft_beam import soft_beam_loss
from ._states import DecoderStep, State, at_least_single

Objective = Literal["soft-beam", "membership", "risk"]
LOSSES: dict[str, Callable[..., Tensor]] = {
    "soft-beam": soft_beam_loss,
    "membership": beam_membership_loss,
    "risk": beam_risk_loss,
}
# The weight of teacher forcing. That of the soft beam is the paper's; those of the others are from
# trials on translation, docs/notebook.md, where 0.3 had no rival. A risk of at most about 1 has a
# gradient that is small beside that of a log-likelihood: it has most of the weight.
RHO: dict[str, float] = {"soft-beam": 0.8, "membership": 0.3, "risk": 0.05}


def teacher_forcing_loss(
    step: DecoderStep,
    init_state: State,
    embedding: Tensor,
    gold: Tensor,
    *,
    bos: int = 2,
    pad: int = 0,
) -> Tensor:
    """Negative log-likelihood of ``gold`` (B, T), fed with itself, in nats per gold token."""
    batch, vocabulary = check_search(init_state, embedding, 1, bos=bos, pad=pad)
    check_gold(gold, batch, vocabulary, bos=bos, pad=pad)
    state, last = init_state, torch.full_like(gold[:, 0], bos)
    likelihoods = []
    for t, token in enumerate(gold.unbind(1)):
        log_probs, state = run_step(step, embedding[last], state, vocabulary, first=t == 0)
        likelihoods.append(at_least_single(log_probs.gather(1, token.unsqueeze(1))))
        last = token
    counted = gold != pad
    return -torch.cat(likelihoods, 1).masked_fill(~counted, 0.0).sum() / counted.sum()


def hybrid_loss(
    step: DecoderStep,
    init_state: State,
    embedding: Tensor,
    gold: Tensor,
    *,
    objective: Objective,
    rho: float | None = None,
    teacher_forcing: Tensor | None = None,
    bos: int = 2,
    eos: int = 3,
    pad: int = 0,
    **options: Any,
) -> Tensor:
    """rho * teacher forcing + (1 - rho) * a loss of the search.

    The paper maximises rho L_tf + (1 - rho) L_SOFT, a sum of likelihoods, each a product over the
    tokens. Those underflow, and their sum is that of the larger one. Here each is replaced by its
    logarithm per token (a risk is taken as it is). The gradients are then those of log L_tf and
    log L_SOFT with the weights rho and 1 - rho, where the paper's sum weighs them with rho L_tf and
    (1 - rho) L_SOFT.

    Args:
        step, init_state, embedding, gold, bos, eos, pad: As for `soft_beam_loss`.
        objective: ``"risk"`` for `beam_risk_loss`, ``"membership"`` for `beam_membership_loss`,
            ``"soft-beam"`` for `soft_beam_loss`, the paper's. The manual says which to take.
        rho: Teacher forcing ratio; the part whose weight is 0 is not computed. Default: 0.8 for
            soft-beam, the paper's; 0.3 for membership; 0.05 for a risk, if it is at most about 1.
        teacher_forcing: That loss, a tensor (), if it is there already: a model that knows all
            inputs in advance computes it faster than step by step.
        options: Further arguments of the objective, such as ``beam_size`` and ``eps``; that of a
            risk has to be given, ``risk``.
    """
    check_choice("objective", objective, tuple(LOSSES))
    rho = RHO[objective] if rho is None else check_share("rho", rho)
    search = LOSSES[objective]
    known = [
        name
        for name, parameter in inspect.signature(search).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    unknown = options.keys() - set(known)
    if unknown:
        raise TypeError(
            f"{', '.join(sorted(unknown))} is no option of objective={objective!r}, which has "
            f"{', '.join(known)}"
        )
    if teacher_forcing is not None:
        if not isinstance(teacher_forcing, Tensor):
            kind = type(teacher_forcing).__name__
            raise TypeError(f"teacher_forcing must be a loss, a tensor of shape (), got {kind}")
        if teacher_forcing.ndim:
            shape = tuple(teacher_forcing.shape)
            raise ValueError(f"teacher_forcing must be a loss, a tensor of shape (), got {shape}")
    parts = []
    if rho > 0:
        if teacher_forcing is None:
            teacher_forcing = teacher_forcing_loss(
                step, init_state, embedding, gold, bos=bos, pad=pad
            )
        parts.append(rho * teacher_forcing)
    if rho < 1:
        found = search(step, init_state, embedding, gold, bos=bos, eos=eos, pad=pad, **options)
        parts.append((1 - rho) * found)
    return torch.stack(parts).sum()
