"""Sparse attention: what happens when a sequence gets longer than in training?

A query has to average the values of the 3 marked tokens among noise. Trained on 16 tokens, softmax
attention leaks weight to every further one; `SoftTopKAttention` is exact in evaluation. (So is a
softmax that is cut to 3 keys after training, which is not compared here.)
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from softtopk.nn import SoftTopKAttention
from softtopk.plotting import new_figure, style

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("."), help="folder of the picture")
out = parser.parse_args().out
K, DIM, STEPS, LENGTHS = 3, 32, 600, (16, 64, 256)  # the first length is that of the training


def sample(rows: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of a value, a noisy mark and noise; the mean value of the marked ones; the marks."""
    marks = torch.zeros(rows, n).scatter(1, torch.rand(rows, n).topk(K).indices, 1.0)
    values, seen = torch.randn(rows, n), marks + 0.2 * torch.randn(rows, n)
    tokens = torch.stack([values, seen, *torch.randn(2, rows, n)], -1)
    return tokens, (values * marks).sum(1) / K, marks.bool()


def read(x: Tensor, net: nn.ModuleDict) -> tuple[Tensor, Tensor]:
    keys = net["embed"](x)
    found, weights = net["attend"](torch.ones(len(x), 1, DIM), keys, keys)
    return net["read"](found).flatten(), weights.squeeze(1)


torch.manual_seed(0)
ours = SoftTopKAttention(DIM, 1, batch_first=True, topk=K, hard_eval=True)
layers = {"softmax": nn.MultiheadAttention(DIM, 1, batch_first=True), "SoftTopK": ours}
x, _, marks = sample(1, LENGTHS[1])
colours = [style.VERMILION if mark else style.BLUE for mark in marks[0]]
print(f"share of the variance missed, {LENGTHS} tokens")
figure = new_figure(rows=2, size=(5, 3))
for axes, (name, layer) in zip(figure.axes, layers.items(), strict=True):
    parts = {"embed": nn.Linear(4, DIM), "attend": layer, "read": nn.Linear(DIM, 1)}
    optimizer = torch.optim.Adam((net := nn.ModuleDict(parts)).parameters(), lr=3e-3)
    for _ in range(STEPS):
        tokens, target, _ = sample(64, LENGTHS[0])
        optimizer.zero_grad()
        (read(tokens, net)[0] - target).square().mean().backward()
        optimizer.step()
    net.eval().requires_grad_(False)
    tests = (sample(1000, n) for n in LENGTHS)
    missed = [(read(tokens, net)[0] - target).var() / target.var() for tokens, target, _ in tests]
    print(f"{name:8s} " + "  ".join(f"{value:.2f}" for value in missed))
    axes.bar(range(LENGTHS[1]), read(x, net)[1][0], color=colours)
    axes.set(ylabel=name, ylim=(0, 0.5))
axes.set_xlabel(f"weights of {LENGTHS[1]} tokens, the marked ones in orange")
figure.savefig(out / "sparse_attention.png", dpi=140)
