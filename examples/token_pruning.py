"""Token pruning: how few patches of an image does a classifier need?

`TokenSelector` learns which k of the 16 patches of a digit to keep. It is soft in training, and the
accuracy is that of the exact choice. The rival keeps the k patches with the most ink.

Found: with 2 patches the learned choice has 0.716 and the ink 0.645. With 4 it is ahead by about a
spread. With 8 there is no difference beyond it: 0.893 and 0.883, where all 16 have 0.912.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from softtopk import WidthSchedule
from softtopk.nn import TokenSelector
from softtopk.plotting import new_figure, style

KEPT = (2, 4, 8, 16)  # of 16 patches
STEPS = 300
SEEDS = 3
TRAIN = 1200  # images, of 1797; the others are for the test
EVERY = 8  # steps between changes of the width, which cost twenty calls of the operator
torch.set_num_threads(1)  # so that sums are the same on every machine
images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
patches = images.float().div(16).view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)
tokens = torch.cat([patches, torch.eye(16).expand(len(patches), -1, -1)], -1)  # with their places
by_ink = tokens.take_along_dim(patches.sum(-1).argsort(1, descending=True).unsqueeze(-1), 1)


def accuracy(name: str, k: int, seed: int) -> float:
    """Of a network on the sum of k tokens. Of the k with the most ink, the selector keeps all."""
    torch.manual_seed(seed)
    given = tokens if name == "TokenSelector" else by_ink[:, :k]
    select = TokenSelector(k, dim=64, width=given.shape[1])  # soft: every token gets a gradient
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), select)
    classify = nn.Linear(64, 10)
    optimizer = torch.optim.Adam([*net.parameters(), *classify.parameters()], lr=5e-3)
    schedule = WidthSchedule(select, total_steps=STEPS // EVERY)
    for step in range(STEPS):
        at = torch.randint(TRAIN, (128,))
        optimizer.zero_grad()
        logits = classify(net(given[at]).tokens.sum(1))
        nn.functional.cross_entropy(logits, labels[at]).backward()
        optimizer.step()
        if step % EVERY == 0:
            schedule.step()
    found = classify(net.eval()(given[TRAIN:]).tokens.sum(1)).argmax(-1)  # of exactly k tokens
    return (found == labels[TRAIN:]).float().mean().item()


(axes,) = new_figure(size=(5, 2.8)).axes
print("patches kept " + "".join(f"{k:14d}" for k in KEPT))
for name, line in (("TokenSelector", "o-"), ("most ink", "D--")):
    runs = torch.tensor([[accuracy(name, k, seed) for seed in range(SEEDS)] for k in KEPT])
    print(f"{name:13s}" + "".join(f"  {run.mean():.3f} ±{run.std():.3f}" for run in runs))
    axes.plot(KEPT, runs.mean(1), line, color=style.BLUE, label=name)
axes.set(xlabel="patches kept, of 16", ylabel="test accuracy", xticks=KEPT)
axes.legend(frameon=False)
axes.figure.savefig("token_pruning.png", dpi=140)
