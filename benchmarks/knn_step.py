"""Which share of a training step of the kNN classifier does the top-k take?

    python benchmarks/knn_step.py

Random images of MNIST's size, the paper's network and its settings: 100 queries, 100 templates,
k = 9, eps = 1e-3 of the normalised cost. Prints a Markdown table: the median time of whole steps
with each solver, that of forward and backward of the operator alone at the scores of such a step,
and the ratio. Half a minute; --threads changes their number.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from softtopk import ConvergenceWarning, soft_topk
from softtopk.knn import ConvNet, KNNObjective, Recipe, Training, pairwise_distances

SHAPE, QUERIES, TEMPLATES = (1, 28, 28), 100, 100
OPTIONS = {"eps": 1e-3, "normalize": "batch"}


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    for _ in range(3):
        call()
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def operator(scores: Tensor, solver: str) -> None:
    selected = soft_topk(scores, 9, solver=solver, **OPTIONS)
    torch.autograd.grad(selected, scores, torch.ones_like(selected))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    warnings.simplefilter("ignore", ConvergenceWarning)  # of Sinkhorn, whose time is the question
    images, labels = torch.randn(1000, *SHAPE), torch.arange(1000) % 10

    print(f"threads: {args.threads}\n")
    print("| solver | step | operator | share |\n|---|--:|--:|--:|")
    for solver in ("exact", "sinkhorn"):
        network = ConvNet(SHAPE)
        options = {**OPTIONS, "solver": solver}
        objective = KNNObjective(network, k=9, objective="vote", options=options)
        training = Training(objective, images, labels, Recipe(epochs=1000))
        step = median_seconds(training.advance, args.repeats)
        with torch.no_grad():
            features = network(images[: QUERIES + TEMPLATES])
        scores = -pairwise_distances(features[:QUERIES], features[QUERIES:])
        alone = median_seconds(partial(operator, scores.requires_grad_(), solver), args.repeats)
        print(f"| {solver} | {1e3 * step:.1f} ms | {1e3 * alone:.2f} ms | {alone / step:.1%} |")


if __name__ == "__main__":
    main()
