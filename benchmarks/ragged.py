"""What do rows of different lengths cost, with offsets, padded, and one by one?

    python benchmarks/ragged.py            # a minute on one core

Every row selects a tenth of its elements. "Even" rows have one length: what offsets cost where they
are not needed. Times are the least of --repeats runs, in ns per element that is there. Padding is
part of the time of the padded operator, since the scores come joined: a scatter and a gather. The
ratios are those of the padded operator and of the loop to the one with offsets.
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
MOST_PADDED = 50_000_000  # elements; more do not fit beside the results


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
    "even, 1,000": even,
}
Operator = Callable[..., Tensor]


def by_offsets(operator: Operator, scores: Tensor, k: Tensor, offsets: Tensor) -> Tensor:
    return operator(scores, k, offsets=offsets)


def by_padding(operator: Operator, scores: Tensor, k: Tensor, offsets: Tensor) -> Tensor:
    lengths = offsets.diff()
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(-1)
    padded = scores.new_zeros(mask.shape).masked_scatter(mask, scores)
    return operator(padded, k, mask=mask)[mask]


def one_by_one(operator: Operator, scores: Tensor, k: Tensor, offsets: Tensor) -> Tensor:
    rows = scores.split(offsets.diff().tolist())
    return torch.cat([operator(row, n) for row, n in zip(rows, k.tolist(), strict=True)])


FORMS = (by_offsets, by_padding, one_by_one)


def least_time(call: Callable[[], object], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(form: Callable[..., Tensor], problem: tuple, backward: bool, repeats: int) -> float:
    operator, scores, k, offsets = problem
    if not backward:
        return least_time(lambda: form(operator, scores, k, offsets), repeats)
    leaf = scores.clone().requires_grad_()
    grad = torch.randn_like(scores)
    return least_time(
        lambda: torch.autograd.grad(form(operator, leaf, k, offsets), leaf, grad), repeats
    )


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
        assert lengths.numel() * int(lengths.max()) <= MOST_PADDED
        for operator in OPERATORS:
            for backward in (False, True):
                problem = operator, scores, k, offsets
                times = [measure(form, problem, backward, args.repeats) for form in FORMS]
                cells = [f"{1e9 * each / scores.numel():.1f}" for each in times]
                cells += [f"{each / times[0]:.1f}" for each in times[1:]]
                step = "both" if backward else "forward"
                print(f"| {title} | {operator.__name__} | {step} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
