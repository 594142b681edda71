"""Do losses that relax a metric train better features than plain ones?

    python benchmarks/losses.py --data FOLDER      # FOLDER has the IDX files of Fashion-MNIST
    python benchmarks/losses.py                    # scikit-learn's digits instead
    python benchmarks/losses.py --quick            # a minute, to see that it runs
    python benchmarks/losses.py --spreads --data FOLDER    # which default for eps: FOLDER of MNIST

A small network maps images to features, whose cosines are the scores: in a batch every image is a
query, and the others are its items. Three tasks:

- retrieval: images of the same class are positives. Trained on all classes, judged on new images.
- grades: likewise, but the same class has relevance 2, and the same family of classes 1.
- unseen classes: retrieval, trained on four classes and judged on three others.

All losses have the same network, updates, batches and tuning: twelve trainings, four values of
their one number (eps, temperature, margin, scale) times three learning rates. The best by the
validation part, other classes or images again, is then trained on SEEDS other seeds. "default"
means that only the learning rate was tuned. The losses named PML are those of
pytorch-metric-learning, and are left out if it is not installed.

The default of eps was chosen on MNIST, by --spreads: eps in standard deviations of the scores of a
query.

Prints tables of percentages, mean and standard deviation over the seeds, and writes them to
OUT/results.md. Every finished training is a line of OUT/records.jsonl, and a second call does what
is missing there. A quarter of an hour on one core; --spreads takes about as long.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softtopk import losses

UPDATES, BATCH, WIDTH, FEATURES = 400, 128, 256, 32
RATES = (3e-4, 1e-3, 3e-3)
TUNING_SEED = 1000
JUDGED = 1500  # images of the validation and of the test part
# The unseen parts have two classes each that look alike: T-shirt and shirt, pullover and coat.
CLASSES = {"train": (1, 3, 5, 8), "validation": (0, 6, 7), "test": (2, 4, 9)}
FAMILIES = torch.tensor([0, 1, 0, 2, 0, 3, 0, 3, 4, 3])  # tops and shoes, all others by themselves


class Batch(NamedTuple):
    features: Tensor
    labels: Tensor
    scores: Tensor  #: cosines (n, n)
    relevance: Tensor  #: (n, n)
    others: Tensor  #: (n, n), False on the diagonal


class Loss(NamedTuple):
    of: Callable[[Batch, Any], Tensor]
    values: tuple[float | None, ...]
    """Of its one number."""


# The plain losses.


def cross_entropy(batch: Batch, temperature: float) -> Tensor:
    """InfoNCE with several positives (SupCon): that of a softmax over all others."""
    log_p = (batch.scores / temperature).masked_fill(~batch.others, -math.inf).log_softmax(-1)
    positives = (batch.relevance > 0) & batch.others
    return -(log_p.masked_fill(~positives, 0.0).sum(-1) / positives.sum(-1).clamp(min=1)).mean()


def triplet(batch: Batch, margin: float) -> Tensor:
    """The furthest positive against the nearest negative of the batch."""
    positives = (batch.relevance > 0) & batch.others
    furthest = batch.scores.masked_fill(~positives, math.inf).amin(-1)
    nearest = batch.scores.masked_fill(batch.relevance > 0, -math.inf).amax(-1)
    return F.relu(nearest - furthest + margin).mean()


def contrastive(batch: Batch, margin: float) -> Tensor:
    """Pairs: positives to cosine 1, negatives below the margin."""
    pairs = torch.where(batch.relevance > 0, 1 - batch.scores, F.relu(batch.scores - margin))
    return pairs[batch.others].mean()


def list_net(batch: Batch, temperature: float) -> Tensor:
    outside = ~batch.others
    target = batch.relevance.masked_fill(outside, -math.inf).softmax(-1)
    log_p = (batch.scores / temperature).masked_fill(outside, -math.inf).log_softmax(-1)
    return -(target * log_p.masked_fill(outside, 0.0)).sum(-1).mean()


def rank_net(batch: Batch, temperature: float) -> Tensor:
    """The logistic loss of all pairs of items with different relevance."""
    difference = batch.scores.unsqueeze(-1) - batch.scores.unsqueeze(-2)
    better = batch.relevance.unsqueeze(-1) > batch.relevance.unsqueeze(-2)
    better = better & batch.others.unsqueeze(-1) & batch.others.unsqueeze(-2)
    return (F.softplus(-difference / temperature) * better).sum() / better.sum()


def squared_error(batch: Batch, target: float) -> Tensor:
    """Cosines as near as possible to the relevance, of which the largest stands for ``target``."""
    wanted = target * batch.relevance / 2
    return (batch.scores - wanted)[batch.others].square().mean()


def pml(name: str, argument: str, **fixed: Any) -> Callable[[Batch, float], Tensor]:
    def of(batch: Batch, value: float) -> Tensor:
        from pytorch_metric_learning import losses as others

        loss = getattr(others, name)(**{argument: value}, **fixed)
        return loss(batch.features, batch.labels)

    return of


# Ours.


def all_positives(batch: Batch, eps: float) -> Tensor:
    """With as many places as there are positives."""
    positives = batch.relevance > 0
    k = int(positives.sum(-1).max()) - 1
    return losses.topk_cross_entropy(batch.scores, positives, k, eps=eps, mask=batch.others)


def relaxed(loss: Callable[..., Tensor], *arguments: Any, **options: Any) -> Any:
    graded = loss is losses.ndcg_at_k_loss

    def of(batch: Batch, eps: float | None) -> Tensor:
        target = batch.relevance if graded else batch.relevance > 0
        given = options if eps is None else {"eps": eps, **options}
        return loss(batch.scores, target, *arguments, mask=batch.others, **given)

    return of


EPS, DEFAULT = (0.02, 0.05, 0.2, 0.5), (None,)
TEMPERATURES = (0.02, 0.05, 0.1, 0.3)
RECALL = relaxed(losses.recall_at_k_loss, (1, 2, 4, 8, 16), capped=True)
NDCG = relaxed(losses.ndcg_at_k_loss, 10)
PRECISION = relaxed(losses.average_precision_loss)
RETRIEVAL = {
    "`recall_at_k_loss`, k = 1, 2, 4, 8, 16": Loss(RECALL, EPS),
    "the same, default eps": Loss(RECALL, DEFAULT),
    "`hit_at_k_loss`, k = 1": Loss(relaxed(losses.hit_at_k_loss, 1), EPS),
    "`average_precision_loss`": Loss(PRECISION, EPS),
    "the same, its default eps": Loss(PRECISION, DEFAULT),
    "`topk_cross_entropy`, k = all positives": Loss(all_positives, EPS),
    "InfoNCE (SupCon)": Loss(cross_entropy, TEMPERATURES),
    "triplet, hardest": Loss(triplet, (0.05, 0.1, 0.2, 0.5)),
    "contrastive": Loss(contrastive, (0.0, 0.2, 0.5, 0.8)),
    "PML MultiSimilarity": Loss(pml("MultiSimilarityLoss", "base"), (0.0, 0.2, 0.5, 0.8)),
    "PML Circle": Loss(pml("CircleLoss", "gamma", m=0.4), (16, 32, 80, 256)),
}
GRADES = {
    "`ndcg_at_k_loss`, k = 10": Loss(NDCG, EPS),
    "the same, default eps": Loss(NDCG, DEFAULT),
    "ListNet": Loss(list_net, TEMPERATURES),
    "RankNet": Loss(rank_net, TEMPERATURES),
    "squared error": Loss(squared_error, (0.5, 0.7, 0.9, 1.0)),
}


# Which default for eps.


def at_spread(loss: Callable[..., Tensor], *arguments: Any, **options: Any) -> Any:
    of = relaxed(loss, *arguments, **options)

    def spread(batch: Batch, share: float) -> Tensor:
        scores = batch.scores.detach()[batch.others].view(len(batch.scores), -1)
        return of(batch, share * scores.std(-1))

    return spread


SPREADS = (0.01, 0.1, 0.2, 0.4, 0.8, 1.6)


def spreads(of_loss: dict[str, Any]) -> dict[str, Loss]:
    return {
        f"{name}, eps = {share} deviations": Loss(of, (share,))
        for name, of in of_loss.items()
        for share in SPREADS
    }


SPREAD_RETRIEVAL = spreads(
    {
        "`recall_at_k_loss`": at_spread(losses.recall_at_k_loss, (1, 2, 4, 8, 16), capped=True),
        "`hit_at_k_loss`": at_spread(losses.hit_at_k_loss, 1),
        "`average_precision_loss`": at_spread(losses.average_precision_loss),
        "`topk_cross_entropy`, k = 1": at_spread(losses.topk_cross_entropy, 1),
    }
)
SPREAD_GRADES = spreads({"`ndcg_at_k_loss`": at_spread(losses.ndcg_at_k_loss, 10)})

# Data and tasks.


class Images(NamedTuple):
    x: Tensor
    labels: Tensor

    def of(self, classes: tuple[int, ...]) -> Images:
        kept = torch.isin(self.labels, torch.tensor(classes))
        return Images(self.x[kept], self.labels[kept])


class Task(NamedTuple):
    train: Images
    validation: Images
    test: Images
    losses: dict[str, Loss]
    metric: str  #: by which the tuning chooses


def read(folder: Path, part: str) -> Images:
    def values(kind: str, header: int) -> Any:
        with gzip.open(folder / f"{part}-{kind}-ubyte.gz") as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)

    labels = torch.from_numpy(values("labels-idx1", 8).astype(np.int64))
    pixels = torch.from_numpy(values("images-idx3", 16).astype(np.float32) / 255)
    return Images(pixels.view(len(labels), -1), labels)


def images(folder: Path | None) -> tuple[Images, Images]:
    """For the training and the validation, and for the test."""
    if folder is not None:
        return read(folder, "train"), read(folder, "t10k")
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = torch.from_numpy(x).float() / 16, torch.from_numpy(y)
    return Images(x[:1000], y[:1000]), Images(x[1000:], y[1000:])


def tasks(folder: Path | None, spreads: bool) -> dict[str, Task]:
    known, new = images(folder)
    cut = len(known.x) // 6
    seen = [Images(known.x[cut:], known.labels[cut:]), Images(known.x[:cut], known.labels[:cut])]
    if spreads:
        return {
            "retrieval": Task(*seen, new, SPREAD_RETRIEVAL, "recall@1"),
            "grades": Task(*seen, new, SPREAD_GRADES, "NDCG@10"),
        }
    parts = [known.of(CLASSES["train"]), known.of(CLASSES["validation"]), new.of(CLASSES["test"])]
    return {
        "retrieval": Task(*seen, new, RETRIEVAL, "recall@1"),
        "grades": Task(*seen, new, GRADES, "NDCG@10"),
        "unseen classes": Task(*parts, RETRIEVAL, "recall@1"),
    }


def relevance_of(labels: Tensor, graded: bool) -> Tensor:
    same = (labels.unsqueeze(1) == labels).float()
    if not graded:
        return same
    family = FAMILIES[labels]
    return same + (family.unsqueeze(1) == family).float()


def batch_of(network: nn.Module, x: Tensor, labels: Tensor, graded: bool) -> Batch:
    features = F.normalize(network(x), dim=-1)
    others = ~torch.eye(len(x), dtype=torch.bool)
    return Batch(features, labels, features @ features.mT, relevance_of(labels, graded), others)


def draw(members: list[Tensor], generator: torch.Generator) -> Tensor:
    """As many images of every class, whose members are given."""
    each = BATCH // len(members)
    return torch.cat([m[torch.randint(len(m), (each,), generator=generator)] for m in members])


def train(
    task: Task, graded: bool, loss: Loss, value: Any, rate: float, seed: int, updates: int
) -> nn.Module:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    labels, inputs = task.train.labels, task.train.x.shape[1]
    members = [(labels == label).nonzero().squeeze(1) for label in labels.unique()]
    network = nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, FEATURES))
    optimizer = torch.optim.Adam(network.parameters(), rate)
    for _ in range(updates):
        index = draw(members, generator)
        batch = batch_of(network, task.train.x[index], labels[index], graded)
        optimizer.zero_grad()
        loss.of(batch, value).backward()
        optimizer.step()
    return network


@torch.no_grad()
def judge(network: nn.Module, data: Images, graded: bool) -> dict[str, float]:
    """Metrics in percent, each image a query among all others of its part."""
    some = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(0))[:JUDGED]
    batch = batch_of(network, data.x[some], data.labels[some], graded)
    order = batch.scores.fill_diagonal_(-math.inf).argsort(-1, descending=True)[:, :-1]
    gains = batch.relevance.gather(1, order)
    ranks = torch.arange(1, gains.shape[1] + 1)
    if graded:
        discounts = 1 / torch.log2(ranks[:10] + 1.0)
        ideal = gains.sort(-1, descending=True).values[:, :10]
        ndcg = (gains[:, :10] * discounts).sum(-1) / (ideal * discounts).sum(-1)
        return {"NDCG@10": 100 * float(ndcg.mean())}
    precision = gains.cumsum(-1) / ranks
    average = (precision * gains).sum(-1) / gains.sum(-1)
    return {
        "recall@1": 100 * float(gains[:, 0].mean()),
        "recall@10": 100 * float(gains[:, :10].amax(-1).mean()),
        "MAP": 100 * float(average.mean()),
    }


# The runs.


class Records:
    """Finished trainings, one line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.done = {tuple(run["key"]): run for run in map(json.loads, lines)}

    def get(self, key: tuple[Any, ...], make: Callable[[], dict[str, float]]) -> dict[str, Any]:
        if key not in self.done:
            start = time.process_time()
            run = {"key": key, "metrics": make(), "seconds": time.process_time() - start}
            with self.path.open("a") as file:
                file.write(json.dumps(run) + "\n")
            self.done[key] = run
            print(f"{len(self.done):4d} {key} {run['metrics']}", flush=True)
        return self.done[key]


def result(name: str, task: Task, loss: str, records: Records, seeds: int, updates: int) -> str:
    """A row of the table."""
    graded, chosen = name == "grades", task.losses[loss]

    def run(value: Any, rate: float, seed: int, part: Images) -> dict[str, Any]:
        def make() -> dict[str, float]:
            network = train(task, graded, chosen, value, rate, seed, updates)
            return judge(network, part, graded)

        return records.get((name, loss, value, rate, seed, updates), make)

    grid = [(value, rate) for value in chosen.values for rate in RATES]
    tuned = [run(*each, TUNING_SEED, task.validation)["metrics"][task.metric] for each in grid]
    best = grid[tuned.index(max(tuned))]
    runs = [run(*best, seed, task.test) for seed in range(seeds)]
    cells = []
    for metric in runs[0]["metrics"]:
        found = [each["metrics"][metric] for each in runs]
        spread = statistics.stdev(found) if seeds > 1 else 0.0
        cells.append(f"{statistics.mean(found):.1f} ± {spread:.1f}")
    number = "" if best[0] is None else f"{best[0]:g}"
    cells += [f"{statistics.median(each['seconds'] for each in runs):.1f}", number, f"{best[1]:g}"]
    return f"| {loss} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with the IDX files of Fashion-MNIST")
    parser.add_argument("--out", type=Path, default=Path("runs/losses"))
    parser.add_argument("--spreads", action="store_true", help="which default for eps")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few updates, one seed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    updates, seeds = (20, 1) if options.quick else (UPDATES, options.seeds)
    records = Records(options.out / "records.jsonl")
    report = []
    for name, task in tasks(options.data, options.spreads).items():
        untrained = judge(nn.Identity(), task.test, name == "grades")
        report += [f"\n{name}\n", f"| loss | {' | '.join(untrained)} | seconds | number | rate |"]
        report += [f"|---|{'--:|' * (len(untrained) + 3)}"]
        cells = [f"{value:.1f}" for value in untrained.values()]
        report += [f"| none: cosines of the pixels | {' | '.join(cells)} | | | |"]
        for loss in task.losses:
            try:
                report.append(result(name, task, loss, records, seeds, updates))
            except ImportError as error:
                print(f"{loss} is left out: {error}; pip install pytorch-metric-learning")
    text = "\n".join(report)
    print(text)
    (options.out / "results.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
