"""Temperatures: what does eps change in a selection and its gradient?

The 2 largest of the paper's 7 scores, and the gradient of the third largest, 1.4: which scores to
move so that it is selected.

Found: at eps=0.05 the selection is that of `torch.topk`, and the gradient has all but vanished: it
is 0.0009 at its own score. At eps=0.5 that is 0.4734. At eps=5 it is 0.0733, for all scores are
selected nearly alike: too hot teaches as little as too cold.
"""

import torch

from softtopk import soft_topk
from softtopk.plotting import new_figure, style

SCORES = [0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1]  # those of the paper's Figure 2
THIRD = 5  # where 1.4 is
K = 2
TEMPERATURES = (0.05, 0.5, 5.0)  # nearly hard; soft; nearly uniform, where A is about k / n

columns = []
for eps in TEMPERATURES:
    scores = torch.tensor(SCORES, requires_grad=True)
    selected = soft_topk(scores, K, eps=eps)
    (gradient,) = torch.autograd.grad(selected[THIRD], scores)
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
figure.savefig("temperatures.png", dpi=140)
