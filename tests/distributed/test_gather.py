"""Losses over the batches of all ranks, against one process with the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import run
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import softtopk
from softtopk.distributed import gather, mean
from softtopk.knn import knn_loss

N, CLASSES = 24, 3


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, 6, generator=generator, dtype=torch.float64)
    return x, torch.arange(N) % CLASSES, torch.arange(N)


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


def knn(query, labels, ids, templates, template_labels, template_ids):
    return knn_loss(
        query,
        labels,
        templates,
        template_labels,
        4,
        eps=0.3,
        query_ids=ids,
        template_ids=template_ids,
        reduction="none",
    )


def recall(query, labels, ids, templates, template_labels, template_ids):
    """A ranking loss of one's own: the soft share of positives among the k nearest."""
    scores = -torch.cdist(query, templates)
    others = ids.unsqueeze(1) != template_ids
    nearest = softtopk.soft_topk(scores, 4, eps=0.2, mask=others)
    positives = (labels.unsqueeze(1) == template_labels) & others
    return 1.0 - (nearest * positives).sum(1) / 4


LOSSES = {"knn": knn, "recall": recall}


def whole(name):
    """One process: the loss of the whole batch, and the gradient of every parameter."""
    model, (x, labels, ids) = network(), data()
    features = model(x)
    loss = LOSSES[name](features, labels, ids, features, labels, ids).mean()
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters()]


def train(group, name, sizes):
    rank = dist.get_rank(group)
    model = DistributedDataParallel(network(), process_group=group)
    x, labels, ids = (part.split(sizes)[rank] for part in data())
    features = model(x)
    templates = [gather(part, group=group) for part in (features, labels, ids)]
    loss = mean(LOSSES[name](features, labels, ids, *templates), group=group)
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("sizes", [(12, 12), (3, 20, 1), (10, 0, 5, 9)], ids=str)
def test_the_loss_and_gradients_of_one_process(name, sizes):
    loss, gradients = whole(name)
    for found, parts in run(len(sizes), train, name, sizes):
        assert found == pytest.approx(loss, rel=1e-12)
        for actual, expected in zip(parts, gradients, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-13)


def accumulate(group, sizes):
    """Two batches, of which only the second lets the ranks average their gradients."""
    rank = dist.get_rank(group)
    model = DistributedDataParallel(network(), process_group=group)
    x, labels, _ = data()
    first, second = sizes
    for halves, (start, stop) in ((first, (0, sum(first))), (second, (sum(first), N))):
        own_x, own_labels = (part[start:stop].split(halves)[rank] for part in (x, labels))
        last = stop == N
        model.require_backward_grad_sync = last
        losses = F.cross_entropy(model(own_x), own_labels, reduction="none")
        mean(losses, count=N, group=group).backward()
    return [p.grad for p in model.parameters()]


def test_gradient_accumulation():
    model, (x, labels, _) = network(), data()
    F.cross_entropy(model(x), labels).backward()
    for parts in run(3, accumulate, ((2, 5, 1), (9, 0, 7))):
        for actual, parameter in zip(parts, model.parameters(), strict=True):
            torch.testing.assert_close(actual, parameter.grad, rtol=1e-10, atol=1e-13)


def gathered(group, x, sizes, dim):
    own = x.split(sizes, dim)[dist.get_rank(group)].clone().requires_grad_()
    everything = gather(own, dim=dim, group=group)
    rank = 1.0 + dist.get_rank(group)
    (first,) = torch.autograd.grad((rank * everything**3).sum(), own, create_graph=True)
    (second,) = torch.autograd.grad((rank * first**2).sum(), own)
    return everything.detach(), first.detach(), second


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_scale_of_the_gradient(dim, dtype):
    """Rank r weighs its loss by 1 + r; the derivative is that of the sum of all losses."""
    x = torch.randn(5, 5, 5).to(dtype)
    sizes = (2, 0, 3)
    parts = run(3, gathered, x, sizes, dim)
    tolerance = {"rtol": 4e-2, "atol": 4e-2} if dtype is torch.bfloat16 else {}
    first = (1 + 2 + 3) * 3 * x**2
    # Of sum_r w_r first_r^2, where w_r is the weight of the rank that has the element.
    weight = torch.tensor([1.0, 1.0, 3.0, 3.0, 3.0]).to(dtype)
    weight = weight.view([-1 if axis == dim % 3 else 1 for axis in range(3)])
    second = weight * 2 * first * (1 + 2 + 3) * 6 * x
    for whole, _, _ in parts:
        torch.testing.assert_close(whole, x)
    torch.testing.assert_close(torch.cat([p[1] for p in parts], dim), first, **tolerance)
    torch.testing.assert_close(torch.cat([p[2] for p in parts], dim), second, **tolerance)


def unlike(group, what):
    x = torch.randn(2, 3)
    if dist.get_rank(group) == 1:
        x = {"shape": x[:, :2], "dtype": x.double(), "text": "x"}[what]
    try:
        gather(x, group=group)
    except Exception as error:
        return str(error)


def test_unlike_tensors():
    for what in ("shape", "dtype"):
        for message in run(2, unlike, what):
            assert "all ranks must make the same call" in message
    first, second = run(2, unlike, "text")
    assert "tensor must be a torch.Tensor, got str" in second
    assert "rank 1 has refused its arguments" in first


def special(group):
    infinite = mean(torch.tensor([1.0, torch.inf if dist.get_rank(group) else 2.0]), group=group)
    half = mean(torch.ones(70_000, dtype=torch.float16), group=group)
    return infinite, half


def test_special_values_of_the_mean():
    for infinite, half in run(2, special):
        assert infinite == torch.inf
        assert half == 1
        assert (infinite.dtype, half.dtype) == (torch.float32, torch.float16)


def other_counts(group):
    with pytest.raises(ValueError, match=r"mean\(count=4\)"):
        mean(torch.ones(2), count=3 + dist.get_rank(group), group=group)


def test_the_count_is_that_of_all_ranks():
    run(2, other_counts)
    for count in (0, -2.0):
        with pytest.raises(ValueError, match="count must be positive"):
            mean(torch.ones(2), count=count)
    with pytest.raises(TypeError, match="losses must be a torch"):
        mean([1.0])


def test_one_process():
    x = torch.randn(3, requires_grad=True)
    assert gather(x) is x
    mean(x**2).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() / 3)
    with pytest.raises(ValueError, match="no element on any rank"):
        mean(torch.empty(0))
