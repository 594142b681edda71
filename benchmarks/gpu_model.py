"""How long would `soft_topk` take on a GPU? Computed, not measured.

    python benchmarks/gpu_model.py          # a Markdown table, in a few seconds

The model: launches times their latency, plus bytes over the bandwidth of the memory. It leaves out
arithmetic, occupancy, reductions inside of a program, and caches: where a long row stays in the L2
cache, its passes take less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from softtopk import kernels, soft_topk

# Bytes per second, as the vendors publish them.
CARDS = {"A100 80 GB SXM": 2.04e12, "H100 SXM": 3.35e12, "RTX 4090": 1.01e12}
LATENCY = 4e-6  # seconds from one small kernel to the next: an assumption, usual values are 2 to 10
SHAPES = [(4096, 1024), (1_000_000, 512), (128, 8192), (8, 1_000_000), (1, 10_000_000)]
K = 10
ITEM = 4  # bytes of a float32
# Reads of a long row: a histogram for each of 3 digits of the keys, 2 passes to look at elements, 4
# steps of Newton's method (the usual number), and the pass that writes the result.
LONG_READS = 3 + 2 + 4 + 1
IN_REGISTERS = 8192
# torch.topk selects by 4 digits of 8 bits and then collects: an assumption about its passes.
TOPK_READS, TOPK_LAUNCHES = 5, 2
COUNTED = (
    200_000  # elements for which the plain path is really run; its bytes grow with their number
)


class Traffic(TorchDispatchMode):
    """Counts operations that are not views, and the bytes that each reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.launches, self.bytes = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        # Numbers are tensors without an axis, and stay on the host.
        on_device = any(x.ndim for x in tensors(result))
        if on_device and not function.is_view and "empty" not in str(function):
            self.launches += 1
            self.bytes += sum(x.numel() * x.itemsize for x in tensors((args, result)))
        return result


def tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)


def plain(rows: int, n: int) -> tuple[int, float]:
    """Launches and bytes of the plain path, forward and backward, as a device takes it: without
    looking at values."""
    some = max(1, min(rows, COUNTED // n))
    length = min(n, COUNTED)
    scores = torch.randn(some, length, requires_grad=True)
    with kernels.plain(), Traffic() as traffic:
        soft_topk(scores, K).backward(torch.ones(some, length))
    return traffic.launches, traffic.bytes * (rows / some) * (n / length)


def ours(rows: int, n: int) -> tuple[int, float]:
    size = rows * n * ITEM
    if n <= IN_REGISTERS:
        return 2, 2 * size + 3 * size  # scores, A; scores, gradient, gradient
    few = rows < 100  # then programs share a row: memsets before each launch
    return 2 + 3 * few, (LONG_READS + 1) * size + 5 * size


def main() -> None:
    print(f"| rows x n | | launches | MB | {' | '.join(CARDS)} |")
    print(f"|---|---|--:|--:|{'--:|' * len(CARDS)}")
    for rows, n in SHAPES:
        size = rows * n * ITEM
        for name, (launches, moved) in {
            "`soft_topk`, Triton": ours(rows, n),
            "`soft_topk`, plain": plain(rows, n),
            "`torch.topk`, forward only": (TOPK_LAUNCHES, TOPK_READS * size),
        }.items():
            times = [launches * LATENCY + moved / bandwidth for bandwidth in CARDS.values()]
            shown = " | ".join(
                f"{1e3 * t:.{max(0, 2 - math.ceil(math.log10(1e3 * t)))}f}" for t in times
            )
            print(f"| {rows:,} x {n:,} | {name} | {launches} | {moved / 1e6:,.0f} | {shown} |")


if __name__ == "__main__":
    main()
