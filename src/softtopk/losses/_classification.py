"""Classification by the k largest logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._checks import Strength, check_integer, check_mask, check_range, check_scores
from ..functional import log_soft_topk
from ..functional._rows import compute_dtype
from ._queries import Cutoffs, Reduction, cutoffs_of, queries_of, reduced, selected, weighted


def topk_cross_entropy(
    scores: Tensor,
    labels: Tensor,
    k: Cutoffs,
    *,
    weights: Sequence[float] | None = None,
    eps: Strength = 2.0,
    mask: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    group: Any = None,
) -> Tensor:
    r"""Cross-entropy of "the label is among the k largest logits".

    With A the soft indicator of the k largest it is :math:`-\log A_y`, a relaxation of
    ``-log(label in scores.topk(k).indices)``, which is 0 or infinite. It is computed from
    `softtopk.log_soft_topk`: however low the label ranks, the gradient does not vanish, up to a
    loss of 1e19. It bounds `hit_at_k_loss` with one positive from above, and `recall_at_k_loss`
    with several.

    k = 1 is close to ``torch.nn.functional.cross_entropy(scores / tau, labels)``, tau = eps / 2.
    There the *probabilities* of the classes are proportional to exp(logit / tau) and sum to one;
    here their *odds* A / (1 - A) are, and A sums to k. Where all of A is small, as with many
    classes at a high eps, the two agree. As eps -> 0, tau times the loss becomes a hinge: the
    distance from the label's logit up to the midpoint of the k-th and the (k+1)-th logit, and 0
    above it. For cross-entropy it is the distance up to the largest logit.

    Args:
        scores: (..., n), the logits, one for each of n classes.
        labels: (...), integers. Or (..., n), booleans, for several labels: the loss is the mean
            over them, and can only be small if there are at most k.
        k: The cutoff, or a list or tuple of them: the loss is then the weighted mean over these.
        weights: For several cutoffs, a number for each; the default is equal ones.
        eps: Temperature, a float or a tensor that broadcasts to (...). The default is tau = 1, the
            unit of ``cross_entropy``: it is for logits that a model is free to scale. Cosine
            similarities need a smaller one, such as 0.2.
        mask: Boolean, broadcasts to scores; True takes part. A masked class is treated as if it
            were deleted. A sample whose label is masked has none.
        ignore_index: Samples with this label are left out, as in ``cross_entropy``.
        reduction: As for `recall_at_k_loss`. Samples without a label are left out of the mean.
        group: As for `recall_at_k_loss`.

    Returns:
        The loss, not negative; float32 if the scores have a half precision.

    >>> scores = torch.tensor([[2.0, 1.0, -1.0, 0.5], [0.0, 3.0, 2.0, 1.0]])
    >>> labels = torch.tensor([1, 0])
    >>> topk_cross_entropy(scores, labels, 1)
    tensor(2.1299)
    >>> topk_cross_entropy(scores, labels, (1, 3))
    tensor(1.2923)

    References:
        Berrada, Zisserman and Kumar, Smooth Loss Functions for Deep Top-k Classification, ICLR
        2018.
        Petersen, Kuehne, Borgelt and Deussen, Differentiable Top-k Classification Learning, ICML
        2022; for several k they take the logarithm of the weighted mean, here it is the weighted
        mean of the logarithms.
    """
    ks, shares = cutoffs_of(k, weights)
    check_integer("ignore_index", ignore_index, -(2**63))
    if isinstance(labels, Tensor) and labels.dtype is torch.bool:
        queries = queries_of(scores, labels, mask, "labels")
        log_a = selected(log_soft_topk, queries.scores, ks, eps, queries.mask)
        each = _bounded(log_a).masked_fill(queries.gains.unsqueeze(-2) == 0, 0.0)
        likelihood = each.sum(-1) / queries.positives.unsqueeze(-1)
        return reduced(-weighted(likelihood, shares), queries.valid, reduction, group)
    index, valid = _classes(scores, labels, mask, ignore_index)
    x = scores.to(compute_dtype(scores.dtype))
    log_a = selected(log_soft_topk, x, ks, eps, mask)
    index = index.unsqueeze(-1).unsqueeze(-1).expand(*index.shape, len(ks), 1)
    likelihood = _bounded(log_a.gather(-1, index).squeeze(-1))
    return reduced(-weighted(likelihood, shares), valid, reduction, group)


def _classes(
    scores: Tensor, labels: Tensor, mask: Tensor | None, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The class of every sample (...), 0 where there is none, and where there is one (...)."""
    check_scores(scores, -1)
    check_mask(mask, scores)
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a torch.Tensor, got {type(labels).__name__}")
    if labels.is_floating_point() or labels.is_complex():
        raise TypeError(f"labels must be integers or booleans, got {labels.dtype}; use .long()")
    if labels.shape != scores.shape[:-1]:
        raise ValueError(
            f"labels must be integers of shape {tuple(scores.shape[:-1])}, or booleans of shape "
            f"{tuple(scores.shape)}, got shape {tuple(labels.shape)}"
        )
    labels = labels.long()  # a narrow type would turn ignore_index into a class
    valid = labels != ignore_index
    index = labels.masked_fill(~valid, 0)
    check_range("labels", index, 0, scores.shape[-1] - 1)
    if mask is not None:
        taking_part = mask.expand(scores.shape).gather(-1, index.unsqueeze(-1)).squeeze(-1)
        valid = valid & taking_part
    return index, valid


def _bounded(log_a: Tensor) -> Tensor:
    """A logarithm that is too large for its dtype, or that of a logit of -inf, without a gradient.
    Of these numbers a sum is still finite."""
    return log_a.clamp(min=-(torch.finfo(log_a.dtype).max ** 0.5))
