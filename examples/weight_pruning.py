"""Weight pruning: how accurate is a network with a few percent of its weights?

`topk_prune_` lets the weights compete for places from the first step. The rivals cut the smallest
at the end, or halfway and train on. All take the same number of steps.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils.prune import l1_unstructured

from softtopk import WidthSchedule
from softtopk.nn import finish_pruning_, topk_prune_
from softtopk.plotting import new_figure, style

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("."), help="folder of the picture")
out = parser.parse_args().out

KEPT, STEPS, TRAIN = (0.02, 0.05, 0.1, 0.3), 300, 1280  # training images, of 1797
DENSE = {"topk_prune_": 0, "cut halfway": STEPS // 2, "cut at the end": STEPS}  # steps before
images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
images = images.float() / 16


def train(net: nn.Sequential, steps: int, anneal: bool = False) -> None:
    schedule = WidthSchedule(net, total_steps=steps // 8) if anneal else None
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(steps):
        at = torch.randint(TRAIN, (128,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images[at]), labels[at]).backward()
        optimizer.step()
        if schedule and step % 8 == 0:  # not in every step: it costs twenty calls of the operator
            schedule.step()


(axes,) = (figure := new_figure(size=(5, 2.8))).axes
print("weights kept   " + "".join(f"{kept:7.2f}" for kept in KEPT))
for method, colour in zip(DENSE, style.COLOURS, strict=False):
    row = []
    for kept in KEPT:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        train(net, DENSE[method])
        for layer in (net[0], net[2]):
            ours = method == "topk_prune_"
            topk_prune_(layer, density=kept) if ours else l1_unstructured(layer, "weight", 1 - kept)
        train(net, STEPS - DENSE[method], anneal=ours)
        found = finish_pruning_(net)(images[TRAIN:]).argmax(-1)  # hard from here on
        row.append((found == labels[TRAIN:]).float().mean().item())
    print(f"{method:15s}" + "".join(f"{accuracy:7.3f}" for accuracy in row))
    axes.plot(KEPT, row, "o-", color=colour, label=method)
axes.set(xlabel="share of the weights kept", ylabel="test accuracy", ylim=(0, 1))
axes.legend(frameon=False)
figure.savefig(out / "weight_pruning.png", dpi=140)
