"""RelaxSubSample: a relaxed sample of k elements without replacement."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._checks import check_flag
from ._candidates import Candidates, candidates_of, check_generator, gumbel_like, softmax


def relaxed_subset(
    scores: Tensor,
    k: int,
    *,
    eps: float = 1.0,
    mask: Tensor | None = None,
    noise: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""RelaxSubSample: k softmaxes in a row, each of which softly removes what it has selected.

    A relaxation of ``one_hot(keys.topk(k).indices).sum(0)`` with ``keys = scores + gumbel``, which
    is a sample of k elements without replacement, with log-weights ``scores``:

    .. math::
        \alpha^{(1)} = x + g, \quad p^{(j)} = \mathrm{softmax}(\alpha^{(j)} / \epsilon), \quad
        \alpha^{(j+1)} = \alpha^{(j)} + \log(1 - p^{(j)}), \qquad A = \sum_{j=1}^k p^{(j)}.

    Args:
        scores: (..., n), floating; float16 and bfloat16 are computed in float32.
        k: How many to select, 0 <= k <= n.
        eps: Temperature of the softmax (t of the reference), positive.
        mask: Boolean, broadcasts to scores; True takes part. A masked element is treated as if it
            were deleted. So is a score of -inf. NaN or +inf makes its row NaN.
        noise: Add the Gumbel noise g. Without it the relaxation is deterministic.
        generator: Source of the noise.

    Returns:
        A (..., n), not negative, with sum k, where at most k elements take part 1 everywhere. It
        is **not** bounded by one, since the removal is soft: at eps = 1, the weights [0.9, 0.05,
        0.05] are followed by [0.49, 0.26, 0.26]. Every removal multiplies derivatives by up to
        1 / eps, so that they may grow like eps^-k; near the end of the range of the dtype they are
        clamped.

    >>> scores = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2])
    >>> relaxed_subset(scores, 2, eps=0.5, noise=False)
    tensor([0.0681, 0.1218, 0.9455, 0.8438, 0.0209])
    >>> sample = relaxed_subset(scores, 2, generator=torch.Generator().manual_seed(0))
    >>> round(sample.sum().item(), 4)
    2.0

    References:
        Xie and Ermon, Reparameterizable Subset Sampling via Continuous Relaxations, IJCAI 2019.
    """
    check_flag("noise", noise)
    check_generator(generator, noise, "set noise=True")
    rows = candidates_of(scores, k, eps, mask)
    keys = rows.scores
    if noise:
        keys = keys + gumbel_like(keys.detach(), generator)
    selection = keys - keys  # zeros, and differentiable also if k = 0
    for _ in range(rows.k):
        keys = _centre(keys, rows)
        weights = softmax(keys / rows.eps, rows.part)
        selection = selection + weights
        keys = keys + _log_left_out(keys / rows.eps, weights, rows.part)
    return rows.settle(selection)


def _centre(keys: Tensor, rows: Candidates) -> Tensor:
    """Keys measured from the largest, within what can be divided by eps: (..., n) -> (..., n).

    Only differences matter. The bound keeps the order of what lies above it; a hundred or so below
    the largest would do for the softmax, but not for an element that comes first once those above
    it have been removed.
    """
    info = torch.finfo(keys.dtype)
    top = keys.detach().masked_fill(~rows.part, info.min).amax(-1, keepdim=True)
    within = 0.125 * info.max * min(rows.eps, 1.0)
    centred = (keys - top).clamp(min=-within)
    # One step back, a cotangent is divided by eps and summed over the row.
    return _Bounded.apply(centred, 0.5 * within / rows.n)


def _log_left_out(exponents: Tensor, weights: Tensor, part: Tensor) -> Tensor:
    """log(1 - weights) for ``weights = softmax(exponents)``, exact also where a weight rounds to 1.

    The reference clamps 1 - p from below, which bounds how far an element can be removed. Here that
    of the largest weight is summed over the others; all other weights are at most 1/2.
    """
    first = exponents.detach().masked_fill(~part, -torch.inf).argmax(-1, keepdim=True)
    is_first = torch.zeros_like(part).scatter(-1, first, True)
    lowest = torch.finfo(exponents.dtype).min
    others = exponents.masked_fill(is_first | ~part, lowest).logsumexp(-1, keepdim=True)
    both = torch.logaddexp(others, exponents.gather(-1, first))
    return torch.where(is_first, others - both, torch.log1p(-weights.masked_fill(is_first, 0.0)))


class _Bounded(torch.autograd.Function):
    """The identity, with derivatives clamped to a bound.

    They grow with every step, and past infinity they would become NaN.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bound: float) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.bound = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.clamp(-ctx.bound, ctx.bound), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent.clamp(-ctx.bound, ctx.bound)
