"""What is measured: a case is one size of one operator at one temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from softtopk.experiments.errors import UsageError

Operator = Literal["unsorted", "sorted"]
Output = Literal["mask", "ranks", "values", "order"]

EPS = 0.1  # the default of the operators
SEED = 0


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

    @property
    def name(self) -> str:
        size = f"{self.rows:,} x {self.n:,}, k = {self.k:,}"
        return f"{self.operator}, {size}, eps = {self.eps:g}"


@dataclass(frozen=True)
class Problem:
    """The tensors of a case, the same for every peer."""

    scores: Tensor
    """(rows, n), standard normal float32."""
    k: int
    eps: float
    cotangent: Tensor
    """Standard normal, of the shape of the peer's output."""


def scores_of(case: Case) -> Tensor:
    """Standard normal float32 scores, (rows, n), the same in every process."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(case.rows, case.n, generator=generator)


def problem_of(case: Case, output: Output, scores: Tensor) -> Problem:
    """The problem of a case for a peer with this kind of output."""
    rows, n = scores.shape
    shape = {
        "mask": (rows, n),
        "ranks": (rows, n, case.k),
        "values": (rows, case.k),
        "order": (rows, n),
    }[output]
    cotangent = torch.randn(shape, generator=torch.Generator().manual_seed(SEED + 1))
    return Problem(scores, case.k, case.eps, cotangent)


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
