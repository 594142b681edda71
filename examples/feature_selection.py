"""Feature selection: which 5 of 50 features does a target depend on?

A gate of 50 scores is trained together with a network, through `SoftTopK`. The target has a product
and even functions, which a correlation does not see. A random forest sees them too.
"""

import argparse
from pathlib import Path

import torch
from sklearn.ensemble import RandomForestRegressor
from torch import nn

from softtopk import SoftTopK
from softtopk.plotting import new_figure, style

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("."), help="folder of the picture")
out = parser.parse_args().out

N, K, ROWS, STEPS = 50, 5, 800, 400
torch.manual_seed(0)
x, informative = torch.randn(ROWS, N), torch.randperm(N)[:K]
a, b, c, d, e = x[:, informative].unbind(-1)
y = a * b + torch.sin(2 * c) + d.abs() + e.square() / 2
y = (y - y.mean()) / y.std() + 0.1 * torch.randn(ROWS)

scores = nn.Parameter(0.01 * torch.randn(N))  # small: nothing is decided before there is a reason
select = SoftTopK(K, width=N)  # soft at first: every feature gets a gradient
network = nn.Sequential(nn.Linear(N, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam([scores, *network.parameters()], lr=1e-2)
history = []
for _ in range(STEPS):
    gate = select(scores)
    history.append(gate.detach())
    loss = (network(x * gate).squeeze(-1) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

forest = RandomForestRegressor(50, random_state=0).fit(x.numpy(), y.numpy())
rankings = {
    "SoftTopK": scores.detach(),  # hard at the end: the k largest
    "correlation": (x * y.unsqueeze(-1)).mean(0).abs(),
    "random forest": torch.from_numpy(forest.feature_importances_),
}
for name, importance in rankings.items():
    found = torch.isin(importance.topk(K).indices, informative).sum()
    print(f"{name:14s} finds {found} of {K}")

figure = new_figure(size=(5, 2.8))
(axes,) = figure.axes
gates = torch.stack(history)
axes.plot(gates, color=style.LIGHT_GREY, lw=0.7)
axes.plot(gates[:, informative], color=style.BLUE, lw=1.8)
axes.set(xlabel="step", ylabel="gate A", title=f"the {K} informative features in blue")
figure.savefig(out / "feature_selection.png", dpi=140)
