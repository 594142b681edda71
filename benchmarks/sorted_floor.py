"""How far is the sorted operator from its floor?

    python benchmarks/sorted_floor.py      # seconds, one thread

The floor: one exponential, one write and one read per entry of the plan (rows, n, k), here torch's
`exp` of a tensor of that size and a sum over another one. At a low temperature most of the plan is
zero and needs no exponential. Times are the least of many.
"""

import time
from collections.abc import Callable

import torch

from softtopk import sorted_soft_topk

REPEATS = 60
CASES = [(128, 1000, 10, 0.1), (128, 1000, 10, 1.0), (128, 1000, 10, 1e-3), (4, 100_000, 10, 0.1)]


def least(function: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print("| rows x n, k, eps | forward + backward / floor | / torch.topk |\n|---|--:|--:|")
    for rows, n, k, eps in CASES:
        values = torch.randn(rows, n)
        scores = values.clone().requires_grad_()
        plan, grad = torch.randn(2, rows, n, k)

        def both(scores=scores, grad=grad, k=k, eps=eps):
            return torch.autograd.grad(sorted_soft_topk(scores, k, eps=eps), scores, grad)

        floor = least(plan.exp) + least(grad.sum)
        ours, topk = least(both), least(lambda x=values, k=k: x.topk(k))
        print(f"| {rows} x {n:,}, {k}, {eps} | {ours / floor:.1f} | {ours / topk:.0f} |")


if __name__ == "__main__":
    main()
