"""The check before the benchmark: right operators pass, and every kind of fault is found."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import softtopk
from softtopk.experiments.bench._correctness import (
    EXAMPLES,
    OPERATORS,
    Checked,
    Example,
    failures,
)

CPU = torch.device("cpu")
NORMAL = Example(3, 40, 0.1, "normal", torch.float32)


@pytest.mark.slow
def test_the_operators_are_right_on_the_cpu() -> None:
    """`test_a_run` of the command looks at some of the examples."""
    assert not list(failures(CPU))


def test_every_kind_of_input_is_there() -> None:
    assert {example.family for example in EXAMPLES} == {"normal", "ties", "infinities", "mask"}
    assert {e.dtype for e in EXAMPLES} == {torch.float32, torch.float16, torch.bfloat16}
    assert {example.eps for example in EXAMPLES} == {1e-3, 0.1, 10.0}
    assert set(OPERATORS) == {
        "soft_topk",
        "log_soft_topk",
        "topk_threshold",
        "soft_topk_softmax",
        "sorted_soft_topk",
    }


class Broken(torch.autograd.Function):
    """The right value with a derivative that is off."""

    @staticmethod
    def forward(ctx: object, a: Tensor) -> Tensor:
        return a.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad * 1.001


def raising(a: Tensor) -> Tensor:
    raise RuntimeError("no kernel for this size")


FAULTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "value": (lambda a: a + 1e-5, "value off by"),
    "gradient": (Broken.apply, "gradient off by"),
    "NaN": (lambda a: torch.where(a == a.amax(), math.nan, a), "value off by inf"),
    "error": (raising, "RuntimeError: no kernel for this size"),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(name: str, fault: str) -> None:
    right = OPERATORS[name]
    change, message = FAULTS[fault]

    def wrong(scores: Tensor, k: int, **options: object) -> Tensor:
        result = right.call(scores, k, **options)
        return result if scores.dtype is torch.float64 else change(result)

    found = list(failures(CPU, {name: right._replace(call=wrong)}, [NORMAL]))
    assert len(found) == 2  # with kernels and without
    assert found[0].startswith(f"{name}, 3 x 40, eps = 0.1, normal, float32: {message}")
    assert found[1].startswith(f"{name} without kernels, 3 x 40")
    assert not list(failures(CPU, {name: right}, [NORMAL]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_fault_of_a_half_type(dtype: torch.dtype) -> None:
    """One that computes in the half type, and not in float32."""

    def rounding(scores: Tensor, k: int, *, eps: float, mask: Tensor | None) -> Tensor:
        if scores.dtype is dtype:
            scores = (scores / eps).to(dtype) * eps
        return softtopk.soft_topk(scores, k, eps=eps, mask=mask)

    found = list(failures(CPU, {"soft_topk": Checked(rounding)}, [NORMAL._replace(dtype=dtype)]))
    assert len(found) == 2


@pytest.mark.parametrize(
    ("family", "fault"),
    [
        ("ties", lambda x, a, mask: a + 1e-4 * ((x == x.amax(-1, True)).sum(-1, True) > 1)),
        ("infinities", lambda x, a, mask: torch.where(x == -math.inf, 1e-4, a)),
        ("mask", lambda x, a, mask: torch.where(mask, a, 1e-4)),
    ],
)
def test_a_fault_in_the_special_cases(family: str, fault: Callable[..., Tensor]) -> None:
    def wrong(scores: Tensor, k: int, *, eps: float, mask: Tensor | None) -> Tensor:
        a = softtopk.soft_topk(scores, k, eps=eps, mask=mask)
        return a if scores.dtype is torch.float64 else fault(scores, a, mask)

    example = NORMAL._replace(family=family)
    assert list(failures(CPU, {"soft_topk": Checked(wrong)}, [example]))
    assert not list(failures(CPU, {"soft_topk": OPERATORS["soft_topk"]}, [example]))
