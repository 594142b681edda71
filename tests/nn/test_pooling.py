"""Pooling of graphs: on ragged rows, against a loop over the graphs and PyTorch Geometric."""

import copy
import math
import warnings

import pytest
import torch
from torch.testing import assert_close

from softtopk import WidthSchedule, soft_topk
from softtopk.nn import TopKPool

with warnings.catch_warnings():  # it uses parts of torch that are deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.nn import TopKPooling

    from softtopk.integrations.torch_geometric import SelectSoftTopK

SIZES = (7, 1, 0, 12, 4)
EDGE = torch.tensor([[0], [1]])


def graphs(dtype=torch.float64):
    n, generator = sum(SIZES), torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=generator, dtype=dtype, requires_grad=True)
    batch = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    ends = torch.randint(n, (2, 400), generator=generator)
    edge_index = ends[:, batch[ends[0]] == batch[ends[1]]]
    return x, edge_index, torch.arange(edge_index.shape[1]), batch


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 3])
def test_a_loop_over_graphs(ratio):
    x, edge_index, edge_attr, batch = graphs()
    pool = TopKPool(3, ratio, eps=0.3).double()
    pooled = pool(x, edge_index, edge_attr, batch)
    (gradient,) = torch.autograd.grad(pooled.x.square().sum(), x)
    scores = x @ (pool.weight / pool.weight.norm()).squeeze(0)
    expected, kept = [], []
    for graph in range(len(SIZES)):
        nodes = (batch == graph).nonzero().squeeze(-1)
        if not len(nodes):
            continue
        k = min(ratio, len(nodes)) if isinstance(ratio, int) else math.ceil(ratio * len(nodes))
        best = scores[nodes].topk(k).indices.sort().values
        expected.append(x[nodes[best]] * soft_topk(scores[nodes], k, eps=0.3)[best, None])
        kept.append(nodes[best])
    assert_close(pooled.x, torch.cat(expected))
    assert_close(pooled.perm, torch.cat(kept))
    assert_close(pooled.batch, batch[pooled.perm])
    assert_close(gradient, torch.autograd.grad(torch.cat(expected).square().sum(), x)[0])
    # The edges: those of the attributes that are left, with the numbers that their ends have now.
    assert_close(pooled.perm[pooled.edge_index], edge_index[:, pooled.edge_attr])
    ends_stay = torch.isin(edge_index, pooled.perm).all(0)
    assert_close(pooled.edge_attr, ends_stay.nonzero().squeeze(-1))


@pytest.mark.parametrize("ratio", [0.3, 3])
def test_cold_it_keeps_what_torch_geometric_keeps(ratio):
    x, edge_index, edge_attr, batch = graphs(torch.float32)
    theirs, ours = TopKPooling(3, ratio), TopKPool(3, ratio, eps=1e-9)
    ours.weight.data = theirs.select.weight.data
    expected, found = theirs(x, edge_index, edge_attr, batch), ours(x, edge_index, edge_attr, batch)
    assert_close(found.score, torch.ones(len(found.perm)))
    assert_close(found.perm, expected[4].sort().values)
    assert_close(found.edge_attr, expected[2])


def test_the_select_step_of_torch_geometric():
    x, edge_index, edge_attr, batch = graphs(torch.float32)
    layer, ours = TopKPooling(3, 0.5), TopKPool(3, 0.5, eps=0.3)
    layer.select = SelectSoftTopK(3, 0.5, eps=0.3)
    layer.select.pool.weight.data = ours.weight.data
    for one, other in zip(
        layer(x, edge_index, edge_attr, batch), ours(x, edge_index, edge_attr, batch), strict=True
    ):
        assert_close(one, other)
    layer.reset_parameters()
    assert "ratio=0.5, eps=0.3" in repr(layer.select)


def test_gradcheck():
    x, edge_index, _, batch = graphs()
    pool = TopKPool(3, 0.5, eps=1.0).double()
    assert torch.autograd.gradcheck(lambda x: pool(x, edge_index, batch=batch).x, x)
    assert torch.autograd.gradgradcheck(lambda x: pool(x, edge_index, batch=batch).x, x)


def test_the_first_training_batch_decides_eps():
    x, edge_index, _, batch = graphs(torch.float32)
    pool = TopKPool(3)
    pool(x, edge_index, batch=batch)
    big = copy.deepcopy(pool)
    big.recalibrate()
    big(64 * x, edge_index, batch=batch)
    assert_close(big.eps, 64 * pool.eps)
    assert_close(big(64 * x, edge_index, batch=batch).score, pool(x, edge_index, batch=batch).score)
    WidthSchedule(pool, total_steps=1).step()
    pool(x, edge_index, batch=batch)
    assert pool.eps < big.eps / 64


def test_extremes():
    none = TopKPool(3)(torch.randn(0, 3), torch.zeros(2, 0, dtype=torch.int64))
    assert none.x.shape == (0, 3)
    x, edge_index, _, batch = graphs(torch.bfloat16)
    assert TopKPool(3, eps=0.1).bfloat16()(x, edge_index, batch=batch).x.isfinite().all()
    flat = TopKPool(3)
    with torch.no_grad():
        flat.weight.zero_()
    x = x.detach().float().requires_grad_()
    pooled = flat(x, edge_index, batch=batch)
    assert pooled.x.isfinite().all()
    pooled.x.sum().backward()
    assert flat.weight.grad.isfinite().all()


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: TopKPool(0), ValueError, "in_channels must be at least 1"),
        (lambda: TopKPool(3, 0.0), ValueError, "ratio must be above 0"),
        (lambda: TopKPool(3, 1.5), ValueError, "ratio must be above 0 and at most 1"),
        (lambda: TopKPool(3, 0), ValueError, "ratio must be at least 1"),
        (lambda: TopKPool(3).select(torch.randn(5, 4)), ValueError, r"x must have shape \(n, 3\)"),
        (
            lambda: TopKPool(3).select(torch.randn(3, 3), torch.tensor([0, 1, 0])),
            ValueError,
            "batch must .* sorted",
        ),
        (
            lambda: TopKPool(3).select(torch.randn(3, 3), torch.tensor([0, 1])),
            ValueError,
            r"batch must be integers of shape \(3,\)",
        ),
        (
            lambda: TopKPool(3)(torch.randn(3, 3), EDGE, attn=torch.randn(2, 3)),
            ValueError,
            "attn must have a row for each of the 3 nodes, got 2",
        ),
        (lambda: TopKPool(3, width=math.nan), ValueError, "width must be positive"),
        (
            lambda: TopKPool(3)(torch.randn(3, 3), torch.zeros(3, 2)),
            ValueError,
            r"edge_index must be integers of shape \(2, edges\)",
        ),
    ],
)
def test_wrong_arguments(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_a_graph_with_a_nan_stays():
    x = torch.randn(6, 3)
    x[0, 0] = math.nan
    nodes = TopKPool(3, eps=0.1).select(x, torch.tensor([0, 0, 0, 1, 1, 1]))
    assert nodes.batch.tolist() == [0, 0, 1, 1]
    assert nodes.weight.isnan().tolist() == [True, True, False, False]
