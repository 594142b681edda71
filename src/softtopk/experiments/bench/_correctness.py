"""Whether the operators are right on a device, which is asked before anything is timed there.

Scores of every dtype go to the operator on the device and, as float64, to the one on the CPU. The
values and gradients have to agree to some roundings of float32, in which the half types too are
computed, and of the dtype of the result. A gradient is measured in units of its scale: 1 / tau for
what depends on (scores - threshold) / tau.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import softtopk
from softtopk import kernels

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Rows and n. The long and the many rows, which take longer, with one family at one temperature.
SIZES = ((7, 5), (5, 64), (3, 1_000))
LARGE_SIZES = ((2, 40_001), (2_050, 33))
TEMPERATURES = (1e-3, 0.1, 10.0)
FAMILIES = ("normal", "ties", "infinities", "mask")
RANKS = 8  # at most, of the sorted operator
# Roundings of float32: of a value, of the largest gradient of its row, and of the scale of either.
# At a low temperature the derivative of the threshold is a quotient of small exponentials, which
# takes many. The CPU needs an eighth of them.
VALUE, GRADIENT, LEAST = 32, 256, 16


class Checked(NamedTuple):
    """An operator, called with scores, k, eps and mask."""

    call: Callable[..., Tensor]
    ranks: bool = False
    gradient_scale: Callable[[float], float] = lambda tau: 1.0 / min(tau, 1.0)
    takes_infinity: bool = True
    """Whether +inf has a result; a softmax of it has none."""


OPERATORS = {
    "soft_topk": Checked(softtopk.soft_topk),
    "log_soft_topk": Checked(softtopk.log_soft_topk),
    "topk_threshold": Checked(softtopk.topk_threshold, gradient_scale=lambda tau: 1.0),
    "soft_topk_softmax": Checked(softtopk.soft_topk_softmax, takes_infinity=False),
    "sorted_soft_topk": Checked(softtopk.sorted_soft_topk, ranks=True),
}


class Example(NamedTuple):
    """One input."""

    rows: int
    n: int
    eps: float
    family: str
    dtype: torch.dtype

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.rows} x {self.n}, eps = {self.eps:g}, {self.family}, {dtype}"


EXAMPLES = tuple(
    Example(*size, eps, family, dtype)
    for dtype in DTYPES
    for size, eps, family in (
        *itertools.product(SIZES, TEMPERATURES if dtype is torch.float32 else (0.1,), FAMILIES),
        *((size, 0.1, "normal") for size in LARGE_SIZES),
    )
)


def failures(
    device: torch.device,
    operators: dict[str, Checked] = OPERATORS,
    examples: Sequence[Example] = EXAMPLES,
) -> Iterator[str]:
    """What is wrong on the device, a line for each, with kernels and without."""
    paths: dict[str, Callable[[], contextlib.AbstractContextManager[None]]]
    paths = {"": contextlib.nullcontext, " without kernels": kernels.plain}
    for example, (name, operator) in itertools.product(examples, operators.items()):
        wanted = _values_and_gradient(operator, example, torch.device("cpu"), torch.float64)
        for path, entered in paths.items():
            try:
                with entered():
                    found = _values_and_gradient(operator, example, device, example.dtype)
            except Exception as error:
                text = " ".join(str(error).split())
                wrong: str | None = f"{type(error).__name__}: {text[:300]}"
            else:
                wrong = _differs(found, wanted, example, operator)
            if wrong:
                yield f"{name}{path}, {example}: {wrong}"


def _values_and_gradient(
    operator: Checked, example: Example, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """On the CPU, in float64."""
    scores, mask = _scores(example, operator.takes_infinity)
    scores = scores.to(dtype).to(device).requires_grad_()
    k = max(1, example.n // 3)
    options: dict[str, Any] = {
        "eps": example.eps,
        "mask": None if mask is None else mask.to(device),
    }
    result = operator.call(scores, min(k, RANKS) if operator.ranks else k, **options)
    # The same numbers for both dtypes.
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(result.shape, generator=generator).to(example.dtype)
    # An infinite threshold or logarithm does not move.
    cotangent = torch.where(result.detach().cpu().isfinite(), cotangent, 0.0)
    (gradient,) = torch.autograd.grad(result, scores, cotangent.to(result))
    return result.detach().cpu().double(), gradient.cpu().double()


def _scores(example: Example, infinity: bool) -> tuple[Tensor, Tensor | None]:
    """As float64 numbers that the dtype has, and a mask."""
    generator = torch.Generator().manual_seed(0)
    shape = (example.rows, example.n)
    scores = torch.randn(shape, generator=generator).to(example.dtype).double()
    some = torch.rand(shape, generator=generator)
    if example.family == "ties":
        scores = scores.round()
    elif example.family == "infinities":
        scores = torch.where(some < 0.2, -math.inf, scores)
        if infinity:
            scores = torch.where(some > 0.9, math.inf, scores)
            scores[0] = math.inf  # more than there are places
        scores[1] = -math.inf  # nothing takes part
    elif example.family == "mask":
        mask = some < 0.6
        mask[0], mask[1] = False, torch.arange(example.n) == 0
        return scores.masked_fill(~mask, math.nan), mask
    return scores, None


def _differs(
    found: tuple[Tensor, Tensor],
    wanted: tuple[Tensor, Tensor],
    example: Example,
    operator: Checked,
) -> str | None:
    values, gradient = wanted
    # A derivative is a sum over its row, whose terms may cancel.
    rows = gradient.masked_fill(~gradient.isfinite(), 0.0).abs().amax(-1, keepdim=True)
    for what, got, right, size, least in (
        ("value", found[0], values, VALUE * values.abs(), max(1.0, example.eps)),
        ("gradient", found[1], gradient, GRADIENT * rows, operator.gradient_scale(example.eps / 2)),
    ):
        single, half = torch.finfo(torch.float32).eps, torch.finfo(example.dtype).eps
        right = right.to(example.dtype).double()
        allowed = single * (size + LEAST * least) + 2 * half * right.abs()
        same = (got == right) | (got.isnan() & right.isnan())
        error = torch.where(same, 0.0, (got - right).abs() / allowed).nan_to_num(nan=math.inf)
        worst = int(error.argmax())
        times = float(error.flatten()[worst])
        if times > 1:
            bound = float(allowed.expand_as(error).flatten()[worst])
            return f"{what} off by {times:.2g} times the {bound:.1g} that is allowed"
    return None
