"""Pooling of graphs."""

import copy
import pickle

import pytest
import torch

from softtopk import soft_topk
from softtopk.nn import TopKPool

SIZES = (5, 1, 3, 8)


def graphs():
    return torch.randn(sum(SIZES), 4), torch.arange(len(SIZES)).repeat_interleave(
        torch.tensor(SIZES)
    )


@pytest.mark.parametrize("ratio", [0.5, 0.3, 1.0, 2, 6])
def test_every_graph_by_itself(ratio):
    x, batch = graphs()
    pool = TopKPool(4, ratio, eps=0.5)
    found, exact = pool(x, batch), copy.deepcopy(pool).eval()(x, batch)
    scores = x @ pool.weight[0] / pool.weight.norm()
    for graph, size in enumerate(SIZES):
        own = (batch == graph).nonzero().flatten()
        k = min(ratio, size) if isinstance(ratio, int) else -int(-ratio * size // 1)
        best = own[scores[own].topk(k).indices].sort().values
        here = found.batch == graph
        assert torch.equal(found.node_index[here], best)
        alone = soft_topk(scores[own], k, eps=0.5)[best - own[0]]
        torch.testing.assert_close(found.weight[here], alone)
    assert torch.equal(found.x, x[found.node_index] * found.weight[:, None])
    assert torch.equal(exact.node_index, found.node_index)
    assert torch.equal(exact.x, x[exact.node_index])
    cold = TopKPool(4, ratio, eps=1e-30)
    cold.load_state_dict(pool.state_dict())
    torch.testing.assert_close(cold(x, batch).x, exact.x)


def test_dropped_nodes_have_a_gradient():
    x, batch = graphs()
    x.requires_grad_()
    pool = TopKPool(4, 0.5)  # calibrated
    found = pool(x, batch)
    (gradient,) = torch.autograd.grad(found.weight.square().sum(), x)
    several = batch != 1
    assert (gradient[several] != 0).any(-1).all()
    assert torch.equal(pickle.loads(pickle.dumps(pool))(x, batch).x, found.x)


def test_edges():
    pool = TopKPool(4, 0.5)
    assert pool(torch.zeros(0, 4)).x.shape == (0, 4)
    x = torch.randn(6, 4)
    assert torch.equal(pool(x).node_index, pool(x, torch.zeros(6).long()).node_index)
    gap = pool(x, torch.tensor([0, 0, 0, 2, 2, 2]))  # a graph without nodes
    assert gap.batch.tolist() == [0, 0, 2, 2]
    assert pool(torch.zeros(6, 4)).x.isfinite().all()
    assert "TopKPool(4, ratio=0.5, width=2 * k" in repr(pool)
    for call, message in (
        (lambda: TopKPool(4, 0), "ratio must be at least 1"),
        (lambda: TopKPool(4, 1.5), "ratio must be above 0 and at most 1"),
        (lambda: pool(torch.zeros(6)), r"x must be \(nodes, in_channels=4\)"),
        (lambda: pool(x, torch.zeros(5).long()), "batch must be integers, one for each of 6"),
        (lambda: pool(x, torch.arange(6).flip(0)), "batch must be ascending"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
