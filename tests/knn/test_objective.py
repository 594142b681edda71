"""The objective that lets every sample be a query."""

from __future__ import annotations

import pytest
import torch

from softtopk import soft_topk
from softtopk.knn import KNNObjective, knn_loss, pairwise_distances


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


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_calibrated_eps_leaves_as_many_undecided_as_asked_for(scale: float) -> None:
    torch.manual_seed(0)
    inputs = scale * torch.randn(400, 3)
    network = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Identity())
    objective = KNNObjective(network, 20, options={"normalize": None})
    eps = objective.calibrate(inputs, width=12)
    assert objective.eps == eps
    assert network.training  # again: dropout was off for the measurement only
    others = ~torch.eye(400, dtype=torch.bool)
    soft = soft_topk(-pairwise_distances(inputs, inputs), 20, eps=eps, mask=others)
    undecided = ((soft > 0.05) & (soft < 0.95)).sum(1).float()
    assert undecided.mean().item() == pytest.approx(12, rel=0.25)


def test_calibration_at_the_end_of_a_row_and_of_equal_samples() -> None:
    network = torch.nn.Identity()
    few = KNNObjective(network, 1, options={"normalize": None})
    assert few.calibrate(torch.randn(4, 2), width=50) > 0
    assert few.calibrate(torch.zeros(4, 2), width=2) == 1.0
    half = torch.cat([torch.zeros(30, 2), torch.randn(10, 2)])
    assert few.calibrate(half, width=2) > 0
