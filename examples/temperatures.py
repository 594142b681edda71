"""Soft top-k at several temperatures: values and gradients as tables, and one picture.

Run `python examples/temperatures.py --out DIR`; it takes a few seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from softtopk import soft_topk, sorted_soft_topk
from softtopk.plotting import new_figure, style

SCORES = [0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1]  # the paper's example
K = 2
TEMPERATURES = [0.05, 0.5, 5.0]  # nearly hard; soft; nearly uniform, where A is about k/n
NAMES = [f"eps={eps:g}" for eps in TEMPERATURES]


def hard_topk(scores: Tensor, k: int) -> Tensor:
    """The 0/1 selection that soft_topk relaxes: (n,) -> (n,)."""
    return torch.zeros_like(scores).scatter(-1, scores.topk(k).indices, 1.0)


def print_table(title: str, columns: dict[str, Tensor], total: bool = False) -> None:
    """One line for each score; every column (n,). ``total`` adds a line of sums."""
    print(title)
    print("  score" + "".join(f"{name:>11}" for name in columns))
    for i, score in enumerate(SCORES):
        # Adding 0.0 turns a rounded -0.0 into 0.0.
        values = (round(column[i].item(), 4) + 0.0 for column in columns.values())
        print(f"{score:7.1f}" + "".join(f"{value:11.4f}" for value in values))
    if total:
        print("    sum" + "".join(f"{column.sum().item():11.4f}" for column in columns.values()))
    print()


def gradient_of_third(eps: float) -> Tensor:
    """How each score moves A_5: the score 1.4 is third, and we want it in the top two."""
    scores = torch.tensor(SCORES, requires_grad=True)
    soft_topk(scores, K, eps=eps)[5].backward()
    assert scores.grad is not None
    return scores.grad


def draw(path: Path, n: int = 50, k: int = 10) -> None:
    """A against the score, for n standard normal scores of which k are selected."""
    scores = torch.randn(n, generator=torch.Generator().manual_seed(3)).sort().values
    figure = new_figure()
    (axes,) = figure.axes
    # where="mid": the hard selection jumps halfway between the k-th score and the next.
    hard = hard_topk(scores, k).tolist()
    axes.step(scores.tolist(), hard, where="mid", color="black", lw=1.2, label="hard (torch.topk)")
    looks = zip(TEMPERATURES, NAMES, style.COLOURS, style.MARKERS, strict=False)
    for eps, name, colour, marker in looks:
        a = soft_topk(scores, k, eps=eps).tolist()
        axes.plot(scores.tolist(), a, color=colour, marker=marker, ms=3.5, lw=1.5, label=name)
    axes.set(xlabel="score", ylabel="selection A", title=f"soft_topk: {k} of {n} scores")
    axes.legend(loc="upper left", frameon=False)  # the low scores leave that corner empty
    figure.savefig(path, dpi=style.DPI)


def main() -> None:
    parser = argparse.ArgumentParser(description="Soft top-k at several temperatures.")
    parser.add_argument("--out", type=Path, default=Path("runs/example"), help="for the picture")
    out: Path = parser.parse_args().out

    scores = torch.tensor(SCORES)
    soft = [soft_topk(scores, K, eps=eps) for eps in TEMPERATURES]
    selections = {"torch.topk": hard_topk(scores, K), **dict(zip(NAMES, soft, strict=True))}
    print_table(f"Which are the {K} largest? Every column sums to {K}.", selections, total=True)

    # Moving all scores together changes nothing, so every gradient sums to zero. The hard
    # selection has no gradient, and a nearly hard one almost none: a warmer one says where to go.
    gradients = [gradient_of_third(eps) for eps in TEMPERATURES]
    columns = {"torch.topk": torch.zeros_like(scores), **dict(zip(NAMES, gradients, strict=True))}
    print_table("How to get 1.4 selected: the gradient of its A.", columns)

    ranks = sorted_soft_topk(scores, K, eps=0.5)
    columns = {f"rank {j + 1}": ranks[:, j] for j in range(K)}
    print_table("Which is the largest, which the second? eps=0.5", columns, total=True)
    values = ", ".join(f"{value:.2f}" for value in (ranks.mT @ scores).tolist())
    print(f"Their values, as means of the scores weighted with these columns: {values}")

    out.mkdir(parents=True, exist_ok=True)
    draw(out / "temperatures.png")


if __name__ == "__main__":
    main()
