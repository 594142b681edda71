"""DTensors go into the ordinary operators and come out, against the whole tensor."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import run
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import softtopk
import softtopk.distributed

NAMES = ["soft_topk", "log_soft_topk", "topk_threshold", "sorted_soft_topk"]


def mesh_of(group, shape):
    if len(shape) == 1:
        return DeviceMesh.from_group(group, "cpu")
    return DeviceMesh("cpu", torch.arange(dist.get_world_size(group)).view(shape))


def apply(group, name, shape, placements, x, k, options, weights):
    """The whole result, its placements, and the gradients in scores and eps."""
    mesh = mesh_of(group, shape)
    local = distribute_tensor(x, mesh, placements, src_data_rank=None).requires_grad_()
    options = dict(options)
    eps = options.pop("eps").clone().requires_grad_()
    with counting_gathers() as gathers:
        result = getattr(softtopk, name)(local, k, eps=eps, **options)
    assert isinstance(result, DTensor)
    weights = distribute_tensor(weights, mesh, result.placements, src_data_rank=None)
    (result * weights).sum().backward()
    grad = local.grad.full_tensor()
    return result.full_tensor().detach(), result.placements, gathers, grad, eps.grad


class counting_gathers:
    """The number of collective operations."""

    def __enter__(self):
        from torch.distributed.tensor.debug import CommDebugMode

        self.mode = CommDebugMode()
        self.mode.__enter__()
        self.counts = []
        return self.counts

    def __exit__(self, *error):
        self.mode.__exit__(*error)
        self.counts.append(self.mode.get_total_counts())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("ranks", "shape", "placements"),
    [
        (3, (3,), [Shard(1)]),  # along dim: 10 = 4 + 4 + 2
        (4, (4,), [Shard(1)]),  # 3 + 3 + 3 + 1
        (2, (2,), [Shard(0)]),
        (2, (2,), [Shard(2)]),
        (2, (2,), [Replicate()]),
        (4, (4,), [Shard(2)]),  # 1 + 1 + 1 + 0 rows
        (4, (2, 2), [Shard(0), Shard(1)]),
        (4, (2, 2), [Shard(1), Replicate()]),
    ],
    ids=str,
)
def test_as_the_whole(name, ranks, shape, placements):
    x = torch.randn(4, 10, 3, dtype=torch.float64)
    mask = torch.rand(4, 10, 3) > 0.2
    eps = (torch.rand(4, 3, dtype=torch.float64) + 0.2).requires_grad_()
    k = 3 if name == "sorted_soft_topk" else torch.randint(1, 4, (4, 1))
    options = {"dim": 1, "mask": mask}
    whole = x.clone().requires_grad_()
    expected = getattr(softtopk, name)(whole, k, eps=eps, **options)
    finite = expected.isfinite()
    weights = torch.randn(expected.shape, dtype=torch.float64)
    if not bool(finite.all()):  # log 0
        options = {"dim": 1}
        expected = getattr(softtopk, name)(whole, k, eps=eps, **options)
    (expected * weights).sum().backward()
    options["eps"] = eps.detach()
    for actual, found, gathers, grad, grad_eps in run(
        ranks, apply, name, shape, placements, x, k, options, weights
    ):
        torch.testing.assert_close(actual, expected.detach(), rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(grad, whole.grad, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(grad_eps, eps.grad, rtol=1e-7, atol=1e-9)
        if name == "topk_threshold":
            assert not any(place.is_shard(2) for place in found)
        else:
            assert list(found) == placements
        if not any(place.is_shard(1) for place in placements):
            assert gathers == [0]


def twice(group, k):
    """The threshold, its gradient, and the gradient of that, of a loss that is not linear."""
    x = torch.randn(2, 9, dtype=torch.float64)
    whole = distribute_tensor(x, mesh_of(group, (3,)), [Shard(1)], src_data_rank=None)
    results = []
    for scores in (x, whole):
        leaf = scores.clone().requires_grad_()
        threshold = softtopk.topk_threshold(scores=leaf, k=k, eps=0.5)
        (first,) = torch.autograd.grad(threshold.pow(3).sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaf)
        results.append([threshold.detach(), first.detach(), second])
    for ordinary, found in zip(*results, strict=True):
        torch.testing.assert_close(found.full_tensor(), ordinary, equal_nan=True)


@pytest.mark.parametrize("k", [3, 2.5])
def test_second_derivatives_of_the_threshold(k):
    run(3, twice, k)


def ends(group, k):
    x = torch.randn(2, 9)
    whole = distribute_tensor(x, mesh_of(group, (3,)), [Shard(1)], src_data_rank=None)
    found = softtopk.topk_threshold(whole, k).full_tensor()
    torch.testing.assert_close(found, softtopk.topk_threshold(x, k))


@pytest.mark.parametrize("k", [0, 9])
def test_infinite_thresholds(k):
    run(3, ends, k)


def pending(group):
    mesh = mesh_of(group, (2,))
    own = torch.arange(6.0) / 2
    return softtopk.soft_topk(DTensor.from_local(own, mesh, [Partial()]), 2).full_tensor()


def test_a_sum_that_is_pending():
    for result in run(2, pending):
        torch.testing.assert_close(result, softtopk.soft_topk(torch.arange(6.0), 2))


def wrong(group):
    x = distribute_tensor(torch.randn(4, 8), mesh_of(group, (2,)), [Shard(1)], src_data_rank=None)
    with pytest.raises(ValueError, match=r"mask of shape \(4, 4\) does not broadcast"):
        softtopk.soft_topk(x, 2, mask=torch.ones(4, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match="to_local"):
        softtopk.distributed.gather(x, group=group)


def test_wrong_arguments():
    run(2, wrong)


def refused(group, placements, options):
    mesh = mesh_of(group, (2, 2))
    x = distribute_tensor(torch.randn(4, 8), mesh, placements, src_data_rank=None)
    with pytest.raises(NotImplementedError) as error:
        softtopk.soft_topk(x, 2, **options)
    return str(error.value)


def test_refused():
    for placements, options, message in (
        ([Shard(1), Shard(1)], {}, "use a mesh in which these are one"),
        ([Shard(1), Replicate()], {"solver": "sinkhorn"}, "need solver='exact'"),
        ([Shard(0), Shard(1)], {"normalize": "batch"}, "use normalize='row'"),
        ([Shard(0), Replicate()], {"offsets": torch.tensor([0, 8])}, "takes no offsets"),
    ):
        for text in run(4, refused, placements, options):
            assert message in text


def by_rule(group):
    mesh = mesh_of(group, (2,))
    x = distribute_tensor(torch.arange(24.0).view(4, 6), mesh, [Shard(0)], src_data_rank=None)
    softtopk.soft_topk(x, 2)
    one = torch.ones(4, 1)
    k = distribute_tensor(2 * one, mesh, [Shard(0)], src_data_rank=None)
    result = torch.ops.softtopk.soft_topk(x, None, k, 0.5 * k, True)
    return result.placements, result.full_tensor()


def test_the_rule_of_the_custom_operator():
    for placements, result in run(2, by_rule):
        assert placements == (Shard(0),)
        expected = softtopk.soft_topk(torch.arange(24.0).view(4, 6), 2, eps=2.0)
        torch.testing.assert_close(result, expected)
