"""Which share of a training step of the kNN classifier does the top-k take?

    python benchmarks/knn_step.py

Random images of MNIST's size and the paper's network, with two recipes: the paper's (100 queries,
100 templates, k = 9, eps = 1e-3 of the normalised cost, the linear loss) by both solvers, and the
tuned one (200 samples that are each other's templates, eps = 0.5, the logarithm of the vote).
Prints a Markdown table: the median time of whole steps, that of forward and backward of the
operator alone at the scores of such a step, and the ratio. Half a minute; --threads changes their
number.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from softtopk import ConvergenceWarning, log_soft_topk, soft_topk
from softtopk.knn import ConvNet, KNNObjective, Recipe, Training, pairwise_distances

SHAPE, QUERIES = (1, 28, 28), 100


class Variant(NamedTuple):
    name: str
    objective: Literal["vote", "nll"]
    eps: float
    options: dict[str, Any]
    leave_one_out: bool = False


RECIPES = (
    Variant("paper's", "vote", 1e-3, {"normalize": "batch"}),
    Variant("paper's, Sinkhorn", "vote", 1e-3, {"normalize": "batch", "solver": "sinkhorn"}),
    Variant("tuned", "nll", 0.5, {"normalize": None}, leave_one_out=True),
)


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    for _ in range(3):
        call()
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def operator(scores: Tensor, recipe: Variant) -> None:
    mask = ~torch.eye(len(scores), dtype=torch.bool) if recipe.leave_one_out else None
    function = soft_topk if recipe.objective == "vote" else log_soft_topk
    selected = function(scores, 9, eps=recipe.eps, mask=mask, **recipe.options)
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
    print("| recipe | step | operator | share |\n|---|--:|--:|--:|")
    for recipe in RECIPES:
        network = ConvNet(SHAPE)
        objective = KNNObjective(
            network,
            k=9,
            objective=recipe.objective,
            eps=recipe.eps,
            options=recipe.options,
            leave_one_out=recipe.leave_one_out,
        )
        training = Training(objective, images, labels, Recipe(epochs=1000))
        step = median_seconds(training.advance, args.repeats)
        with torch.no_grad():
            features = network(images[: 2 * QUERIES])
        query, templates = features[:QUERIES], features[QUERIES:]
        if recipe.leave_one_out:
            query = templates = features
        scores = (-pairwise_distances(query, templates)).requires_grad_()
        alone = median_seconds(partial(operator, scores, recipe), args.repeats)
        print(
            f"| {recipe.name} | {1e3 * step:.1f} ms | {1e3 * alone:.2f} ms | {alone / step:.1%} |"
        )


if __name__ == "__main__":
    main()
