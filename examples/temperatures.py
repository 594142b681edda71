"""Temperatures: what does eps change in a selection and its gradient?

The 2 largest of the paper's 7 scores. As eps goes to 0 the selection is that of `torch.topk`, and
the gradient vanishes. A warmer one says which scores to move so that 1.4, the third, is selected.
"""

import argparse
from pathlib import Path

import torch

from softtopk import soft_topk
from softtopk.plotting import new_figure, style

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("."), help="folder of the picture")
out = parser.parse_args().out

SCORES, K = [0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1], 2
TEMPERATURES = (0.05, 0.5, 5.0)  # nearly hard; soft; nearly uniform, where A is about k / n

columns = []
for eps in TEMPERATURES:
    scores = torch.tensor(SCORES, requires_grad=True)
    selected = soft_topk(scores, K, eps=eps)
    (gradient,) = torch.autograd.grad(selected[5], scores)  # 1.4 is third
    columns += [selected.detach(), gradient.round(decimals=4) + 0.0]  # + 0.0: no -0
print("        " + "".join(f"      eps={eps:<8g}" for eps in TEMPERATURES))
print("  score" + "        A  gradient" * len(TEMPERATURES))
for score, *row in zip(SCORES, *columns, strict=True):
    print(f"{score:7.1f}" + "".join(f"{value:9.4f}" for value in row))

generator = torch.Generator().manual_seed(3)
many = torch.randn(50, generator=generator).sort().values
figure = new_figure(size=(5, 2.8))
(axes,) = figure.axes
hard = soft_topk(many, 10, hard=True)
# where="mid": the hard selection jumps halfway between the k-th score and the next.
axes.step(many, hard, where="mid", color=style.BLACK, lw=1.2, label="torch.topk")
for eps, colour, marker in zip(TEMPERATURES, style.COLOURS, style.MARKERS, strict=False):
    selected = soft_topk(many, 10, eps=eps)
    axes.plot(many, selected, color=colour, marker=marker, ms=3.5, label=f"eps={eps:g}")
axes.set(xlabel="score", ylabel="A", title="the 10 largest of 50 scores")
axes.legend(frameon=False, fontsize=style.SMALL)
figure.savefig(out / "temperatures.png", dpi=140)
