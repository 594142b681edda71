"""A retrieval loss: does it pay to train recall@k itself?

A small network maps digits to features, whose cosines rank the other images. It is trained by
`recall_at_k_loss`, or by the plain InfoNCE loss, and judged on images that were not trained on.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from softtopk.losses import recall_at_k_loss

KS, BATCH, STEPS, SEEDS, TRAIN = (1, 4, 16), 200, 150, 3, 900  # training images, of 1797
TAU = 0.1  # of InfoNCE; nothing was tuned
images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
images = images.float() / 16


def loss(name: str, cosines: Tensor, same: Tensor, others: Tensor) -> Tensor:
    if name == "recall loss":
        return recall_at_k_loss(cosines, same, KS, mask=others, capped=True)
    log = (cosines / TAU).masked_fill(~others, -torch.inf).log_softmax(-1)
    return -log[same & others].mean()


def ranking(features: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cosines, which pairs are of one class, and which are not an image with itself."""
    unit = nn.functional.normalize(features, dim=-1)
    return unit @ unit.mT, labels[at, None] == labels[at], ~torch.eye(len(at), dtype=torch.bool)


print("recall@k, k =" + "".join(f"{k:7d}" for k in KS))
for name in ("pixels", "InfoNCE", "recall loss"):
    recalls = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        train, test = torch.randperm(len(images)).split([TRAIN, len(images) - TRAIN])
        network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        for _ in range(0 if name == "pixels" else STEPS):
            at = train[torch.randperm(TRAIN)[:BATCH]]
            optimizer.zero_grad()
            loss(name, *ranking(network(images[at]), at)).backward()
            optimizer.step()
        features = images[test] if name == "pixels" else network(images[test])
        cosines, same, _ = ranking(features.detach(), test)
        best = cosines.fill_diagonal_(-1).topk(max(KS)).indices  # never the image itself
        recalls.append([same.gather(1, best)[:, :k].float().mean() for k in KS])
    row = torch.tensor(recalls).mean(0)
    print(f"{name:13s}" + "".join(f"{value:7.3f}" for value in row))
