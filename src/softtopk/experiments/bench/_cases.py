"""What is measured: a case is one size of one operator at one temperature."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from softtopk.experiments.errors import UsageError

Operator = Literal["unsorted", "sorted"]
Output = Literal["mask", "ranks", "values", "order"]

ON_DEVICE = "sizes on a device"  # a series

EPS = 0.1  # the default of the operators
SEED = 0
CPU = torch.device("cpu")
# Bytes for a score and all that belongs to it: inputs, results and temporaries, which are of
# float32 for bfloat16 too, and the places that a sort returns. Without kernels it may be more.
ROOM = 64


@dataclass(frozen=True)
class Case:
    """One size at one temperature, for all peers or for those that are listed."""

    operator: Operator
    rows: int
    n: int
    k: int
    eps: float = EPS
    series: str = ""
    """The question that the case belongs to; the pictures select by it."""
    peers: tuple[str, ...] = ()
    """Keys of the peers that take part, all of the operator's if empty."""
    check: bool = True
    """Whether to compute the errors, which takes long for long rows."""
    dtype: str = "float32"
    """As torch calls it."""

    @property
    def size(self) -> str:
        return f"{self.rows:,} x {self.n:,}, k = {self.k:,}"

    @property
    def name(self) -> str:
        other = "" if self.dtype == "float32" else f", {self.dtype}"
        return f"{self.operator}, {self.size}, eps = {self.eps:g}{other}"


@dataclass(frozen=True)
class Problem:
    """The tensors of a case, the same for every peer."""

    scores: Tensor
    """(rows, n), standard normal."""
    k: int
    eps: float
    cotangent: Tensor
    """Standard normal, of the shape of the peer's output and the dtype of the scores."""


def scores_of(case: Case, device: torch.device = CPU) -> Tensor:
    """Standard normal scores, (rows, n), the same in every process."""
    return _normal((case.rows, case.n), SEED, getattr(torch, case.dtype), device)


def _normal(shape: tuple[int, ...], seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype, device=device)


def problem_of(case: Case, output: Output, scores: Tensor) -> Problem:
    """The problem of a case for a peer with this kind of output."""
    rows, n = scores.shape
    shape = {
        "mask": (rows, n),
        "ranks": (rows, n, case.k),
        "values": (rows, case.k),
        "order": (rows, n),
    }[output]
    cotangent = _normal(shape, SEED + 1, scores.dtype, scores.device)
    return Problem(scores, case.k, case.eps, cotangent)


def fitted(case: Case, memory: float) -> Case:
    """The case with as many rows, halved again and again, as so many bytes have room for."""
    while case.rows > 1 and case.rows * case.n * ROOM > memory:
        case = replace(case, rows=case.rows // 2)
    return case


def parse_size(text: str) -> tuple[int, int, int]:
    """Rows, n and k from `ROWSxNxK`.

    >>> parse_size("128x1000x10")
    (128, 1000, 10)
    """
    try:
        rows, n, k = (int(number) for number in text.split("x"))
    except ValueError:
        raise UsageError(f"--size {text!r}: give ROWSxNxK, for example 128x1000x10") from None
    if rows < 1 or not 0 < k < n:
        raise UsageError(f"--size {text!r}: need ROWS >= 1 and 0 < K < N, as in 128x1000x10")
    return rows, n, k


def cases_of_size(rows: int, n: int, k: int, eps: float = EPS) -> tuple[Case, ...]:
    """Both operators at one size."""
    operators: tuple[Operator, ...] = ("unsorted", "sorted")
    return tuple(Case(operator, rows, n, k, eps, series="given size") for operator in operators)
