"""Token pruning: how few patches of an image does a classifier need?

`TokenSelector` learns which k of the 16 patches of a digit to keep. It is soft in training, and the
accuracy is that of the exact choice. The rival keeps the k patches with the most ink.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from softtopk import WidthSchedule
from softtopk.nn import TokenSelector
from softtopk.plotting import new_figure, style

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("."), help="folder of the picture")
out = parser.parse_args().out
KEPT, STEPS, SEEDS, TRAIN = (2, 4, 8), 300, 3, 1200  # training images, of 1797
torch.manual_seed(0)
images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
patches = images.float().div(16).view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)
tokens = torch.cat([patches, torch.eye(16).expand(len(patches), -1, -1)], -1)  # with their places


def accuracy(tokens: Tensor, k: int | None = None) -> float:
    """Of a network on the sum of the tokens, or of k that it chooses."""
    selector = [TokenSelector(k, dim=64, width=16)] if k else []
    layers = [nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), *selector]
    net, classify = nn.Sequential(*layers), nn.Linear(64, 10)
    optimizer = torch.optim.Adam([*net.parameters(), *classify.parameters()], lr=5e-3)
    schedule = WidthSchedule(net, total_steps=STEPS // 8) if k else None
    for step in range(STEPS):
        at = torch.randint(TRAIN, (128,))
        kept = net(tokens[at]).tokens if k else net(tokens[at])
        optimizer.zero_grad()
        nn.functional.cross_entropy(classify(kept.sum(1)), labels[at]).backward()
        optimizer.step()
        if schedule and step % 8 == 0:  # not in every step: it costs twenty calls of the operator
            schedule.step()
    kept = net.eval()(tokens[TRAIN:])  # hard from here on: exactly k tokens
    found = classify((kept.tokens if k else kept).sum(1)).argmax(-1)
    return (found == labels[TRAIN:]).float().mean().item()


by_ink = tokens.take_along_dim(patches.sum(-1).argsort(1, descending=True).unsqueeze(-1), 1)
learned = [[accuracy(tokens, k) for _ in range(SEEDS)] for k in KEPT]
by_rule = [[accuracy(by_ink[:, :k]) for _ in range(SEEDS)] for k in KEPT]
print(f"all 16 patches: {accuracy(tokens):.3f}; {', '.join(map(str, KEPT))} of them:")
(axes,) = (figure := new_figure(size=(5, 2.8))).axes
for name, runs in {"TokenSelector": learned, "most ink": by_rule}.items():
    means = torch.tensor(runs).mean(1)
    print(f"{name:13s} " + "  ".join(f"{mean:.3f}" for mean in means))
    axes.plot(KEPT, means, "o-" if runs is learned else "D--", color=style.BLUE, label=name)
axes.set(xlabel="patches kept, of 16", ylabel="test accuracy", xticks=KEPT)
axes.legend(frameon=False)
figure.savefig(out / "token_pruning.png", dpi=140)
