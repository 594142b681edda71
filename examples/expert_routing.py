"""Routing to experts: how even is the load without an auxiliary loss?

A mixture of 8 experts, 2 for every image, learns the digits. `TopKRouter` with `choice="both"`
gives no expert more than its share. The usual softmax of the two largest logits has no such limit.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from softtopk.nn import TopKRouter
from softtopk.plotting import new_figure, style

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("."), help="folder of the picture")
out = parser.parse_args().out

EXPERTS, K, STEPS, TRAIN = 8, 2, 150, 1280  # training images, of 1797
images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
images = images.float() / 16


def mixture(tokens: Tensor, gate: nn.Module, experts: nn.ModuleList) -> tuple[Tensor, Tensor]:
    """The mixed logits (T, 10), and which experts every token has (T, k)."""
    if isinstance(gate, TopKRouter):
        indices, weights = (routing := gate(tokens)).indices, routing.weights
    else:
        values, indices = gate(tokens).topk(K)
        weights = values.softmax(-1)
    mixed = torch.zeros(len(tokens), 10)
    for e, expert in enumerate(experts):
        token, place = (indices == e).nonzero(as_tuple=True)
        weighted = weights[token, place].unsqueeze(-1) * expert(tokens[token])
        mixed = mixed.index_add(0, token, weighted)
    return mixed, indices


torch.manual_seed(0)
figure = new_figure(columns=2, size=(5, 2.6))
router = TopKRouter(EXPERTS, K, dim=64, choice="both")
gates = {"softmax top-2": nn.Linear(64, EXPERTS), "TopKRouter": router}
for axes, (name, gate) in zip(figure.axes, gates.items(), strict=True):
    experts = nn.ModuleList(nn.Linear(64, 10) for _ in range(EXPERTS))
    optimizer = torch.optim.Adam([*gate.parameters(), *experts.parameters()], lr=1e-2)
    for _ in range(STEPS):
        at = torch.randint(TRAIN, (128,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(mixture(images[at], gate, experts)[0], labels[at]).backward()
        optimizer.step()
    logits, indices = mixture(images[TRAIN:], gate.eval(), experts)
    load = EXPERTS * indices.flatten().bincount(minlength=EXPERTS) / indices.numel()
    accuracy = (logits.argmax(-1) == labels[TRAIN:]).float().mean()
    print(f"{name:14s}accuracy {accuracy:.3f}, fullest expert {load.max():.2f} times the mean")
    axes.bar(range(EXPERTS), load, color=style.BLUE)
    axes.set(xticks=range(8), xlabel="expert", ylabel="load / mean", title=name, ylim=(0, 3.2))
figure.savefig(out / "expert_routing.png", dpi=140)
