"""The router of a mixture of experts."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from softtopk import balanced_soft_topk, soft_topk, soft_topk_softmax
from softtopk.nn import TopKRouter

CHOICES = ("token", "expert", "both")


@pytest.mark.parametrize("choice", CHOICES)
def test_selections_are_those_of_the_operators(choice):
    tokens = torch.randn(2, 9, 5)
    router = TopKRouter(4, 2, dim=5, choice=choice, eps=0.5)
    found, scores = router(tokens), router.gate(tokens)
    if choice == "both":
        expected = balanced_soft_topk(scores, 2, 5, eps=0.5).selection
        hard = balanced_soft_topk(scores, 2, 5, hard=True).selection
    else:
        k, dim = (2, -1) if choice == "token" else (5, -2)
        expected = soft_topk(scores, k, dim=dim, eps=0.5)
        hard = soft_topk(scores, k, dim=dim, hard=True)
    torch.testing.assert_close(found.load, expected.sum(-2))
    assert torch.equal(found.dispatch, hard == 1)
    if choice == "token":
        torch.testing.assert_close(found.gates, soft_topk_softmax(scores, 2, eps=0.5))
    total = found.gates.sum(-1)
    torch.testing.assert_close(
        total, (expected * scores.softmax(-1)).sum(-1) if choice == "expert" else torch.ones(2, 9)
    )
    listed = found.gates.mT if choice == "expert" else found.gates
    expected = listed.gather(-1, found.indices)
    if choice != "expert":
        expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(found.weights, expected)
    gradient = torch.autograd.grad(found.gates.square().sum(), router.gate.weight)[0]
    assert gradient.isfinite().all()
    assert (gradient != 0).any()


@pytest.mark.parametrize("choice", CHOICES)
def test_a_sparse_mixture_is_the_same_in_both_modes(choice):
    tokens = torch.randn(2, 9, 5)
    router = TopKRouter(4, 2, dim=5, choice=choice, eps=0.5)
    soft, exact = router(tokens), router.eval()(tokens)
    torch.testing.assert_close(soft.weights, exact.weights)
    assert torch.equal(soft.indices, exact.indices)
    assert torch.equal(exact.gates > 0, exact.dispatch)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_cold_selection_in_training_is_that_of_evaluation(choice):
    tokens = torch.randn(2, 8, 5)
    router = TopKRouter(4, 2, dim=5, choice=choice, eps=1e-8)
    soft, exact = router(tokens), router.eval()(tokens)
    for one, other in zip(soft, exact, strict=True):
        torch.testing.assert_close(one, other)
    load = exact.dispatch.sum(-2)
    if choice != "token":
        assert (load == 4).all()
    if choice != "expert":
        assert (exact.dispatch.sum(-1) == 2).all()
    assert (exact.gates[~exact.dispatch] == 0).all()


@pytest.mark.parametrize("choice", CHOICES)
def test_masked_is_deleted(choice):
    tokens, mask = (
        torch.randn(8, 5),
        torch.tensor([True, False, True, True, False, True, True, True]),
    )
    router = TopKRouter(3, 1, dim=5, choice=choice, eps=0.5)
    for _ in range(2):
        full, part = (
            router(tokens.masked_fill(~mask[:, None], math.nan), mask),
            router(tokens[mask]),
        )
        for name in ("gates", "dispatch"):
            torch.testing.assert_close(getattr(full, name)[mask], getattr(part, name))
            assert (getattr(full, name)[~mask] == 0).all()
        torch.testing.assert_close(full.load, part.load)
        router.eval()
    router.train()
    nothing = router(tokens, torch.zeros(8, dtype=torch.bool))
    assert (nothing.gates == 0).all()
    assert nothing.weights.isfinite().all()
    assert router(tokens[:0]).load.tolist() == [0, 0, 0]
    assert router(torch.zeros(0, 4, 5)).gates.shape == (0, 4, 3)


def test_capacity_factor():
    tokens = torch.randn(40, 5)
    gate = nn.Linear(5, 4)
    gate.bias.data[0] += 10  # all want the first
    found = TopKRouter(4, 2, gate=gate, choice="both", capacity_factor=1.2, eps=0.3)(tokens)
    assert found.load.max().item() == pytest.approx(24, abs=1e-4)
    assert found.dispatch.sum(0).max() == 24


@pytest.mark.parametrize("choice", CHOICES)
def test_copies_and_devices(choice):
    tokens = torch.randn(2, 8, 5)
    router = TopKRouter(4, 2, dim=5, choice=choice)
    expected = router(tokens)
    for other in (copy.deepcopy(router), pickle.loads(pickle.dumps(router))):
        torch.testing.assert_close(other(tokens), expected, rtol=0, atol=0)
    fresh = TopKRouter(4, 2, dim=5, choice=choice)
    fresh.load_state_dict(router.state_dict())
    torch.testing.assert_close(fresh(tokens), expected, rtol=0, atol=0)
    assert router.to("meta")(tokens.to("meta")).gates.shape == (2, 8, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = fresh(tokens)
    torch.testing.assert_close(narrow.load.float(), expected.load, rtol=0.05, atol=0.1)
    assert f"choice={choice!r}" in repr(router)


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
def test_compiled(choice):
    tokens = torch.randn(2, 8, 5)
    router = TopKRouter(4, 2, dim=5, choice=choice, eps=0.5)
    compiled = torch.compile(router, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), router(tokens))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: TopKRouter(2, 3, dim=4), ValueError, "k must be at most n_experts=2, got k=3"),
        (lambda: TopKRouter(4), ValueError, "give dim, for a linear gate"),
        (lambda: TopKRouter(4, dim=4, choice="all"), ValueError, "choice must be one of"),
        (lambda: TopKRouter(4, dim=4, capacity_factor=0.5), ValueError, "at least 1, got 0.5"),
        (lambda: TopKRouter(4, dim=4, capacity_factor=2), ValueError, "no effect with choice"),
        (lambda: TopKRouter(4, dim=4)(torch.ones(4)), TypeError, r"tokens must .* got \(4,\)"),
        (
            lambda: TopKRouter(4, gate=nn.Linear(3, 2))(torch.ones(5, 3)),
            ValueError,
            r"gate must return scores of shape \(5, 4\), got \(5, 2\)",
        ),
        (
            lambda: TopKRouter(4, dim=3)(torch.ones(5, 3), torch.ones(5)),
            TypeError,
            "mask must be boolean",
        ),
        (
            lambda: TopKRouter(4, 2, dim=8)(torch.randn(5, 7)),
            ValueError,
            "tokens must have dim=8 features, got shape",
        ),
    ],
)
def test_wrong_arguments(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize("choice", ["token", "expert", "both"])
def test_a_nan_is_seen(choice):
    tokens = torch.randn(16, 4)
    tokens[3, 1] = math.nan
    router = TopKRouter(4, 2, gate=nn.Identity(), choice=choice)
    for routing in (router(tokens), router.eval()(tokens)):
        assert routing.weights.isnan().any()
        assert routing.gates.isnan().any()


@pytest.mark.parametrize(("dtype", "lead"), [(torch.float16, 20), (torch.float32, 120)])
def test_pairs_that_only_the_balance_has_chosen_keep_their_weight(dtype, lead):
    tokens = torch.randn(64, 8).to(dtype)
    tokens[:, :2] += lead  # all like the same two experts
    router = TopKRouter(8, 1, gate=nn.Identity(), choice="both")
    assert (router(tokens).weights == 1).all()
    assert (router.eval()(tokens).weights == 1).all()
