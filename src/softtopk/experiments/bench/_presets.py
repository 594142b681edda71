"""The presets: lists of cases, each with the effort to spend on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ._cases import ON_DEVICE, Case, Operator
from ._targets import TARGET_CASES


@dataclass(frozen=True)
class Preset:
    """A list of cases with the effort to spend on them."""

    cases: tuple[Case, ...]
    repeats: int
    budget: float
    """Seconds for one peer in one case."""
    fit: bool = False
    """Whether a case that the memory has no room for is measured with fewer rows."""


def _against_n(operator: Operator, exponents: Sequence[int]) -> list[Case]:
    # The same few rows at every n: the largest has 4 x 10^7 scores, 160 MB in float32.
    return [Case(operator, 4, 10**e, 10, series="time against n") for e in exponents]


def _error_against_time(operator: Operator, rows: int) -> list[Case]:
    # A temperature at which Sinkhorn's algorithm gets close in 200 iterations, and one ten times
    # lower, at which it does not. The paper's MNIST setting, eps = 1e-3 of the largest cost, lies
    # between the two: the largest cost of 128 x 1000 normal scores is about 28.
    return [
        Case(operator, rows, 1_000, 10, eps, series="error against time") for eps in (0.1, 0.01)
    ]


def _sizes_of_use() -> list[Case]:
    return [
        Case("unsorted", 100, 100, 9, series="sizes of use"),
        Case("unsorted", 64, 10_000, 64, series="sizes of use"),
        Case("unsorted", 16, 50_000, 500, series="sizes of use"),
        # 8 sentences, 8 heads, 512 queries that look at 512 keys each.
        Case("unsorted", 8 * 8 * 512, 512, 32, series="attention"),
    ]


FULL = Preset(
    cases=(
        *_against_n("unsorted", (2, 3, 4, 5, 6, 7)),
        *_error_against_time("unsorted", 128),
        *_sizes_of_use(),
        *_against_n("sorted", (2, 3, 4, 5, 6)),
        *_error_against_time("sorted", 128),
    ),
    repeats=7,
    budget=6.0,
)

QUICK = Preset(
    cases=(
        *_against_n("unsorted", (2, 3, 4)),
        *_error_against_time("unsorted", 16),
        *_against_n("sorted", (2, 3)),
    ),
    repeats=5,
    budget=2.0,
)

# Against the hard operators of torch, and against ourselves without kernels.
GPU_PEERS = ("softtopk", "plain", "topk", "softmax", "sort")
# Rows, n and k.
GPU_SIZES = (
    (4_096, 1_024, 64),
    (1_000_000, 512, 32),  # attention: 128 sequences, 16 heads, about 512 queries
    (128, 8_192, 64),
    (64, 100_000, 100),
    (8, 1_000_000, 100),
    (1, 10_000_000, 1_000),
)


def on_device(sizes: Sequence[tuple[int, int, int]]) -> tuple[Case, ...]:
    """Sizes in both dtypes that a training has."""
    return tuple(
        Case("unsorted", *size, series=ON_DEVICE, peers=GPU_PEERS, dtype=dtype)
        for dtype in ("float32", "bfloat16")
        for size in sizes
    )


GPU = Preset(cases=on_device(GPU_SIZES), repeats=20, budget=4.0, fit=True)

# The medians of short calls, of which some rows are ratios, need more repetitions.
TARGET_RUN = Preset(cases=TARGET_CASES, repeats=15, budget=60.0)

PRESETS = {"full": FULL, "quick": QUICK, "gpu": GPU, "targets": TARGET_RUN}
