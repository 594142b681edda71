"""What the baselines train their features for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softtopk.knn import Outcome


class Classification(nn.Module):
    """Cross-entropy of a linear layer on the features."""

    uses_templates = False

    def __init__(self, network: nn.Module, n_features: int, n_classes: int) -> None:
        super().__init__()
        self.network = network
        # The activation and the linear layer that the paper takes off to get the features.
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(n_features, n_classes))

    def forward(self, inputs: Tensor, labels: Tensor) -> Outcome:
        logits = self.head(self.network(inputs))
        correct = (logits.detach().argmax(-1) == labels).float().mean()
        return Outcome(F.cross_entropy(logits, labels), correct)


class Reconstruction(nn.Module):
    """Squared error of the images that a small decoder makes of the features."""

    uses_templates = False

    def __init__(self, network: nn.Module, n_features: int, n_pixels: int) -> None:
        super().__init__()
        self.network = network
        self.decoder = nn.Sequential(
            nn.ReLU(), nn.Linear(n_features, 1024), nn.ReLU(), nn.Linear(1024, n_pixels)
        )

    def forward(self, inputs: Tensor, labels: Tensor) -> Outcome:
        images = self.decoder(self.network(inputs))
        error = F.mse_loss(images, inputs.flatten(1))
        return Outcome(error, torch.tensor(float("nan")))
