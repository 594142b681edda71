"""The selector of tokens."""

import copy
import pickle

import pytest
import torch
from torch import nn

from softtopk import WidthSchedule, soft_topk
from softtopk.nn import TokenSelector


def tokens_and_mask(batch=3, n=8, d=4):
    mask = torch.arange(n) < torch.tensor([n, 5, 2])[:batch, None]
    return torch.randn(batch, n, d), mask


def test_in_training_all_tokens_are_weighted():
    tokens, mask = tokens_and_mask()
    select = TokenSelector(3, dim=4, eps=0.7)
    found = select(tokens, mask)
    expected = soft_topk(select.scorer(tokens).squeeze(-1), 3, eps=0.7, mask=mask)
    assert torch.equal(found.weights, expected)
    assert torch.equal(found.tokens, expected.unsqueeze(-1) * tokens)
    assert torch.equal(found.indices, torch.arange(8).expand(3, 8))
    assert torch.equal(found.mask, mask)
    found.tokens.sum().backward()
    assert select.scorer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("options", [{"k": 3}, {"ratio": 0.4}])
@pytest.mark.parametrize("classes", [0, 1, 2])
def test_in_evaluation_the_best_are_gathered(options, classes):
    tokens, mask = tokens_and_mask()
    select = TokenSelector(dim=4, eps=0.7, n_class_tokens=classes, **options).eval()
    found = select(tokens, mask)
    scores = select.scorer(tokens).squeeze(-1)
    for row, at, weights, kept, gathered in zip(range(3), *found[1:], found.tokens, strict=True):
        own = mask[row].nonzero().flatten()
        rest = own[own >= classes]
        many = min(options["k"], len(rest)) if "k" in options else -(-4 * len(rest) // 10)
        best = rest[scores[row, rest].topk(many).indices]
        expected = torch.cat([own[own < classes], best]).sort().values
        assert torch.equal(at[kept], expected)
        assert torch.equal(gathered[kept], tokens[row, expected])
        assert (gathered[~kept] == 0).all()
        assert torch.equal(weights, kept.float())


@pytest.mark.parametrize("options", [{"k": 3}, {"ratio": 0.4}])
@pytest.mark.parametrize("own", [None, torch.tensor([1, 0, 2])])
def test_a_cold_selection_in_training_is_that_of_evaluation(options, own):
    tokens, mask = tokens_and_mask()
    select = TokenSelector(dim=4, eps=1e-30, n_class_tokens=1, **options)
    soft, exact = select(tokens, mask, own), select.eval()(tokens, mask, own)
    at = exact.indices
    restricted = soft.tokens.take_along_dim(at.unsqueeze(-1), 1).masked_fill(
        ~exact.mask[..., None], 0
    )
    assert torch.equal(restricted, exact.tokens)
    assert torch.equal(soft.weights.sum(1), exact.mask.sum(1).float())  # and no others
    if own is not None:
        assert torch.equal(exact.mask.sum(1), 1 + own.clamp(max=mask.sum(1) - 1))


def test_masked_tokens_may_hold_anything():
    tokens, mask = tokens_and_mask()
    broken = tokens.masked_fill(~mask.unsqueeze(-1), torch.nan).requires_grad_()
    select = TokenSelector(2, dim=4)
    found = select(broken, mask)
    found.tokens.square().sum().backward()
    assert found.tokens.isfinite().all()
    assert broken.grad.isfinite().all()
    assert select.scorer.weight.grad.isfinite().all()
    assert torch.equal(found.tokens, select(tokens, mask).tokens)
    assert select.eval()(broken, mask).tokens.isfinite().all()
    one = mask[1]  # for all
    torch.testing.assert_close(select(tokens, one), select(tokens, one.expand(3, 8)))
    nothing = select(broken, torch.zeros(3, 8, dtype=torch.bool))
    assert (nothing.tokens == 0).all()
    assert not nothing.mask.any()


def test_straight_through():
    tokens, _ = tokens_and_mask()
    select = TokenSelector(3, dim=4, eps=0.7, hard=True)
    found = select(tokens)
    assert set(found.weights.flatten().tolist()) == {0.0, 1.0}
    soft = TokenSelector(3, scorer=select.scorer, eps=0.7)(tokens)
    factor = torch.randn(3, 8)
    one, other = (
        torch.autograd.grad((factor * each.weights).sum(), select.scorer.weight)[0]
        for each in (found, soft)
    )
    torch.testing.assert_close(one, other)
    assert one.abs().sum() > 0


def test_the_width_is_calibrated_kept_and_annealed():
    tokens = torch.randn(16, 40, 4)
    select = TokenSelector(ratio=0.25, dim=4)
    assert "width=2 * k" in repr(select)
    weights = select(100 * tokens).weights
    undecided = ((weights > 0.05) & (weights < 0.95)).sum(1).double()
    assert undecided.median() == pytest.approx(20, abs=3)
    assert torch.equal(select.state_dict()["calibrated_eps"], select.eps)
    with pytest.raises(ValueError, match="give start"):
        WidthSchedule(select, total_steps=5)
    schedule = WidthSchedule(select, total_steps=5, start=20)
    for _ in range(6):
        select(tokens)
        schedule.step()
    soft, exact = select(tokens), select.eval()(tokens)
    kept = soft.weights.gather(1, exact.indices)
    assert kept.mean() > 0.95


def test_copies_and_state():
    tokens, mask = tokens_and_mask()
    select = TokenSelector(3, scorer=nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)))
    expected = select(tokens, mask)
    for other in (copy.deepcopy(select), pickle.loads(pickle.dumps(select))):
        torch.testing.assert_close(other(tokens, mask), expected, rtol=0, atol=0)
    fresh = TokenSelector(3, scorer=nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)))
    fresh.load_state_dict(select.state_dict())
    torch.testing.assert_close(fresh(tokens, mask), expected, rtol=0, atol=0)
    meta = TokenSelector(3, dim=4).to("meta")
    assert meta(tokens.to("meta")).tokens.shape == (3, 8, 4)
    assert meta.eval()(tokens.to("meta")).tokens.shape == (3, 3, 4)
    assert select(tokens[:0]).tokens.shape == (0, 8, 4)
    assert select.eval()(tokens[:0], mask[:0]).tokens.shape == (0, 3, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    tokens, mask = tokens_and_mask()
    select = TokenSelector(3, dim=4, eps=0.7, n_class_tokens=1)
    expected = select(tokens, mask)
    with torch.autocast("cpu", dtype=dtype):
        found = select(tokens, mask)
    torch.testing.assert_close(found.weights.float(), expected.weights, rtol=0.02, atol=0.02)
    narrow = copy.deepcopy(select).to(dtype)(tokens.to(dtype), mask)
    assert narrow.tokens.dtype is dtype
    torch.testing.assert_close(narrow.tokens.float(), expected.tokens, rtol=0.05, atol=0.05)


@pytest.mark.slow
def test_compiled():
    tokens, mask = tokens_and_mask()
    select = TokenSelector(ratio=0.4, dim=4, eps=0.7, n_class_tokens=1)
    compiled = torch.compile(select, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens, mask), select(tokens, mask))
    select.eval()
    torch.testing.assert_close(compiled(tokens, mask), select(tokens, mask))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: TokenSelector(dim=4), ValueError, "give k, .* got k=None and ratio=None"),
        (lambda: TokenSelector(2, ratio=0.5, dim=4), ValueError, "got k=2 and ratio=0.5"),
        (lambda: TokenSelector(2), ValueError, "give dim, for a linear scorer"),
        (lambda: TokenSelector(0, dim=4), ValueError, "k must be at least 1"),
        (lambda: TokenSelector(ratio=1.5, dim=4), ValueError, "ratio must be above 0 and at most"),
        (lambda: TokenSelector(2, dim=4, hard=1), TypeError, "hard must be True or False"),
        (lambda: TokenSelector(2, dim=4, n_class_tokens=-1), ValueError, "n_class_tokens must be"),
        (lambda: TokenSelector(2, dim=4)(torch.ones(2, 4)), TypeError, r"tokens .* got \(2, 4\)"),
        (
            lambda: TokenSelector(2, dim=4, n_class_tokens=3)(torch.ones(2, 3, 4)),
            ValueError,
            "more than n_class_tokens=3",
        ),
        (
            lambda: TokenSelector(2, scorer=nn.Linear(4, 2))(torch.ones(2, 3, 4)),
            ValueError,
            r"scorer must return .* \(2, 3, 2\)",
        ),
        (
            lambda: TokenSelector(2, dim=4)(torch.ones(2, 3, 4), torch.ones(2, 3)),
            TypeError,
            "mask must be boolean",
        ),
        (
            lambda: TokenSelector(3, dim=8)(torch.randn(2, 5, 7)),
            ValueError,
            "tokens must have dim=8 features, got shape",
        ),
        (
            lambda: TokenSelector(2, dim=4)(torch.ones(2, 3, 4), k=torch.ones(3).long()),
            ValueError,
            r"k of shape \(3,\) does not broadcast",
        ),
    ],
)
def test_wrong_arguments(make, kind, message):
    with pytest.raises(kind, match=message):
        make()
