"""Which pooling of graphs learns the nodes that matter?

    python benchmarks/pooling.py

Graphs of 5 to 60 nodes without edges. The target is a mean over the nodes with the largest hidden
scores u @ x. The model is a pooling layer, a mean over what it keeps and a linear layer. After 300
steps, on fresh graphs: the squared error in units of the target's variance, and how often the layer
has found u (a cosine above 0.95). The default width of `TopKPool`, 8, was chosen on other draws of
the tasks of FIRST; those of HELD_BACK show whether it holds elsewhere. Needs torch_geometric. Two
minutes on one core.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from softtopk.nn import TopKPool

with warnings.catch_warnings():  # it uses parts of torch that are deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import TopKPooling

STEPS, GRAPHS = 300, 32
NO_EDGES = torch.zeros(2, 0, dtype=torch.int64)


class Task(NamedTuple):
    features: int
    ratio: float
    seeds: range


FIRST = (Task(8, 0.2, range(3)), Task(8, 0.5, range(3)))
HELD_BACK = (
    Task(16, 0.1, range(10, 15)),
    Task(16, 0.3, range(10, 15)),
    Task(4, 0.7, range(10, 15)),
)

LAYERS: dict[str, Callable[[Task], nn.Module]] = {
    f"TopKPool, width {width}": lambda task, width=width: TopKPool(
        task.features, task.ratio, width=width
    )
    for width in (2, 4, 8, 16, 32)
} | {"TopKPooling of PyTorch Geometric": lambda task: TopKPooling(task.features, task.ratio)}


class Graphs(NamedTuple):
    x: Tensor
    batch: Tensor
    target: Tensor


def draw(task: Task, count: int, u: Tensor, v: Tensor, generator: torch.Generator) -> Graphs:
    sizes = torch.randint(5, 61, (count,), generator=generator)
    x = torch.randn(int(sizes.sum()), task.features, generator=generator)
    targets = []
    for nodes in x.split(sizes.tolist()):
        k = int((task.ratio * torch.tensor(float(len(nodes)))).ceil())
        targets.append((nodes[(nodes @ u).topk(k).indices] @ v).mean())
    batch = torch.repeat_interleave(torch.arange(count), sizes)
    return Graphs(x, batch, torch.stack(targets))


def run(make: Callable[[Task], nn.Module], task: Task, seed: int) -> tuple[float, bool]:
    """The error, and whether u was found."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    u, v = torch.randn(2, task.features, generator=generator)
    pool, read = make(task), nn.Linear(task.features, 1)

    def predict(graphs: Graphs) -> Tensor:
        x, _, _, batch, _, _ = pool(graphs.x, NO_EDGES, None, graphs.batch)
        count = len(graphs.target)
        sums = x.new_zeros(count, task.features).index_add(0, batch, x)
        return read(sums / batch.bincount(minlength=count).unsqueeze(-1)).squeeze(-1)

    optimizer = torch.optim.Adam([*pool.parameters(), *read.parameters()], lr=1e-2)
    for _ in range(STEPS):
        graphs = draw(task, GRAPHS, u, v, generator)
        loss = (predict(graphs) - graphs.target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    pool.eval()
    graphs = draw(task, 300, u, v, generator)
    with torch.no_grad():
        error = (predict(graphs) - graphs.target).square().mean() / graphs.target.var()
    weight = pool.weight if isinstance(pool, TopKPool) else pool.select.weight
    cosine = torch.cosine_similarity(weight.detach().squeeze(0), u, dim=0)
    return error.item(), bool(cosine.abs() > 0.95)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    for title, tasks in (("first tasks", FIRST), ("held back", HELD_BACK)):
        names = " | ".join(f"ratio {task.ratio}, {task.features} features" for task in tasks)
        print(f"\nMean error, and in how many runs u was found, {title}\n")
        print(f"| layer | {names} |\n|---|{'--:|' * len(tasks)}")
        for name, make in LAYERS.items():
            cells = []
            for task in tasks:
                runs = [run(make, task, seed) for seed in task.seeds]
                mean = sum(error for error, _ in runs) / len(runs)
                cells.append(f"{mean:.2f}, {sum(found for _, found in runs)} of {len(runs)}")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
