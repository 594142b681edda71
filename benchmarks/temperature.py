"""Which temperature finds the right elements?

    python benchmarks/temperature.py

A gate has to find the k columns out of n that a target depends on: y = X w, where w is zero
elsewhere. The model is (X * A) @ v with A the soft top-k of n trainable scores; v is trained too.
After the training the k largest scores are compared with the k columns. The table has the share
that was found, over --seeds draws, for scores that start at three scales and learn at a rate of
that scale: a temperature that suits one scale need not suit another.

The advice to start such a search with the width n was found on the tasks of TUNED; those of
HELD_BACK show whether it holds elsewhere. Two minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from softtopk import SoftTopK
from softtopk.nn import WidthSchedule

STEPS, ROWS = 300, 256
SCALES = (0.01, 1.0, 100.0)


class Task(NamedTuple):
    n: int
    k: int


TUNED = (Task(100, 10), Task(30, 3))
HELD_BACK = (Task(300, 5), Task(50, 20), Task(100, 1))


class Choice(NamedTuple):
    name: str
    make: Callable[[Task], SoftTopK]
    anneal: bool = False


CHOICES = (
    Choice("eps 0.1", lambda task: SoftTopK(task.k, eps=0.1)),
    Choice("width 2 k, the default", lambda task: SoftTopK(task.k)),
    Choice("width n", lambda task: SoftTopK(task.k, width=task.n)),
    Choice("width n, hard", lambda task: SoftTopK(task.k, width=task.n, hard=True)),
    Choice("width n, annealed to 2", lambda task: SoftTopK(task.k, width=task.n), anneal=True),
)


def share_found(choice: Choice, task: Task, scale: float, start: float, seed: int) -> float:
    """Of the k columns that matter. The scores start with a deviation of ``start`` scales."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(ROWS, task.n, generator=generator)
    wanted = torch.randperm(task.n, generator=generator)[: task.k]
    signs = torch.randint(2, (task.k,), generator=generator) * 2.0 - 1
    target = inputs[:, wanted] @ signs
    initial = start * torch.randn(task.n, generator=generator)
    scores = (scale * initial).requires_grad_()
    values = (0.1 * torch.randn(task.n, generator=generator)).requires_grad_()
    select = choice.make(task)
    schedule = None
    if choice.anneal:
        schedule = WidthSchedule(select, total_steps=STEPS * 3 // 4)
    groups = [{"params": [scores], "lr": 0.03 * scale}, {"params": [values], "lr": 0.03}]
    optimizer = torch.optim.Adam(groups, eps=1e-20)  # gradients may be as small as 1 / scale
    for _ in range(STEPS):
        loss = ((inputs * select(scores)) @ values - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    found: Tensor = torch.isin(scores.detach().topk(task.k).indices, wanted)
    return float(found.double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for title, tasks in (("tuned on", TUNED), ("held back", HELD_BACK)):
        columns = [(task, scale) for task in tasks for scale in SCALES]
        names = " | ".join(f"{task.k} of {task.n}, {scale:g}" for task, scale in columns)
        print(f"\nShare found, {title}: k of n, scale of the scores\n")
        print(f"| temperature | {names} |\n|---|{'--:|' * len(columns)}")
        for choice in CHOICES:
            cells = [mean_share(choice, *column, 1.0, options.seeds) for column in columns]
            print(f"| {choice.name} | {' | '.join(f'{cell:.2f}' for cell in cells)} |", flush=True)
    print("\nShare found, 10 of 100: deviation of the first scores, in units of their scale\n")
    starts = (0.01, 0.1, 1.0, 3.0)
    print(f"| temperature | {' | '.join(map(str, starts))} |\n|---|{'--:|' * len(starts)}")
    for choice in CHOICES:
        cells = [mean_share(choice, TUNED[0], 1.0, start, options.seeds) for start in starts]
        print(f"| {choice.name} | {' | '.join(f'{cell:.2f}' for cell in cells)} |", flush=True)


def mean_share(choice: Choice, task: Task, scale: float, start: float, seeds: int) -> float:
    shares = [share_found(choice, task, scale, start, seed) for seed in range(seeds)]
    return sum(shares) / seeds


if __name__ == "__main__":
    main()
