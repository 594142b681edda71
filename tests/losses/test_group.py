"""The mean over the queries of all ranks, against one process with the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from softtopk import losses
from softtopk.distributed import gather

LABELS = torch.tensor([0, 0, 1, 1, 2, 3, 0, 1, 4])  # 2, 3 and 4 have no other sample


def network():
    torch.manual_seed(3)
    return nn.Linear(6, 4).double()


def data():
    return torch.randn(9, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def loss_of(features, items, labels, others, ids, group=None):
    mask = ids.unsqueeze(1) != torch.arange(len(items))
    positives = labels.unsqueeze(1) == others
    return losses.recall_at_k_loss(features @ items.mT, positives, (1, 2), mask=mask, group=group)


def train(group, sizes):
    model = DistributedDataParallel(network(), process_group=group)
    x, labels, ids = (
        part.split(sizes)[dist.get_rank(group)] for part in (data(), LABELS, torch.arange(9))
    )
    features = model(x)
    items = gather(features, group=group)
    loss = loss_of(features, items, labels, gather(labels, group=group), ids, group)
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("sizes", [(4, 5), (8, 1)], ids=str)  # 4 and 2 valid queries; 6 and 0
def test_the_loss_and_gradients_of_one_process(sizes):
    model = network()
    features = model(data())
    loss = loss_of(features, features, LABELS, LABELS, torch.arange(9))
    loss.backward()
    for found, gradients in run(2, train, sizes):
        assert found == pytest.approx(loss.item(), rel=1e-12)
        for actual, parameter in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(actual, parameter.grad, rtol=1e-10, atol=1e-13)


def nothing(group):
    scores = torch.randn(2, 3, requires_grad=True)
    loss = losses.hit_at_k_loss(scores, torch.zeros(2, 3, dtype=torch.bool), 1, group=group)
    loss.backward()
    return loss.item(), scores.grad.abs().sum().item()


def test_no_rank_has_a_valid_query():
    assert run(2, nothing) == [(0.0, 0.0), (0.0, 0.0)]
