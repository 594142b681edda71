"""Wrong arguments: the error names the argument, the value it had and what would be right."""

import math

import numpy as np
import pytest
import torch

from softtopk import (
    Sinkhorn,
    entropic_plan,
    log_soft_topk,
    soft_topk,
    soft_topk_softmax,
    sorted_soft_topk,
    topk_threshold,
)

X = torch.randn(3, 5)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"scores": [1.0, 2.0]}, TypeError, r"scores must be a torch.Tensor, got list"),
        ({"scores": X.int()}, TypeError, r"scores .* got torch.int32; use scores.float\(\)"),
        (
            {"scores": X.to(torch.complex64)},
            TypeError,
            r"complex64; take a real part",
        ),
        ({"scores": torch.tensor(1.0)}, ValueError, r"scores must have at least one dimension"),
        ({"scores": torch.randn(3, 0)}, ValueError, r"scores has no element along dim=1"),
        ({"scores": X.to_sparse()}, TypeError, r"scores must be dense, got .*to_dense"),
        ({"k": 6}, ValueError, r"k must be between 0 and n=5.* got k=6"),
        ({"k": -1}, ValueError, r"k must be between 0 and n=5.* got k=-1"),
        ({"k": True}, TypeError, r"k must be an int.* got True"),
        ({"k": "2"}, TypeError, r"k must be an int.* got '2'"),
        ({"eps": 0.0}, ValueError, r"eps must be positive and finite, got eps=0.0"),
        ({"eps": -1}, ValueError, r"eps must be positive and finite, got eps=-1"),
        ({"eps": math.inf}, ValueError, r"eps must be positive and finite, got eps=inf"),
        ({"eps": math.nan}, ValueError, r"eps must be positive and finite, got eps=nan"),
        ({"eps": "0.1"}, TypeError, r"eps must be a float or a tensor, got '0.1'"),
        ({"eps": None}, TypeError, r"eps must be a float or a tensor, got None"),
        ({"eps": torch.tensor([0.1, 0.0, 1])}, ValueError, r"eps must be positive .* from 0.0 to"),
        ({"eps": torch.tensor([0.1, math.inf, 1])}, ValueError, r"eps must be .* finite .* to inf"),
        ({"eps": torch.tensor([1, 2, 3])}, TypeError, r"eps must be of a floating dtype"),
        ({"eps": torch.ones(4)}, ValueError, r"eps of shape \(4,\) .* batch shape \(3,\)"),
        ({"eps": torch.ones(2, 3)}, ValueError, r"eps of shape \(2, 3\) .* batch shape \(3,\)"),
        ({"dim": 2}, ValueError, r"dim=2 is out of range .*; use -2 to 1"),
        ({"dim": 1.0}, TypeError, r"dim must be an int or a tuple .*, got 1.0"),
        ({"dim": ()}, TypeError, r"dim must be .* a tuple of at least one int, got \(\)"),
        ({"dim": (0, -2)}, ValueError, r"dim=\(0, -2\) names a dimension .* more than once"),
        ({"largest": 1}, TypeError, r"largest must be True or False, got 1"),
        ({"mask": X}, TypeError, r"mask must be boolean .* got torch.float32; convert"),
        ({"mask": [True]}, TypeError, r"mask must be a boolean torch.Tensor, got list"),
        ({"mask": torch.ones(4).bool()}, ValueError, r"mask of shape \(4,\) .* scores \(3, 5\)"),
        ({"mask": torch.ones(2, 3, 5).bool()}, ValueError, r"mask of shape \(2, 3, 5\)"),
        ({"normalize": "rows"}, ValueError, r"normalize must be one of None, 'row', 'batch', got"),
        ({"normalize": True}, ValueError, r"normalize must be one of .* got True"),
        ({"solver": "newton"}, ValueError, r"solver must be 'exact', 'sinkhorn' .* got 'newton'"),
    ],
)
def test_every_check(change, kind, message):
    """The operators share their checks: here all of them, below each argument of the others."""
    with pytest.raises(kind, match=message):
        soft_topk(**{"scores": X, "k": 2, **change})


@pytest.mark.parametrize(
    "operator", [log_soft_topk, topk_threshold, soft_topk_softmax, sorted_soft_topk]
)
def test_every_argument(operator):
    for name, wrong, kind in (
        ("scores", X.int(), TypeError),
        ("scores", torch.randn(3, 0), ValueError),
        ("k", 6, ValueError),
        ("k", -1, ValueError),
        ("k", True, TypeError),
        ("eps", 0.0, ValueError),
        ("eps", "0.1", TypeError),
        ("eps", torch.tensor([0.1, 0.0, 1]), ValueError),
        ("eps", torch.ones(4), ValueError),
        ("dim", 2, ValueError),
        ("mask", X, TypeError),
        ("mask", torch.ones(4).bool(), ValueError),
        ("normalize", "rows", ValueError),
        ("solver", "newton", ValueError),
    ):
        with pytest.raises(kind, match=rf"^{name}\b"):
            operator(**{"scores": X, "k": 2, name: wrong})


@pytest.mark.parametrize("operator", [log_soft_topk, topk_threshold, sorted_soft_topk])
def test_largest(operator):
    with pytest.raises(TypeError, match="largest must be True or False, got 1"):
        operator(X, 2, largest=1)


@pytest.mark.parametrize(
    ("k", "kind", "message"),
    [
        (5.5, ValueError, r"k must be between 0 and n=5.* got k=5.5"),
        (math.nan, ValueError, r"k must be between .* got k=nan"),
        (torch.tensor([1, 2, 6]), ValueError, r"between 0 and n=5 in every row, .* from 1 to 6"),
        (torch.tensor([1.0, math.nan, 2]), ValueError, r"between 0 and n=5 in every row"),
        (torch.tensor([1, 2]), ValueError, r"k of shape \(2,\) does not broadcast"),
        (torch.tensor([True, False, True]), TypeError, r"k must be an integer or floating tensor"),
    ],
)
def test_k_of_the_unsorted_operators(k, kind, message):
    for operator in (soft_topk, log_soft_topk, topk_threshold, soft_topk_softmax):
        with pytest.raises(kind, match=message):
            operator(X, k)


@pytest.mark.parametrize(
    ("k", "kind", "message"),
    [
        (2.0, TypeError, "k must be an int for the sorted operator"),
        (torch.tensor(2.0), TypeError, "k must be of an integer dtype for the sorted operator"),
        (torch.tensor([1, 6, 2]), ValueError, r"from 1 to 6; use k.clamp\(0, 5\)"),
        (torch.tensor([1, 2]), ValueError, r"k of shape \(2,\) does not broadcast"),
        (torch.ones(3, dtype=torch.long, device="meta"), ValueError, "k .* has no values"),
    ],
)
def test_k_of_the_sorted_operator(k, kind, message):
    with pytest.raises(kind, match=message):
        sorted_soft_topk(X, k)


@pytest.mark.parametrize("operator", [soft_topk, sorted_soft_topk])
def test_hard(operator):
    with pytest.raises(TypeError, match="hard must be True or False, got 'yes'"):
        operator(X, 2, hard="yes")


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"max_iter": 0}, ValueError, "max_iter must be at least 1, got max_iter=0"),
        ({"max_iter": 10.0}, TypeError, "max_iter must be an int, got max_iter=10.0"),
        ({"tol": -1e-3}, ValueError, "tol must be finite and not negative, got tol=-0.001"),
        ({"tol": math.nan}, ValueError, "tol must be finite and not negative, got tol=nan"),
        ({"tol": "small"}, TypeError, "tol must be a number, got tol='small'"),
    ],
)
def test_sinkhorn_settings(arguments, kind, message):
    with pytest.raises(kind, match=message):
        Sinkhorn(**arguments)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"cost": torch.ones(3)}, TypeError, r"cost must be a floating tensor of shape"),
        ({"cost": torch.ones(3, 2).int()}, TypeError, r"cost .* got torch.int32"),
        ({"cost": torch.ones(3, 0)}, ValueError, r"cost must have n >= 1 and m >= 1"),
        ({"mu": torch.ones(2) / 2}, ValueError, r"mu must have a last axis of size 3"),
        ({"mu": torch.tensor([0.5, 0.6, -0.1])}, ValueError, r"mu must be finite and not negative"),
        ({"nu": torch.tensor([0.5, math.nan])}, ValueError, r"nu must be finite and not negative"),
        ({"nu": torch.tensor([0.5, 0.6])}, ValueError, r"mu and nu must have the same sum"),
        ({"nu": [0.5, 0.5]}, TypeError, r"nu must be a floating tensor"),
        ({"mu": torch.ones(4, 3) / 3}, ValueError, r"mu of shape \(4,\) does not broadcast"),
        ({"eps": 0.0}, ValueError, r"eps must be positive"),
        ({"gradient": "auto"}, ValueError, r"gradient must be one of 'implicit', 'unrolled'"),
        ({"max_iter": 0}, ValueError, r"max_iter must be at least 1"),
        ({"tol": -1.0}, ValueError, r"tol must be finite and not negative"),
    ],
)
def test_entropic_plan(change, kind, message):
    arguments = {
        "cost": torch.rand(3, 2),
        "mu": torch.ones(3) / 3,
        "nu": torch.ones(2) / 2,
        "eps": 0.1,
        **change,
    }
    with pytest.raises(kind, match=message):
        entropic_plan(**arguments)


def test_numbers_of_numpy_are_numbers():
    expected = soft_topk(X, 2, eps=0.5)
    assert torch.equal(soft_topk(X, np.int64(2), eps=np.float32(0.5)), expected)
    assert sorted_soft_topk(X, np.int32(2)).shape == (3, 5, 2)
    torch.testing.assert_close(soft_topk(X, np.float32(1.5)), soft_topk(X, 1.5))
