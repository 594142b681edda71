"""What do the relaxations cost, forward and backward, and by how much do they exceed one?

    python benchmarks/relaxations.py

Prints the table of docs/benchmark_results.md in about a minute.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Tensor

from softtopk import Sinkhorn, relaxations

ROWS, N, K = 100, 100, 9  # queries, candidates and neighbours of a kNN experiment
REPEATS = 20
COLD = 0.1  # a temperature below the default of those that may exceed one


def milliseconds(relaxation: relaxations.Relaxation, scores: Tensor) -> float:
    """Shortest time of a forward and backward pass at the default eps."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        torch.autograd.grad(relaxation(scores, K).square().sum(), scores)
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    scores = torch.randn(ROWS, N, requires_grad=True)
    cases = {f"`{name}`": relaxations.get(name) for name in relaxations.names()}
    by_iteration = partial(relaxations.sinkhorn_sort, solver=Sinkhorn(tol=1e-4))
    cases["`sinkhorn-sort`, `solver=Sinkhorn(tol=1e-4)`"] = by_iteration
    print(f"| name | ms | largest A at eps = {COLD} |\n|---|---|---|")
    for name, relaxation in cases.items():
        largest = relaxation(scores, K, eps=COLD).max().item()
        print(f"| {name} | {milliseconds(relaxation, scores):.1f} | {largest:.2f} |")


if __name__ == "__main__":
    main()
