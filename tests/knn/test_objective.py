"""The objective that lets every sample be a query."""

from __future__ import annotations

import pytest
import torch

from softtopk.knn import KNNObjective, knn_loss


@pytest.mark.parametrize("kind", ["vote", "nll"])
@pytest.mark.parametrize("relaxation", ["soft-topk", "neural-sort"])
def test_leave_one_out_is_the_loss_of_all_against_all_others(kind: str, relaxation: str) -> None:
    torch.manual_seed(0)
    network = torch.nn.Linear(5, 3).double()
    inputs, labels = torch.randn(12, 5).double(), torch.arange(12) % 3
    objective = KNNObjective(
        network, 4, objective=kind, relaxation=relaxation, eps=0.1, leave_one_out=True
    )
    outcome = objective(inputs, labels, 7)
    losses = []
    for i in range(12):
        others = [j for j in range(12) if j != i]
        losses.append(
            knn_loss(
                network(inputs[[i]]),
                labels[[i]],
                network(inputs[others]),
                labels[others],
                4,
                objective=kind,
                relaxation=relaxation,
                eps=0.1,
            )
        )
    torch.testing.assert_close(outcome.loss, torch.stack(losses).mean())
    gradients = [
        torch.autograd.grad(loss, network.weight)[0]
        for loss in (outcome.loss, torch.stack(losses).mean())
    ]
    torch.testing.assert_close(*gradients)
    assert 0 <= outcome.accuracy <= 1
