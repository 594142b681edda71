"""Relaxations by name."""

import inspect

import pytest
import torch
from torch.testing import assert_close

from softtopk import relaxations
from softtopk.relaxations import _registry


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """What a test registers is gone afterwards."""
    monkeypatch.setattr(_registry, "_relaxations", dict(_registry._relaxations))


def uniform(scores, k, *, eps=1.0, mask=None):
    return torch.full_like(scores, k / scores.shape[-1])


def test_the_names():
    assert relaxations.names()[:7] == (
        "soft-topk",
        "neural-sort",
        "stochastic-neural-sort",
        "sinkhorn-sort",
        "relaxed-subset",
        "successive-softmax",
        "hard",
    )


@pytest.mark.parametrize("name", relaxations.names())
def test_every_relaxation_has_the_signature(name):
    parameters = inspect.signature(relaxations.get(name)).parameters
    assert list(parameters)[:2] == ["scores", "k"]
    assert parameters["mask"].default is None
    assert parameters["eps"].default > 0
    keyword_only = [p.kind is inspect.Parameter.KEYWORD_ONLY for p in parameters.values()]
    assert all(keyword_only[2:])


def test_the_names_lead_to_the_functions():
    scores = torch.randn(2, 6)
    assert relaxations.get("soft-topk") is relaxations.soft_topk
    assert relaxations.get("neural-sort") is relaxations.neural_sort
    assert relaxations.get("sinkhorn-sort") is relaxations.sinkhorn_sort
    assert relaxations.get("relaxed-subset") is relaxations.relaxed_subset
    assert relaxations.get("successive-softmax") is relaxations.successive_softmax
    assert relaxations.get("hard") is relaxations.hard_topk
    torch.manual_seed(1)
    noisy = relaxations.get("stochastic-neural-sort")(scores, 2)
    torch.manual_seed(1)
    assert_close(noisy, relaxations.neural_sort(scores, 2, stochastic=True))


def test_a_function_stands_for_itself():
    assert relaxations.get(uniform) is uniform


def test_register_by_call_and_as_decorator():
    assert relaxations.register("uniform-one", uniform) is uniform
    assert relaxations.register("uniform-two")(uniform) is uniform
    assert relaxations.get("uniform-one") is relaxations.get("uniform-two") is uniform
    assert relaxations.names()[-2:] == ("uniform-one", "uniform-two")


def test_a_name_is_replaced_only_on_request():
    with pytest.raises(ValueError, match=r"name='hard' is taken by .*hard_topk.*replace=True"):
        relaxations.register("hard", uniform)
    with pytest.raises(ValueError, match="is taken"):
        relaxations.register("hard")(uniform)
    relaxations.register("hard", uniform, replace=True)
    assert relaxations.get("hard") is uniform
    relaxations.register("sinkhorn-sort", replace=True)(uniform)
    assert relaxations.get("sinkhorn-sort") is uniform


def test_an_unknown_name():
    message = r"no relaxation 'neural', only soft-topk, neural-sort, .*hard.*; softtopk.*register"
    with pytest.raises(ValueError, match=message):
        relaxations.get("neural")


def test_neither_name_nor_function():
    with pytest.raises(TypeError, match="relaxation must be a name or callable, got 3"):
        relaxations.get(3)
    with pytest.raises(TypeError, match="relaxation must be callable, got 3"):
        relaxations.register("three", 3)


@pytest.mark.parametrize("name", ["Hard", "soft_topk", "", "a--b", "-a", 3])
def test_a_name_is_in_kebab_case(name):
    with pytest.raises(ValueError, match="name must be lower-case words joined by hyphens"):
        relaxations.register(name, uniform)
