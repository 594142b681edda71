"""The operators of sharded scores, against one process with all of them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import timedelta
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from ranks import run, run_alone

import softtopk
import softtopk.distributed
from softtopk.functional import _sharded

INF, NAN = float("inf"), float("nan")
UNSORTED = ["soft_topk", "log_soft_topk", "topk_threshold"]
#: Sizes of the shards, empty ones included.
SHARDS = [(30, 10), (13, 14, 13), (0, 25, 15), (1, 0, 38, 1)]


def part(x, sizes, rank, dim=-1):
    return None if x is None else x.split(list(sizes), dim)[rank].clone()


# What the ranks do. The sharded and the whole operator are compared by the test.


def forward(group, name, x, sizes, k, options, short=0):
    """``short``: rows of so many elements are gathered, none unless it is asked for."""
    rank, options = dist.get_rank(group), dict(options)
    if "mask" in options:
        options["mask"] = part(options["mask"], sizes, rank, options.get("dim", -1))
    own = part(x, sizes, rank, options.get("dim", -1))
    with patch.object(_sharded, "SHORT", short):
        return getattr(softtopk.distributed, name)(own, k, group=group, **options)


def derivatives(group, name, x, sizes, k, eps, weights, short=0):
    """Of a nonlinear loss of the own part: first, and of a function of these, second."""
    rank = dist.get_rank(group)
    own = part(x, sizes, rank).requires_grad_()
    k, eps = (v.clone().requires_grad_() if isinstance(v, torch.Tensor) else v for v in (k, eps))
    inputs = [v for v in (own, k, eps) if isinstance(v, torch.Tensor)]
    with patch.object(_sharded, "SHORT", short):
        result = getattr(softtopk.distributed, name)(own, k, eps=eps, group=group)
    replicated = name == "topk_threshold"
    own_weights = (
        weights if replicated else part(weights, sizes, rank, -1 if result.ndim == 2 else -2)
    )
    loss = loss_of(result, own_weights)
    if replicated:
        loss = loss / dist.get_world_size(group)
    first = torch.autograd.grad(loss, inputs, create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in first[:1]), inputs)
    return [g.detach() for g in first], [g.detach() for g in second]


def loss_of(result, weights):
    return (weights * result.square()).nan_to_num(neginf=0.0).sum()


def counted(group, name, x, sizes, k, options):
    """The messages forward and backward, as pairs of name and bytes."""
    own = part(x, sizes, dist.get_rank(group)).requires_grad_()
    with counting() as forward:
        result = getattr(softtopk.distributed, name)(own, k, group=group, **options)
    with counting() as backward:
        result.square().sum().backward()
    return forward, backward


@contextmanager
def counting():
    seen = []

    def watched(name, call, position):
        def counted(*args, **kwargs):
            seen.append((name, args[position].numel() * args[position].element_size()))
            return call(*args, **kwargs)

        return counted

    # Everything that goes round does so by one of these; others fail the test.
    with (
        patch.object(dist, "all_reduce", watched("all_reduce", dist.all_reduce, 0)),
        patch.object(dist, "all_gather", watched("all_gather", dist.all_gather, 1)),
        patch.object(dist, "broadcast", side_effect=AssertionError),
        patch.object(dist, "all_gather_object", side_effect=AssertionError),
    ):
        yield seen


def joined(name, parts, dim=-1):
    if name == "topk_threshold":
        for other in parts[1:]:
            torch.testing.assert_close(other, parts[0], rtol=0, atol=0, equal_nan=True)
        return parts[0]
    return torch.cat(parts, dim)


def same(actual, expected, dtype):
    tolerance = {torch.float64: 1e-11, torch.float32: 1e-6}[dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", UNSORTED)
@pytest.mark.parametrize("sizes", SHARDS, ids=str)
@pytest.mark.parametrize("eps", [1e-4, 0.1, 30.0])
def test_values(name, sizes, eps):
    x = torch.randn(3, 40, dtype=torch.float64)
    x[1] = x[1].round()  # ties across the cut and across ranks
    for k in (1, 7, 39.5, torch.tensor([3.0, 12.25, 40.0])):
        expected = getattr(softtopk, name)(x, k, eps=eps)
        for short in (0, 1024):
            parts = run(len(sizes), forward, name, x, sizes, k, {"eps": eps}, short)
            same(joined(name, parts), expected, torch.float64)


@pytest.mark.parametrize("name", UNSORTED)
def test_options(name):
    sizes = (6, 0, 9)
    x = torch.randn(4, 15, 2)
    mask = torch.rand(4, 15, 2) > 0.3
    per_row = torch.rand(4, 2) + 0.1
    for options in (
        {"dim": 1, "mask": mask, "eps": per_row},
        {"dim": 1, "largest": False, "mask": mask},
        {"dim": 1, "normalize": "row"},
        {"dim": 1, "normalize": "batch", "largest": False},
    ):
        expected = getattr(softtopk, name)(x, 4, **options)
        for short in (0, 1024):
            parts = run(3, forward, name, x, sizes, 4, options, short)
            same(joined(name, parts, 1), expected, torch.float32)


@pytest.mark.parametrize("name", UNSORTED)
def test_special_values(name):
    x = torch.tensor(
        [
            [1.0, INF, 2.0, -INF, INF, 0.0, INF, 3.0],  # more infinite ones than places
            [1.0, INF, 2.0, -INF, 4.0, 0.0, INF, 3.0],  # as many
            [1.0, -INF, -INF, -INF, -INF, -INF, -INF, -INF],  # fewer than places
            [1.0, 2.0, -INF, -INF, -INF, -INF, -INF, -INF],  # as many as places
            [1.0, NAN, 2.0, 3.0, 4.0, 0.0, 5.0, 3.0],
            [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0],
            [1e30, -3e38, 0.0, 1.0, 3e38, 2.0, 1e-40, 0.0],
        ]
    )
    for k in (2, 0, 8, 1.5):
        expected = getattr(softtopk, name)(x, k)
        for short in (0, 1024):
            actual = joined(name, run(3, forward, name, x, (3, 1, 4), k, {}, short))
            same(actual, expected, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    x = torch.randn(2, 40).to(dtype)
    parts = run(2, forward, "soft_topk", x, (11, 29), 5, {})
    assert parts[0].dtype is dtype
    torch.testing.assert_close(torch.cat(parts, -1), softtopk.soft_topk(x, 5))


def test_hard_selection():
    """Of equal scores the first are selected, in the order of the ranks."""
    x = torch.randint(0, 4, (6, 40)).float()
    for k in (5, 20.6, 7.2, 0.2, torch.tensor([0, 1, 40, 7, 20, 39])):
        parts = run(4, forward, "soft_topk", x, (10, 0, 17, 13), k, {"hard": True})
        torch.testing.assert_close(torch.cat(parts, -1), softtopk.soft_topk(x, k, hard=True))


@pytest.mark.parametrize("name", UNSORTED)
@pytest.mark.parametrize("eps", [0.05, 3.0])
@pytest.mark.parametrize("short", [0, 1024])
def test_derivatives(name, eps, short):
    """First and second, in scores, a fractional k and eps, of the sum of all ranks' losses."""
    sizes = (0, 7, 5)
    x = torch.randn(2, 12, dtype=torch.float64)
    k = torch.tensor([3.25, 6.5], dtype=torch.float64)
    eps = torch.full((2,), eps, dtype=torch.float64)
    inputs = [value.clone().requires_grad_() for value in (x, k, eps)]
    result = getattr(softtopk, name)(inputs[0], inputs[1], eps=inputs[2])
    weights = torch.randn(result.shape, dtype=torch.float64)
    first = torch.autograd.grad(loss_of(result, weights), inputs, create_graph=True)
    second = torch.autograd.grad((first[0] ** 2).sum(), inputs)

    parts = run(3, derivatives, name, x, sizes, k, eps, weights, short)
    for order, expected in enumerate((first, second)):
        of_scores, of_k, of_eps = zip(*(part[order] for part in parts), strict=True)
        for actual, wanted in (
            (torch.cat(of_scores, -1), expected[0]),
            (sum(of_k), expected[1]),
            (sum(of_eps), expected[2]),
        ):
            torch.testing.assert_close(actual, wanted.detach(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("k", [4097, 5000.5, 9999])
def test_large_k(k):
    """The k-th element is found by a sample and counts: ties, steps, and shards that are unlike."""
    x = torch.randn(3, 10_000, dtype=torch.float64)
    x[1] = (x[1] * 2).round()
    x[2] = x[2].sort().values
    for eps in (1e-3, 1.0):
        expected = softtopk.soft_topk(x, k, eps=eps)
        parts = run(3, forward, "soft_topk", x, (6_000, 0, 4_000), k, {"eps": eps})
        same(torch.cat(parts, -1), expected, torch.float64)
    parts = run(3, forward, "soft_topk", x, (6_000, 0, 4_000), k, {"hard": True})
    same(torch.cat(parts, -1), softtopk.soft_topk(x, k, hard=True), torch.float64)


@pytest.mark.parametrize(
    ("name", "k", "options", "most"),
    [
        ("soft_topk", 10, {}, 5),
        ("soft_topk", 10, {"normalize": "row"}, 5),
        ("soft_topk", 10, {"hard": True}, 6),
        ("soft_topk", 8_000, {"eps": 10.0}, 7),
        ("soft_topk", 8_000, {"hard": True, "normalize": "row"}, 8),
        ("log_soft_topk", 10, {}, 5),
        ("topk_threshold", 10, {}, 5),
        ("sorted_soft_topk", 10, {"eps": 1e-3}, 4),
    ],
)
def test_number_of_messages(name, k, options, most):
    """At most eight forward and one backward, and never the scores."""
    n = 200_000
    x = torch.randn(1, n)
    for forward, backward in run(2, counted, name, x, (120_000, 80_000), k, options):
        assert len(forward) == most
        assert len(backward) == 1
        assert sum(size for _, size in forward) < 0.1 * x.nbytes
        assert sum(size for _, size in backward) < 1000


@pytest.mark.parametrize(("n", "k"), [(1_000, 10), (50_000, 1_000), (50_000, 25_000)])
@pytest.mark.parametrize("eps", [1e-3, 0.03, 1.0, 100.0])
def test_two_steps_are_enough(n, k, eps):
    """One step from the start is within 1e-5 of the root, so two are exact."""
    x = torch.distributions.StudentT(3.0).sample((4, n)).double()
    exact = softtopk.topk_threshold(x, k, eps=eps)
    with patch.object(_sharded, "STEPS", 1):
        once = softtopk.distributed.topk_threshold(x, k, eps=eps)
    assert ((once - exact) / eps).abs().max() < 1e-5


# The sorted operator.


@pytest.mark.parametrize("sizes", SHARDS, ids=str)
@pytest.mark.parametrize("eps", [1e-3, 0.1, 10.0])
def test_sorted(sizes, eps):
    x = torch.randn(3, 40, dtype=torch.float64)
    x[1] = x[1].round()
    x[2, 3:] = -INF  # fewer than k
    expected = softtopk.sorted_soft_topk(x, 6, eps=eps)
    parts = run(len(sizes), forward, "sorted_soft_topk", x, sizes, 6, {"eps": eps})
    same(torch.cat(parts, -2), expected, torch.float64)


def test_sorted_options():
    x = torch.randn(4, 15, 2)
    x[0, 2] = NAN
    mask = torch.rand(4, 15, 2) > 0.3
    mask[0, 2] = True
    for options in (
        {"mask": mask, "eps": torch.rand(4, 2) + 0.1},
        {"largest": False, "hard": True},
        {"normalize": "batch"},
    ):
        expected = softtopk.sorted_soft_topk(x, 4, dim=1, **options)
        parts = run(3, forward, "sorted_soft_topk", x, (6, 0, 9), 4, {"dim": 1, **options})
        same(torch.cat(parts, 1), expected, torch.float32)


def test_sorted_derivatives():
    x = torch.randn(2, 12, dtype=torch.float64)
    inputs = [
        x.clone().requires_grad_(),
        torch.full((2,), 0.5, dtype=torch.float64).requires_grad_(),
    ]
    result = softtopk.sorted_soft_topk(inputs[0], 3, eps=inputs[1])
    weights = torch.randn(result.shape, dtype=torch.float64)
    first = torch.autograd.grad(loss_of(result, weights), inputs, create_graph=True)
    second = torch.autograd.grad((first[0] ** 2).sum(), inputs)
    parts = run(3, derivatives, "sorted_soft_topk", x, (0, 7, 5), 3, inputs[1].detach(), weights)
    for order, expected in enumerate((first, second)):
        of_scores, of_eps = zip(*(part[order] for part in parts), strict=True)
        torch.testing.assert_close(
            torch.cat(of_scores, -1), expected[0].detach(), rtol=1e-7, atol=1e-9
        )
        torch.testing.assert_close(sum(of_eps), expected[1].detach(), rtol=1e-7, atol=1e-9)


# Ranks that do not fit together, or end.


def disagreeing(group, what):
    rank = dist.get_rank(group)
    last = rank == dist.get_world_size(group) - 1
    x, k, options = torch.randn(2, 5), 2, {}
    if last and what == "k":
        k = 3
    elif last and what == "k of a row":
        k = torch.tensor([2, 3])
    elif last and what == "dtype":
        x = x.double()
    elif last and what == "shape":
        x = x[:1]
    elif last and what == "gradient":
        x.requires_grad_()
    elif last and what == "mask":
        options["mask"] = torch.ones(3, 3)
    try:
        softtopk.distributed.soft_topk(x, k, group=group, **options)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("what", ["k", "k of a row", "dtype", "shape", "gradient"])
def test_other_arguments_on_one_rank(what):
    """An error on every rank, at once, with what each has called; the group goes on."""
    for kind, message in run(3, disagreeing, what):
        assert kind is ValueError
        assert "all ranks must make the same call" in message
        assert message.count("rank ") == 3
    same(
        torch.cat(run(2, forward, "soft_topk", torch.arange(4.0), (1, 3), 1, {})),
        softtopk.soft_topk(torch.arange(4.0), 1),
        torch.float32,
    )


def one_gradient(group):
    """The scores of one rank and the eps of another: not all would take part in the backward."""
    rank = dist.get_rank(group)
    x = torch.randn(5, requires_grad=rank == 0)
    eps = torch.tensor(0.1, requires_grad=rank == 1)
    with pytest.raises(ValueError, match="all ranks must make the same call"):
        softtopk.distributed.sorted_soft_topk(x, 2, eps=eps, group=group)


def test_gradients_of_other_arguments():
    run(2, one_gradient)


def test_bad_argument_on_one_rank():
    replies = run(3, disagreeing, "mask")
    assert replies[2] == (TypeError, replies[2][1])
    assert "mask must be boolean" in replies[2][1]
    for kind, message in replies[:2]:
        assert kind is RuntimeError
        assert "rank 2 has refused its arguments: mask must be boolean" in message


def dying(group, how):
    x = torch.randn(5, requires_grad=True)
    if dist.get_rank(group) == 1:
        if how == "before":
            os._exit(1)
        if how == "absent":
            return "did not call"
    result = softtopk.distributed.soft_topk(x, 2, group=group)
    if dist.get_rank(group) == 1:
        os._exit(1)
    result.sum().backward()
    return "no error"


@pytest.mark.parametrize("how", ["before", "between", "absent"])
def test_a_rank_that_dies(how):
    replies = run_alone(3, dying, how, timeout=timedelta(seconds=3))
    assert replies[1] in (None, "did not call")
    for rank in (0, 2):
        assert "Look for the first error of all ranks" in replies[rank]


def test_shares_that_round_to_one():
    """All but 1e-9 of two equal elements are selected: the digits of the rest are what counts."""
    x = torch.full((2,), 1.5)
    with patch.object(_sharded, "SHORT", 0):
        found = softtopk.distributed.topk_threshold(x, 1.999999999, eps=10.0)
    torch.testing.assert_close(
        found, softtopk.topk_threshold(x.double(), 1.999999999, eps=10.0).float()
    )


@pytest.mark.parametrize("k", [0.0, 5.0])
def test_second_derivatives_at_the_ends_of_k(k):
    grads = []
    for operator in (softtopk.soft_topk, softtopk.distributed.soft_topk):
        x, places = torch.arange(5.0, requires_grad=True), torch.tensor(k, requires_grad=True)
        with patch.object(_sharded, "SHORT", 0):
            a = operator(x, places, eps=1.0)
        (first,) = torch.autograd.grad((a * x).sum(), places, create_graph=True)
        grads.append(
            torch.autograd.grad(first, (x, places), allow_unused=True, materialize_grads=True)
        )
    for ordinary, found in zip(*grads, strict=True):
        torch.testing.assert_close(found, ordinary)


def test_no_rows():
    for name in (*UNSORTED, "sorted_soft_topk"):
        x = torch.empty(0, 5, dtype=torch.float16)
        found = getattr(softtopk.distributed, name)(x, 2)
        expected = getattr(softtopk, name)(x, 2)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


def test_what_it_is_not_for():
    with pytest.raises(NotImplementedError, match=r"torch\.func"):
        torch.vmap(lambda x: softtopk.distributed.soft_topk(x, 1))(torch.randn(2, 3))


def test_not_initialized(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="init_process_group"):
        softtopk.distributed.soft_topk(torch.randn(5), 2)


def test_bad_arguments():
    """As the ordinary operator: one process is a group too."""
    for arguments, error in (
        ((torch.randn(5), 6), ValueError),
        ((torch.randn(5), -1), ValueError),
        ((torch.randn(5), "2"), TypeError),
        (([1.0], 1), TypeError),
        ((torch.randn(0), 0), ValueError),
    ):
        with pytest.raises(error) as wanted:
            softtopk.soft_topk(*arguments)
        with pytest.raises(error, match=r"scores|k must") as caught:
            softtopk.distributed.soft_topk(*arguments)
        assert "any rank" in str(caught.value) or str(caught.value) == str(wanted.value)
    with pytest.raises(TypeError, match="k must be an int"):
        softtopk.distributed.sorted_soft_topk(torch.randn(5), 1.5)
