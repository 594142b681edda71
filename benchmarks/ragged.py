"""What do rows of different lengths cost, with offsets, padded, and one by one?

    python benchmarks/ragged.py            # two minutes on one core

Every row selects a tenth of its elements. Times are the least of --repeats runs, in ns per element,
padding not counted among these. The scores come joined, so padding them, and joining the result, is
part of the time. Rows of one length need neither: what offsets cost where they are of no use.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from softtopk import log_soft_topk, soft_topk, soft_topk_softmax

OPERATORS = (soft_topk, soft_topk_softmax, log_soft_topk)
LONGEST = 10_000


def log_uniform(generator: torch.Generator) -> Tensor:
    return (LONGEST ** torch.rand(500, generator=generator)).long().clamp(min=1)


def one_long(generator: torch.Generator) -> Tensor:
    lengths = torch.randint(1, 20, (4000,), generator=generator)
    lengths[1000] = LONGEST
    return lengths


def even(_: torch.Generator) -> Tensor:
    return torch.full((1000,), 1000)


LENGTHS = {
    "1 to 10,000, log-uniform": log_uniform,
    "one of 10,000, others below 20": one_long,
    "1,000 each": even,
}
Operator = Callable[..., Tensor]


def by_offsets(operator: Operator, scores: Tensor, k: Tensor, offsets: Tensor) -> Tensor:
    return operator(scores, k, offsets=offsets)


def by_padding(operator: Operator, scores: Tensor, k: Tensor, offsets: Tensor) -> Tensor:
    lengths = offsets.diff()
    if bool((lengths == lengths[0]).all()):
        return operator(scores.view(lengths.numel(), -1), k).flatten()
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(-1)
    padded = scores.new_zeros(mask.shape).masked_scatter(mask, scores)
    return operator(padded, k, mask=mask)[mask]


def one_by_one(operator: Operator, scores: Tensor, k: Tensor, offsets: Tensor) -> Tensor:
    rows = scores.split(offsets.diff().tolist())
    return torch.cat([operator(row, n) for row, n in zip(rows, k.tolist(), strict=True)])


FORMS = (by_offsets, by_padding, one_by_one)


def least_times(
    operator: Operator, scores: Tensor, k: Tensor, offsets: Tensor, backward: bool, repeats: int
) -> list[float]:
    """Of the forms, in turns: what else the machine does meets all of them."""
    leaf, grad = scores.clone().requires_grad_(backward), torch.randn_like(scores)
    times = [float("inf")] * len(FORMS)
    for _ in range(repeats + 1):  # the first is to warm up
        for i, form in enumerate(FORMS):
            start = time.perf_counter()
            result = form(operator, leaf, k, offsets)
            if backward:
                torch.autograd.grad(result, leaf, grad)
            times[i] = min(times[i], time.perf_counter() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    names = ("offsets, ns", "padded, ns", "one by one, ns", "padded / offsets", "loop / offsets")
    print(f"| lengths | operator | pass | {' | '.join(names)} |")
    print("|---|---|---|" + len(names) * "--:|")
    generator = torch.Generator().manual_seed(0)
    for title, draw in LENGTHS.items():
        lengths = draw(generator)
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        scores = torch.randn(int(offsets[-1]), generator=generator)
        k = (lengths // 10).clamp(min=1)
        for operator in OPERATORS:
            for backward in (False, True):
                times = least_times(operator, scores, k, offsets, backward, args.repeats)
                cells = [f"{1e9 * each / scores.numel():.1f}" for each in times]
                cells += [f"{each / times[0]:.1f}" for each in times[1:]]
                step = "both" if backward else "forward"
                print(f"| {title} | `{operator.__name__}` | {step} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
