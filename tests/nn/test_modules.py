"""The modules are the functions with their options kept."""

import copy

import pytest
import torch
from torch import nn

import softtopk
from softtopk import Sinkhorn, SoftTopK, SortedSoftTopK, eps_for, soft_topk, sorted_soft_topk

PAIRS = [(SoftTopK, soft_topk), (SortedSoftTopK, sorted_soft_topk)]
OPTIONS = {"eps": 0.7, "dim": 0, "largest": False, "normalize": "row", "hard": True}


@pytest.mark.parametrize(("module", "function"), PAIRS)
def test_same_as_the_function(module, function):
    scores, mask = torch.randn(6, 3), torch.rand(6, 3) > 0.2
    for options in (OPTIONS, {"solver": Sinkhorn(max_iter=5000), "eps": 2.0}):
        layer = module(2, **options)
        assert torch.equal(layer(scores), function(scores, 2, **options))
        assert torch.equal(layer(scores, mask), function(scores, 2, mask=mask, **options))


@pytest.mark.parametrize("module", [SoftTopK, SortedSoftTopK])
@pytest.mark.parametrize(
    "options", [OPTIONS, {"eps": torch.tensor(0.7)}, {"solver": Sinkhorn(max_iter=500), "eps": 2.0}]
)
def test_the_defaults_of_torch_do_not_matter(module, options, other_defaults):
    layer = module(2, **options)
    scores, mask = torch.randn(6, 3, requires_grad=True), torch.rand(6, 3) > 0.2

    def select():
        selected = layer(scores, mask)
        return selected, *torch.autograd.grad(selected.square().sum(), [scores])

    expected = select()
    with other_defaults():
        got = select()
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("module", "function"), PAIRS)
def test_copies(module, function):
    layer = module(2, eps=0.5, learn_eps=True)
    other = copy.deepcopy(layer)
    other.eps = 3.0
    assert layer.eps.item() == pytest.approx(0.5)
    assert other.eps.item() == pytest.approx(3.0)
    other.load_state_dict(layer.state_dict())
    scores = torch.randn(4, 5)
    assert torch.equal(other(scores), layer(scores))
    torch.testing.assert_close(layer(scores), function(scores, 2, eps=0.5))


def test_state():
    assert SoftTopK(2, eps=0.5).state_dict() == {}
    layer = SoftTopK(nn.Parameter(torch.tensor(2.0)), eps=torch.tensor(0.5))
    assert set(layer.state_dict()) == {"k"}
    assert [name for name, _ in layer.named_parameters()] == ["k"]
    assert layer.double().eps.dtype == torch.float64


def test_a_temperature_can_be_learned():
    layer = SoftTopK(2, eps=5.0, learn_eps=True)
    scores = torch.randn(20, 8)
    target = soft_topk(scores, 2, eps=0.5)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        (layer(scores) - target).square().mean().backward()
        optimizer.step()
    assert layer.eps.item() == pytest.approx(0.5, abs=0.02)


def test_repr():
    text = repr(SoftTopK(3, eps=torch.tensor(0.25), solver=Sinkhorn()))
    assert text == (
        "SoftTopK(k=3, eps=0.25, learn_eps=False, hard_eval=False, dim=-1, largest=True, "
        "normalize=None, hard=False, solver=Sinkhorn(max_iter=200, tol=1e-06))"
    )
    assert "k=tensor of shape (4,), width=2.0" in repr(SoftTopK(torch.ones(4)))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: SoftTopK(-1), ValueError, "k must be finite and not negative"),
        (lambda: SoftTopK("2"), TypeError, "k must be an int"),
        (lambda: SortedSoftTopK(2.5), TypeError, "k must be an int for the sorted operator"),
        (lambda: SoftTopK(2, eps=-1.0), ValueError, "eps must be positive"),
        (lambda: SoftTopK(2, eps=torch.tensor([1.0, 0.0])), ValueError, "eps must be positive"),
        (lambda: SoftTopK(2, normalize="all"), ValueError, "normalize must be one of"),
        (lambda: SoftTopK(2, solver="newton"), ValueError, "solver must be"),
        (lambda: SoftTopK(2, hard=1), TypeError, "hard must be True or False"),
        (lambda: SoftTopK(2, hard_eval=1), TypeError, "hard_eval must be True or False"),
        (lambda: SoftTopK(2, learn_eps=1), TypeError, "learn_eps must be True or False"),
        (lambda: SoftTopK(2, width=0), ValueError, "width must be positive"),
        (lambda: SoftTopK(2, eps=1.0, width=3), ValueError, r"got eps=1\.0 and width=3"),
        (lambda: SoftTopK(2, normalize="row"), ValueError, "'row' needs an eps of its own"),
        (
            lambda: SoftTopK(2, eps=nn.Parameter(torch.tensor(1.0))),
            TypeError,
            "eps must not be a parameter, which can become negative; use learn_eps",
        ),
    ],
)
def test_wrong_options_fail_at_construction(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_public_names():
    assert set(softtopk.__all__) == {
        "BalancedTopK",
        "ConvergenceWarning",
        "EntropicPlan",
        "Sharpness",
        "Sinkhorn",
        "SoftTopK",
        "SortedSoftTopK",
        "TopKIndices",
        "WidthSchedule",
        "balanced_soft_topk",
        "entropic_plan",
        "eps_for",
        "log_soft_topk",
        "select_topk",
        "sharpness",
        "soft_topk",
        "soft_topk_softmax",
        "sorted_soft_topk",
        "topk_threshold",
    }
    assert softtopk.nn.SoftTopK is SoftTopK


def test_ragged_rows():
    offsets, scores = torch.tensor([0, 30, 30, 90]), torch.randn(90)
    select = SoftTopK(5)  # calibrated by the width 10
    found = select(scores, offsets=offsets)
    assert select.eps.item() == eps_for(scores, 5, width=10, per_row=False, offsets=offsets)
    assert torch.equal(found, soft_topk(scores, 5, eps=select.eps, offsets=offsets))
    nested = torch.nested.nested_tensor_from_jagged(scores, offsets)
    assert torch.equal(select(nested).values(), found)
    assert torch.equal(SoftTopK(5)(nested).values(), found)
