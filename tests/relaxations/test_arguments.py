"""Wrong arguments: the error names the argument, the value it had and what would be right."""

import math

import numpy as np
import pytest
import torch

from softtopk import relaxations
from softtopk.relaxations import neural_sort, relaxed_subset, sinkhorn_sort

X = torch.randn(3, 5)


@pytest.mark.parametrize("name", relaxations.names())
@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"scores": [1.0, 2.0]}, TypeError, r"scores must be a torch.Tensor, got list"),
        ({"scores": X.int()}, TypeError, r"scores .* got torch.int32; use scores.float\(\)"),
        ({"scores": torch.tensor(1.0)}, ValueError, r"scores must have at least one dimension"),
        ({"scores": torch.randn(3, 0)}, ValueError, r"scores has no element"),
        ({"k": 6}, ValueError, r"k must be between 0 and n=5.* got k=6"),
        ({"k": -1}, ValueError, r"k must be between 0 and n=5.* got k=-1"),
        ({"k": True}, TypeError, r"k must be an int.* got True"),
        ({"eps": 0.0}, ValueError, r"eps must be positive and finite, got eps=0.0"),
        ({"eps": math.nan}, ValueError, r"eps must be positive and finite, got eps=nan"),
        ({"eps": "0.1"}, TypeError, r"eps must be a float .*got '0.1'"),
        ({"mask": X}, TypeError, r"mask must be boolean .* got torch.float32; convert"),
        ({"mask": torch.ones(4).bool()}, ValueError, r"mask of shape \(4,\) .* scores \(3, 5\)"),
    ],
)
def test_shared_arguments(name, change, kind, message):
    arguments = {"scores": X, "k": 2, **change}
    with pytest.raises(kind, match=message):
        relaxations.get(name)(arguments.pop("scores"), arguments.pop("k"), **arguments)


@pytest.mark.parametrize("name", [name for name in relaxations.names() if name != "soft-topk"])
def test_what_only_soft_topk_takes(name):
    relaxation = relaxations.get(name)
    with pytest.raises(TypeError, match=r"k must be an int for this relaxation, got 1\.5; only"):
        relaxation(X, 1.5)
    with pytest.raises(TypeError, match=r"eps must be a float for this .* shape \(3,\); only"):
        relaxation(X, 2, eps=torch.ones(3))


@pytest.mark.parametrize(
    ("relaxation", "options", "kind", "message"),
    [
        (neural_sort, {"stochastic": 1}, TypeError, r"stochastic must be True or False, got 1"),
        (neural_sort, {"samples": 2.0}, TypeError, r"samples must be an int, got 2.0"),
        (neural_sort, {"samples": 0}, ValueError, r"samples must be at least 1, got samples=0"),
        (neural_sort, {"samples": 5}, ValueError, r"samples=5 has no effect .* stochastic=True"),
        (
            neural_sort,
            {"generator": torch.Generator()},
            ValueError,
            r"generator has no effect without noise; set stochastic=True",
        ),
        (relaxed_subset, {"noise": "yes"}, TypeError, r"noise must be True or False, got 'yes'"),
        (relaxed_subset, {"generator": 7}, TypeError, r"generator must be .* got 7; use"),
        (
            relaxed_subset,
            {"noise": False, "generator": torch.Generator()},
            ValueError,
            r"generator has no effect without noise; set noise=True",
        ),
        (sinkhorn_sort, {"solver": "newton"}, ValueError, r"solver must be .* got 'newton'"),
    ],
)
def test_own_options(relaxation, options, kind, message):
    with pytest.raises(kind, match=message):
        relaxation(X, 2, **options)


def test_numbers_of_numpy_are_numbers():
    result = neural_sort(X, np.int64(2), eps=np.float32(0.5))
    assert torch.equal(result, neural_sort(X, 2, eps=0.5))
