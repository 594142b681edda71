"""The float64 solutions against the oracles of the tests, which share no code with them."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch

from softtopk.experiments._truth import true_ranking, true_selection


@pytest.mark.parametrize("eps", [1e-3, 0.1, 10.0])
def test_selection(eps: float) -> None:
    scores = torch.randn(2, 50)
    truth = true_selection(scores, 7, eps / 2)
    for row, a in zip(scores.double().numpy(), truth.numpy(), strict=True):
        np.testing.assert_allclose(a, reference.soft_topk(row, 7, eps)[0], rtol=0, atol=1e-12)


def test_selection_with_a_temperature_per_row() -> None:
    scores = torch.randn(2, 50)
    tau = torch.tensor([[0.05], [5.0]], dtype=torch.float64)
    truth = true_selection(scores, 7, tau)
    torch.testing.assert_close(truth[:1], true_selection(scores[:1], 7, 0.05))
    torch.testing.assert_close(truth[1:], true_selection(scores[1:], 7, 5.0))


@pytest.mark.parametrize("eps", [0.01, 0.1, 10.0])
def test_ranking(eps: float) -> None:
    scores = torch.randn(2, 30)
    truth = true_ranking(scores, 4, eps / 2)
    for row, a in zip(scores.double().numpy(), truth.numpy(), strict=True):
        np.testing.assert_allclose(a, reference.sorted_soft_topk(row, 4, eps), rtol=0, atol=1e-8)
