"""The objective: every sample as a query, and the temperature that the first batch decides."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from softtopk import soft_topk
from softtopk.knn import KNNObjective, Recipe, Training, knn_loss, pairwise_distances


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


@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_the_first_batch_decides_eps(scale: float, leave_one_out: bool) -> None:
    torch.manual_seed(0)
    inputs, labels = scale * torch.randn(400, 3), torch.arange(400) % 5
    objective = KNNObjective(torch.nn.Identity(), 20, leave_one_out=leave_one_out)
    assert math.isnan(objective.eps)
    objective(inputs, labels, 200)
    first = objective.eps.item()
    queries = inputs if leave_one_out else inputs[:200]
    templates = inputs if leave_one_out else inputs[200:]
    others = ~torch.eye(400, dtype=torch.bool) if leave_one_out else None
    soft = soft_topk(-pairwise_distances(queries, templates), 20, eps=first, mask=others)
    undecided = ((soft > 0.05) & (soft < 0.95)).sum(1).float()
    assert undecided.mean().item() == pytest.approx(40, rel=0.25)
    objective(7 * inputs, labels, 200)
    assert objective.eps.item() == first  # and stays
    objective.recalibrate()
    objective(7 * inputs, labels, 200)
    assert objective.eps.item() == pytest.approx(7 * first, rel=0.02)


def test_outside_training_eps_is_that_of_the_call() -> None:
    inputs, labels = torch.randn(50, 3), torch.arange(50) % 5
    objective = KNNObjective(torch.nn.Identity(), 5).eval()
    losses = [objective(scale * inputs, labels, 20).loss for scale in (1.0, 100.0)]
    torch.testing.assert_close(*losses)
    assert math.isnan(objective.eps)
    assert objective.train()(inputs, labels, 20).loss == losses[0]
    assert not math.isnan(objective.eps)


def test_calibration_at_the_end_of_a_row_and_of_equal_samples() -> None:
    labels = torch.zeros(40).long()

    def eps_of(inputs: torch.Tensor, k: int) -> float:
        objective = KNNObjective(torch.nn.Identity(), k, leave_one_out=True)
        outcome = objective(inputs, labels[: len(inputs)], 2)
        assert outcome.loss.isfinite()
        return objective.eps.item()

    assert eps_of(torch.randn(5, 2), 3) > 0  # of the five, four take part: fewer than 2 k
    assert math.isnan(eps_of(torch.randn(4, 2), 3))  # all three: there is nothing to decide
    assert math.isnan(eps_of(torch.zeros(4, 2), 1))  # nor a scale
    assert eps_of(torch.cat([torch.zeros(30, 2), torch.randn(10, 2)]), 1) > 0


@pytest.mark.parametrize(
    "settings",
    [{"eps": 0.3}, {"relaxation": "neural-sort"}, {"options": {"normalize": "row"}}],
)
def test_what_is_given_is_not_calibrated(settings: dict[str, Any]) -> None:
    objective = KNNObjective(torch.nn.Linear(3, 2), 5, **settings)
    assert objective.width is None
    assert set(objective.state_dict()) == {"network.weight", "network.bias"}
    objective(torch.randn(40, 3), torch.arange(40) % 2, 20)
    assert "calibrated_eps" not in objective.state_dict()


def test_the_calibrated_eps_has_the_dtype_and_the_place_of_the_network(
    other_defaults: Any,
) -> None:
    network = torch.nn.Linear(3, 2, dtype=torch.float64, device="cpu")
    with other_defaults():
        objectives = [KNNObjective(net, 5) for net in (network, torch.nn.Identity())]
    kinds = [(made.calibrated_eps.dtype, made.calibrated_eps.device.type) for made in objectives]
    assert kinds == [(torch.float64, "cpu"), (torch.float32, "cpu")]
    lazy = KNNObjective(torch.nn.LazyLinear(2), 5)
    lazy(torch.randn(40, 3), torch.arange(40) % 2, 20)
    assert lazy.eps > 0


def test_the_calibrated_eps_is_in_the_state() -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(40, 3), torch.arange(40) % 2
    objective = KNNObjective(torch.nn.Linear(3, 2), 5, leave_one_out=True)
    objective(inputs, labels, 20)
    again = KNNObjective(torch.nn.Linear(3, 2), 5, leave_one_out=True)
    again.load_state_dict(objective.state_dict())
    assert again.eps == objective.eps
    assert again(9 * inputs, labels, 20).loss == objective(9 * inputs, labels, 20).loss
    assert again.eps == objective.eps  # which a second batch does not change


@pytest.mark.parametrize("at", [0, 1, 5])
def test_a_training_that_is_taken_up_again_keeps_eps(at: int) -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(60, 4), torch.arange(60) % 3
    start = torch.nn.Linear(4, 3)

    def make() -> Training:
        objective = KNNObjective(copy.deepcopy(start), 5, objective="nll", leave_one_out=True)
        recipe = Recipe(epochs=3, batch_size=20, template_size=20, optimizer="adamw", lr=0.1)
        return Training(objective, inputs, labels, recipe)

    whole, first, second = make(), make(), make()
    expected = [whole.advance() for _ in range(9)]
    head = [first.advance() for _ in range(at)]
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert head + [second.advance() for _ in range(9 - at)] == expected
    assert second.objective.eps == whole.objective.eps
