"""What does each call keep in memory until its backward pass?

    python benchmarks/memory.py

Prints a Markdown table, in a few seconds, most of them for the unrolled iterations. The bytes
do not depend on the machine.

Counted are the storages that the call's graph holds when it returns, each one once: the output too
if it is saved for backward, but not the arguments of the call (the scores, or the cost and the
marginals of entropic_plan), which the caller has anyway. The multiples are of the output's size.
"""

from __future__ import annotations

import argparse
import warnings
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from softtopk import (
    ConvergenceWarning,
    Sinkhorn,
    entropic_plan,
    log_soft_topk,
    soft_topk,
    soft_topk_softmax,
    sorted_soft_topk,
)

EPS = 1e-3  # of the normalised cost, as in the paper; no call gets to a residual of zero there
ITERATIONS = (10, 100, 1000)


Call = Callable[[], Tensor]


class Saved:
    """A tensor that a graph holds; it goes when the graph does."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()  # the tensor itself could hold the graph that holds it


class Memory(NamedTuple):
    output: int
    kept: int
    keeps_output: bool


def measure(call: Call, arguments: tuple[Tensor, ...]) -> Memory:
    graph: weakref.WeakSet[Saved] = weakref.WeakSet()

    def pack(tensor: Tensor) -> Saved:
        saved = Saved(tensor)
        graph.add(saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        output = call()
    storages = {}
    for saved in graph:
        storage = saved.tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    for argument in arguments:
        storages.pop(argument.untyped_storage().data_ptr(), None)
    keeps_output = output.untyped_storage().data_ptr() in storages
    return Memory(output.nbytes, sum(storages.values()), keeps_output)


def operators(scores: Tensor, k: int) -> dict[str, Call]:
    def call(operator: Callable[..., Tensor], **options: object) -> Call:
        return lambda: operator(scores, k, eps=EPS, normalize="batch", **options)

    sinkhorn = Sinkhorn(max_iter=200, tol=0)
    return {
        "`soft_topk`": call(soft_topk),
        "`log_soft_topk`": call(log_soft_topk),
        "`soft_topk_softmax`": call(soft_topk_softmax),
        "`sorted_soft_topk`": call(sorted_soft_topk),
        "`soft_topk`, 200 Sinkhorn iterations": call(soft_topk, solver=sinkhorn),
        "`sorted_soft_topk`, 200 Sinkhorn iterations": call(sorted_soft_topk, solver=sinkhorn),
    }


def plans(cost: Tensor, mu: Tensor, nu: Tensor) -> dict[str, Call]:
    def call(gradient: str, max_iter: int) -> Call:
        return lambda: (
            entropic_plan(cost, mu, nu, EPS, tol=0, max_iter=max_iter, gradient=gradient).plan
        )

    return {
        f"`entropic_plan`, {gradient}, {max_iter} iterations": call(gradient, max_iter)
        for gradient in ("implicit", "unrolled")
        for max_iter in ITERATIONS
    }


def row(name: str, memory: Memory) -> str:
    multiple = f"{memory.kept / memory.output:,.1f}"
    among = "yes" if memory.keeps_output else "no"
    return (
        f"| {name} | {memory.output / 1e3:,.0f} | {memory.kept / 1e3:,.0f} | {multiple} | {among} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What each call keeps for its backward pass.")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--k", type=int, default=10)
    args = parser.parse_args()
    # Sinkhorn is stopped wherever it is; whether it has converged is not the question here.
    warnings.simplefilter("ignore", ConvergenceWarning)

    scores = torch.randn(args.rows, args.n, generator=torch.Generator().manual_seed(0))
    # The problem of soft_topk, for the general solver.
    cost = (scores.unsqueeze(-1) - torch.tensor([1.0, 0.0])).square()
    cost = (cost / cost.max()).requires_grad_()
    mu = torch.full((args.n,), 1 / args.n)
    nu = torch.tensor([args.k / args.n, 1 - args.k / args.n])
    scores.requires_grad_()

    print(f"{args.rows} rows, n = {args.n}, k = {args.k}, float32\n")
    print("| call | output, kB | kept, kB | kept / output | output among the kept |")
    print("|---|--:|--:|--:|---|")
    for name, call in operators(scores, args.k).items():
        print(row(name, measure(call, (scores,))))
    for name, call in plans(cost, mu, nu).items():
        print(row(name, measure(call, (cost, mu, nu))))


if __name__ == "__main__":
    main()
