"""Properties that hold for any scores, and the statements of the paper."""

import math

import hypothesis.strategies as st
import pytest
import reference
import torch
from hypothesis import assume, example, given
from paths import both_paths
from torch.testing import assert_close

from softtopk import log_soft_topk, soft_topk, sorted_soft_topk, topk_threshold

FINITE = st.floats(-100, 100, allow_nan=False, width=32)


@st.composite
def problems(draw, max_size=12):
    """Scores with ties and close neighbours, a k strictly inside, and an eps from cold to hot."""
    values = draw(st.lists(FINITE, min_size=2, max_size=max_size))
    if draw(st.booleans()):
        values = [round(value, 1) for value in values]
    k = draw(st.integers(1, len(values) - 1))
    eps = 10.0 ** draw(st.floats(-4, 4))
    return torch.tensor(values, dtype=torch.float64), k, eps


@both_paths
@given(problems())
def test_unsorted_is_a_soft_selection(problem):
    scores, k, eps = problem
    soft = soft_topk(scores, k, eps=eps)
    assert ((soft >= 0) & (soft <= 1)).all()
    assert_close(soft.sum(), torch.tensor(float(k)).double(), rtol=0, atol=1e-12)
    order = scores.argsort()
    assert (soft[order].diff() >= -1e-15).all()  # larger scores are selected more
    truth, _ = reference.soft_topk(scores.numpy(), k, eps)
    assert_close(soft, torch.tensor(truth), rtol=0, atol=1e-12)


@both_paths
@given(problems())
def test_sorted_is_a_soft_ranking(problem):
    scores, k, eps = problem
    ranks = sorted_soft_topk(scores, k, eps=eps)
    assert (ranks >= 0).all()
    assert_close(ranks.sum(0), torch.ones(k).double(), rtol=0, atol=1e-11)
    assert (ranks.sum(1) <= 1 + 1e-12).all()
    truth = reference.sorted_soft_topk(scores.numpy(), k, eps)
    assert_close(ranks, torch.tensor(truth), rtol=0, atol=1e-10)


@given(problems(), st.randoms(use_true_random=False))
def test_permutation_equivariance(problem, random):
    scores, k, eps = problem
    order = list(range(len(scores)))
    random.shuffle(order)
    for operator in (soft_topk, log_soft_topk, sorted_soft_topk):
        permuted = operator(scores[order], k, eps=eps)
        assert_close(permuted, operator(scores, k, eps=eps)[order], rtol=1e-10, atol=1e-11)


@given(problems(), st.integers(-1000, 1000))
def test_shift_invariance(problem, shift):
    scores, k, eps = problem
    scores = (scores * 2**20).round() / 2**20  # so that the shift itself is exact
    for operator in (soft_topk, sorted_soft_topk):
        shifted = operator(scores + shift, k, eps=eps)
        assert_close(shifted, operator(scores, k, eps=eps), rtol=0, atol=1e-10)
    moved = topk_threshold(scores + shift, k, eps=eps) - shift
    assert_close(moved, topk_threshold(scores, k, eps=eps), rtol=1e-9, atol=1e-9)


@both_paths
@given(problems())
def test_smallest_is_largest_of_the_negative(problem):
    scores, k, eps = problem
    for operator in (soft_topk, sorted_soft_topk):
        smallest = operator(scores, k, eps=eps, largest=False)
        assert_close(smallest, operator(-scores, k, eps=eps))
    rest = soft_topk(scores, len(scores) - k, eps=eps)
    assert_close(soft_topk(scores, k, eps=eps, largest=False), 1 - rest, rtol=0, atol=1e-12)


@both_paths
@given(problems(), st.data())
def test_masked_is_deleted(problem, data):
    scores, k, eps = problem
    flags = st.lists(st.booleans(), min_size=len(scores), max_size=len(scores))
    mask = torch.tensor(data.draw(flags))
    assume(mask.any())
    for operator in (soft_topk, sorted_soft_topk):
        masked = operator(scores, k, eps=eps, mask=mask)
        places = min(k, int(mask.sum()))
        deleted = operator(scores[mask], places, eps=eps)
        if operator is sorted_soft_topk:
            assert (masked[:, places:] == 0).all()
            masked = masked[:, :places]
        assert_close(masked[mask], deleted, rtol=0, atol=1e-11)
        assert (masked[~mask] == 0).all()


SPECIAL = st.sampled_from([0.0, -0.0, 1.0, math.inf, -math.inf, 1e30, -1e30, 1e-30, 3e38, -3e38])


@both_paths
@given(
    st.lists(SPECIAL | FINITE, min_size=1, max_size=8),
    st.data(),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e30]),
    st.sampled_from([None, "row", "batch"]),
)
@example([math.inf, -math.inf], None, 1.0, "row")
def test_no_nan_out_of_anything_but_nan(values, data, eps, normalize):
    """Extreme but legal float32 input: no NaN in results or gradients, and the sum is k."""
    scores = torch.tensor(values, requires_grad=True)
    strength = torch.tensor(eps, requires_grad=True)
    k = len(values) // 2 if data is None else data.draw(st.integers(0, len(values)))
    options = {"eps": strength, "normalize": normalize}
    places = min(k, sum(value != -math.inf for value in values))
    for operator in (soft_topk, sorted_soft_topk):
        result = operator(scores, k, **options)
        assert not result.isnan().any()
        assert abs(result.sum().item() - places) <= 1e-4
        if result.requires_grad:
            grads = torch.autograd.grad(result.square().sum(), (scores, strength))
            assert not any(grad.isnan().any() for grad in grads)


@both_paths
@given(problems())
def test_cold_limit_is_topk(problem):
    scores, k, _ = problem
    ordered = scores.sort(descending=True).values
    gaps = -ordered[: k + 1].diff()
    assume(gaps.min() > 1e-3)
    eps = 1e-2 * float(gaps.min())
    indices = scores.topk(k).indices
    hard = torch.zeros_like(scores).scatter(0, indices, 1.0)
    assert_close(soft_topk(scores, k, eps=eps), hard, rtol=0, atol=1e-12)
    one_hot = torch.nn.functional.one_hot(indices, len(scores)).T.double()
    assert_close(sorted_soft_topk(scores, k, eps=eps), one_hot, rtol=0, atol=1e-12)


@given(problems())
def test_theorem_1_the_jacobian_is_not_zero(problem):
    """Theorem 1 of the paper: every score moves some entry, at any eps (as far as floats reach)."""
    scores, k, eps = problem
    spread = float(scores.max() - scores.min())
    assume(spread / eps < 100)
    jacobian = torch.func.jacrev(lambda x: soft_topk(x, k, eps=eps))(scores)
    assert (jacobian.abs().amax(0) > 0).all()
    assert_close(jacobian, jacobian.T, rtol=1e-9, atol=1e-12 / eps)
    assert_close(jacobian.sum(0), torch.zeros_like(scores), rtol=0, atol=1e-12 / eps)


def bias_and_bounds(scores, k, eps):
    """|Gamma_eps - Gamma_0|_F, a bound that holds (docs/maths.md), and that of Theorem 2."""
    n = len(scores)
    ordered = scores.sort().values
    gap = float(ordered[k] - ordered[k - 1])
    soft = soft_topk(scores, k, eps=eps, largest=False)
    hard = (scores <= ordered[k - 1]).double()
    bias = math.sqrt(2) * (soft - hard).norm().item() / n  # both columns of the plan
    share = k / n
    entropy = -share * math.log(share) - (1 - share) * math.log1p(-share)
    bound = math.sqrt(2 * eps * entropy / (n * gap))
    return bias, bound, eps * (math.log(n) + math.log(2)) / (n * gap)


@given(problems(max_size=20))
def test_the_bias_is_bounded(problem):
    """The paper's Theorem 2 holds for so few scores."""
    scores, k, eps = problem
    ordered = scores.sort().values
    assume(ordered[k] - ordered[k - 1] > 1e-6)
    bias, bound, theorem_2 = bias_and_bounds(scores, k, eps)
    assert bias <= bound
    assert bias <= theorem_2


@given(
    n=st.integers(2, 3000),
    share=st.floats(0.001, 0.999),
    width=st.sampled_from([0.0, 1e-3, 1.0]),
    eps=st.floats(-2, 2).map(lambda power: 10.0**power),
)
@example(n=3000, share=0.5, width=0.0, eps=0.78)
def test_the_bias_is_bounded_for_many_scores_in_two_clusters(n, share, width, eps):
    k = min(max(1, round(share * n)), n - 1)
    near = torch.linspace(0, width, n, dtype=torch.float64)
    scores = torch.cat([-near[:k], 1 + near[: n - k]])
    bias, bound, _ = bias_and_bounds(scores, k, eps)
    assert bias <= bound


@pytest.mark.parametrize(("n", "fails"), [(200, False), (250, True), (1000, True), (4000, True)])
def test_theorem_2_fails_for_many_scores_in_two_clusters(n, fails):
    """Where it is nearest to failing: r / (1 + exp(r)) is the largest at r = gap / eps = 1.278."""
    scores = torch.arange(2, dtype=torch.float64).repeat_interleave(n // 2)
    bias, bound, theorem_2 = bias_and_bounds(scores, n // 2, 1 / 1.278)
    assert bias <= bound
    assert (bias > theorem_2) == fails


def test_theorem_2_fails_at_the_numbers_of_the_docs():
    scores = torch.arange(2, dtype=torch.float64).repeat_interleave(500)
    bias, bound, theorem_2 = bias_and_bounds(scores, 500, 1.0)
    assert (bias, theorem_2) == pytest.approx((0.01203, 0.00760), abs=5e-6)
    assert bound == pytest.approx(0.03723, abs=5e-6)


@both_paths
@given(problems())
def test_the_threshold_defines_the_selection(problem):
    scores, k, eps = problem
    threshold = topk_threshold(scores, k, eps=eps)
    assert_close(
        torch.sigmoid(2 * (scores - threshold) / eps),
        soft_topk(scores, k, eps=eps),
        rtol=0,
        atol=1e-9 / min(eps, 1.0),
    )
    assert scores.min() - eps * 50 <= threshold <= scores.max() + eps * 50


SEVEN = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1], dtype=torch.float64)


def test_the_papers_illustration_of_the_unsorted_operator():
    """Figure 2: the five smallest of the seven scores align with 0, {2.3, 1.9} with 1."""
    soft = soft_topk(SEVEN, 5, eps=0.01, largest=False)
    assert_close(soft, torch.tensor([1, 1, 0, 0, 1, 1, 1]).double(), rtol=0, atol=1e-8)
    assert_close(soft, torch.tensor(reference.topk_lp(-SEVEN.numpy(), 5)), rtol=0, atol=1e-8)


def test_the_papers_illustration_of_the_sorted_operator():
    """Figure 4: -0.2 aligns with 0, 0.1 with 1, the rest with 2."""
    ranks = sorted_soft_topk(SEVEN, 2, eps=0.005, largest=False)
    expected = torch.zeros(7, 2).double()
    expected[4, 0] = expected[6, 1] = 1
    assert_close(ranks, expected, rtol=0, atol=1e-8)


@both_paths
@pytest.mark.parametrize("operator", [soft_topk, sorted_soft_topk])
def test_hot_limit_is_uniform(operator):
    result = operator(SEVEN, 3, eps=1e9)
    uniform = 3 / 7 if operator is soft_topk else 1 / 7
    assert_close(result, torch.full_like(result, uniform))
