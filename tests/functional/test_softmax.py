"""The softmax among the soft top k."""

import math

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from paths import both_paths, is_rounded
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jacfwd, jacrev, vmap
from torch.testing import assert_close

from softtopk import Sinkhorn, log_soft_topk, soft_topk, soft_topk_softmax
from softtopk.functional._softmax import softmax_of_largest

INF = math.inf
MASK = torch.tensor([[1, 1, 0, 1, 1, 1], [1, 0, 1, 1, 1, 0]]).bool()


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def weights_of_row(x, k, eps, scale=1.0):
    """By the oracle of log A, with the elements at -inf deleted."""
    x = np.asarray(x, dtype=np.float64)
    out, left = np.zeros_like(x), x > -INF
    if not left.any():
        return out
    z = x[left]
    if left.sum() > k:
        z = z + reference.log_soft_topk(z, k, eps, scale)
    e = np.exp(z - z.max())
    out[left] = e / e.sum()
    return out


def gradient_of_row(x, k, eps, weight):
    x = x.clone().requires_grad_()
    w = torch.softmax(x + reference.log_soft_topk_tensor(x, k, eps), -1)
    return torch.autograd.grad(w, x, weight)[0]


@both_paths
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [1e-6, 1e-3, 0.1, 1.0, 30.0])
@pytest.mark.parametrize(("n", "k"), [(2, 1), (7, 3), (40, 1), (40, 39), (300, 5), (300, 2.5)])
def test_against_the_oracle(n, k, eps, dtype):
    scores = (3 * randn(3, n, seed=n)).to(dtype)
    found = soft_topk_softmax(scores, k, eps=eps)
    truth = np.stack([weights_of_row(row, k, eps) for row in scores.double().numpy()])
    tolerance = 3e-15 if dtype == torch.float64 else 1e-6
    assert_close(found.double(), torch.from_numpy(truth), rtol=0, atol=tolerance)


@both_paths
@pytest.mark.parametrize("eps", [0.01, 0.1, 1.0, 30.0])
@pytest.mark.parametrize(("n", "k"), [(2, 1), (7, 3), (40, 5), (300, 20)])
def test_gradients_against_the_oracle(n, k, eps):
    scores, weight = randn(2, n), randn(2, n, seed=1)
    leaf = scores.clone().requires_grad_()
    (found,) = torch.autograd.grad(soft_topk_softmax(leaf, k, eps=eps), leaf, weight)
    truth = [gradient_of_row(x, k, eps, g) for x, g in zip(scores, weight, strict=True)]
    assert_close(eps * found, eps * torch.stack(truth), rtol=0, atol=1e-11)


@both_paths
@given(data=st.data())
def test_masks_and_special_values(data):
    n = data.draw(st.integers(1, 12), "n")
    k = data.draw(st.integers(1, n), "k")
    eps = data.draw(st.sampled_from([1e-30, 1e-4, 0.1, 1.0, 1e6]), "eps")
    number = st.sampled_from([0.0, 1.0, 1e30, -1e30, 3e38, -3e38, -INF]) | st.floats(-4, 4)
    scores = torch.tensor(data.draw(st.lists(number, min_size=n, max_size=n))).double()
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    leaf = scores.clone().requires_grad_()
    found = soft_topk_softmax(leaf, k, eps=eps, mask=mask)
    deleted = scores.masked_fill(~mask, -INF)
    truth = weights_of_row(deleted, k, eps)
    assert_close(found.detach(), torch.from_numpy(truth), rtol=0, atol=1e-12)
    (slope,) = torch.autograd.grad(found, leaf, randn(n))
    assert slope.isfinite().all()
    assert (slope[deleted == -INF] == 0).all()


@both_paths
@pytest.mark.parametrize("eps", [1e-3, 1.0])
def test_a_row_of_at_most_k_elements_has_its_softmax(eps):
    scores = randn(4, 6, seed=2)
    assert_close(soft_topk_softmax(scores, 6, eps=eps), scores.softmax(-1))
    left = torch.arange(6) < torch.tensor([[3], [2], [1], [0]])
    found = soft_topk_softmax(scores, 3, eps=eps, mask=left)
    expected = scores.masked_fill(~left, -INF).softmax(-1)[:3]
    assert_close(found[:3], expected)
    assert (found[3] == 0).all()


@both_paths
@pytest.mark.parametrize("hard", [False, True])
def test_a_row_of_nothing_is_zero_and_has_no_gradient(hard):
    scores = torch.tensor([[-INF] * 3, [1.0, 2.0, 3.0]], requires_grad=True)
    weights = soft_topk_softmax(scores, 1, eps=1.0, hard=hard)
    assert (weights[0] == 0).all()
    assert_close(weights.sum(1), torch.tensor([0.0, 1.0]))
    (slope,) = torch.autograd.grad(weights, scores, torch.tensor([3.0, -1.0, 2.0]).expand(2, 3))
    assert (slope[0] == 0).all()
    assert (slope[1] != 0).all()


@both_paths
def test_nan_stays_in_its_row():
    scores = randn(3, 20)
    scores[1, 7], scores[2, 0] = math.nan, INF  # which torch.softmax makes NaN of too
    weights = soft_topk_softmax(scores, 2, eps=0.5)
    assert weights.isnan().all(1).tolist() == [False, True, True]
    assert_close(weights[0], soft_topk_softmax(scores[0], 2, eps=0.5))


@both_paths
def test_nothing_to_select():
    assert (soft_topk_softmax(torch.randn(2, 4), 0) == 0).all()


def test_derivatives():
    scores = randn(2, 6).requires_grad_()
    eps = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    k = torch.tensor([1.3, 3.0], dtype=torch.float64, requires_grad=True)
    for function, inputs in (
        (lambda x: soft_topk_softmax(x, 2, eps=0.7), (scores,)),
        (lambda x: soft_topk_softmax(x, 2, eps=0.7, mask=MASK), (scores,)),
        (lambda x, e: soft_topk_softmax(x, 2, eps=e, mask=MASK), (scores, eps)),
        (lambda x, k: soft_topk_softmax(x, k, eps=0.7), (scores, k)),
        (lambda x: soft_topk_softmax(x, 4, eps=0.7, dim=0), (randn(5, 2).requires_grad_(),)),
    ):
        assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(function, inputs)


@both_paths
@pytest.mark.parametrize("eps", [0.05, 0.5])
def test_hard_weights(eps):
    scores = randn(5, 20).requires_grad_()
    found = soft_topk_softmax(scores, 4, eps=eps, hard=True)
    best = scores.topk(4)
    expected = torch.zeros_like(scores).scatter(1, best.indices, best.values.softmax(1))
    assert_close(found, expected)
    assert ((found != 0).sum(1) == 4).all()
    soft = soft_topk_softmax(scores, 4, eps=eps)
    weight = randn(5, 20, seed=3)
    slopes = [torch.autograd.grad(w, scores, weight)[0] for w in (found, soft)]
    assert_close(*slopes)
    with torch.no_grad():
        assert_close(soft_topk_softmax(scores, 4, eps=eps, hard=True), expected.detach())


@both_paths
@given(data=st.data())
def test_hard_weights_of_special_values(data):
    """Exactly k elements, none of them below one that is left out, with their softmax."""
    n = data.draw(st.integers(1, 40), "n")
    k = data.draw(st.integers(1, n), "k")
    number = st.sampled_from([0.0, 1.0, 1e30, -3e38, 3e38, -INF]) | st.integers(-3, 3).map(float)
    scores = torch.tensor(data.draw(st.lists(number, min_size=n, max_size=n)))
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    weights, places = softmax_of_largest(scores, mask, k)
    assert len(set(places.tolist())) == k
    left = scores.masked_fill(~mask, -INF)
    assert_close(left[places].sort().values, left.topk(k).values.flip(0))
    assert_close(weights, torch.nan_to_num(left[places].softmax(0)))
    whole = soft_topk_softmax(scores, k, mask=mask, hard=True)
    assert_close(whole.sort().values, torch.zeros(n).scatter(0, places, weights).sort().values)


@both_paths
@pytest.mark.parametrize("k", [1, 7, 300, 20_001])
def test_hard_weights_of_long_rows(k):
    scores = randn(2, 20_001).float()
    weights, places = softmax_of_largest(scores, None, k)
    expected = torch.zeros_like(scores).scatter(1, *reversed(scores.topk(k)))
    found = torch.zeros_like(scores).scatter(1, places, scores.gather(1, places))
    assert torch.equal(found, expected)
    assert_close(weights, scores.gather(1, places).softmax(1), rtol=1e-5, atol=1e-7)


@both_paths
def test_the_options_of_the_selection():
    scores = randn(2, 6)
    for options in (
        {"normalize": "row"},
        {"normalize": "batch"},
        {"solver": Sinkhorn(max_iter=5000, tol=1e-14)},
        {"mask": MASK},
        {"dim": 0},
    ):
        dim = options.get("dim", -1)
        log_a = log_soft_topk(scores, 1.5, eps=0.8, **options)
        found = soft_topk_softmax(scores, 1.5, eps=0.8, **options)
        assert_close(found, torch.softmax(scores + log_a, dim), rtol=0, atol=1e-13)


def test_transforms():
    scores = randn(3, 6)

    def weights(x):
        return soft_topk_softmax(x, 2, eps=0.5)

    assert_close(vmap(weights)(scores), weights(scores))
    assert_close(jacrev(weights)(scores[0]), jacfwd(weights)(scores[0]))
    assert_close(
        vmap(grad(lambda x: weights(x)[0]))(scores)[1],
        jacrev(weights)(scores[1])[0],
    )


@pytest.mark.parametrize("hard", [False, True])
def test_compile(hard):
    scores = randn(3, 6).requires_grad_()

    def weights(x):
        return soft_topk_softmax(x, 2, eps=0.5, mask=MASK[0], hard=hard)

    compiled = torch.compile(weights, fullgraph=True, backend="aot_eager")
    found, expected = compiled(scores), weights(scores)
    assert_close(found, expected)
    weight = randn(3, 6, seed=1)
    slopes = [torch.autograd.grad(w, scores, weight)[0] for w in (found, expected)]
    assert_close(*slopes)


@both_paths
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    scores = randn(4, 50).to(dtype).requires_grad_()
    weights = soft_topk_softmax(scores, 5, eps=0.5)
    assert weights.dtype is dtype
    expected = soft_topk_softmax(scores.detach().float(), 5, eps=0.5)
    assert is_rounded(weights, expected)
    weights.float().square().sum().backward()
    assert scores.grad.isfinite().all()


def test_most_of_the_weight_is_on_the_selected():
    scores = randn(10, 30)
    best = soft_topk(scores, 3, eps=1e-3)
    outside = [
        (soft_topk_softmax(scores, 3, eps=eps) * (1 - best)).sum(1) for eps in (2.0, 0.5, 0.1)
    ]
    assert (outside[0] < (scores.softmax(1) * (1 - best)).sum(1)).all()
    assert (outside[1] < outside[0]).all()
    assert (outside[2] < outside[1]).all()


def test_what_is_refused():
    scores = torch.randn(2, 4)
    with pytest.raises(ValueError, match="k must be between 0 and n=4"):
        soft_topk_softmax(scores, 5)
    with pytest.raises(TypeError, match="hard must be True or False"):
        soft_topk_softmax(scores, 2, hard=1)
    with pytest.raises(ValueError, match="eps must be positive"):
        soft_topk_softmax(scores, 2, eps=0.0)
    with pytest.raises(ValueError, match="solver must be"):
        soft_topk_softmax(scores, 2, solver="newton")
    with pytest.raises(ValueError, match="solver must be"):
        soft_topk_softmax(scores, 2, solver="newton", hard=True)
