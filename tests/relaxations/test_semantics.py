"""What all relaxations promise: sums, ranges, limits, masks, shapes, dtypes, extreme scores."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.testing import assert_close

from softtopk.relaxations import neural_sort, relaxed_subset, sinkhorn_sort

INF = math.inf
MASK = torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 0, 0, 1, 1]]).bool()
# A fixture that only looks a function up may be shared by the examples of a test.
shared = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gradient(relaxation, scores, k, **options):
    """A and its derivative along a fixed cotangent."""
    scores = scores.detach().requires_grad_()
    selection = relaxation(scores, k, **options)
    weight = torch.linspace(-1, 2, scores.shape[-1]).to(scores.dtype)
    return selection.detach(), torch.autograd.grad((selection * weight).sum(), scores)[0]


@st.composite
def problems(draw):
    """Scores with ties and close neighbours, any k and an eps from cold to hot."""
    finite = st.floats(-100, 100, allow_nan=False, width=32)
    values = draw(st.lists(finite, min_size=1, max_size=8))
    if draw(st.booleans()):
        values = [round(value, 1) for value in values]
    k = draw(st.integers(0, len(values)))
    return torch.tensor(values, dtype=torch.float64), k, 10 ** draw(st.floats(-3, 3))


@shared
@given(problem=problems())
def test_range_and_sum(bounded, problem):
    relaxation, promises_one = bounded
    scores, k, eps = problem
    selection = relaxation(scores, k, eps=eps)
    assert (selection >= 0).all()
    assert_close(selection.sum(), torch.tensor(float(k)).double(), rtol=0, atol=1e-9)
    if promises_one:
        assert (selection <= 1 + 1e-9).all()


@pytest.mark.parametrize("k", [1, 3, 6])
def test_cold_limit_is_the_hard_selection(relaxation, k):
    scores = torch.tensor([0.3, 2.0, -1.0, 1.1, 0.7, -0.4, 1.6], dtype=torch.float64)
    hard = torch.zeros_like(scores).scatter(-1, scores.topk(k).indices, 1.0)
    assert_close(relaxation(scores, k, eps=1e-4), hard, rtol=0, atol=1e-9)


@pytest.mark.parametrize("k", [0, 3, 5, 8])
def test_masked_is_deleted(relaxation, k):
    """Values and gradients, whatever stands at the masked elements, and for any k."""
    scores = randn(2, 8)
    scores[0, 2], scores[1, 0], scores[1, 4] = math.nan, 1e30, INF
    masked, slope = gradient(relaxation, scores, k, eps=0.3, mask=MASK)
    weight = torch.linspace(-1, 2, 8).double()
    for row in range(2):
        mask = MASK[row]
        left = scores[row, mask].requires_grad_()
        deleted = relaxation(left, min(k, len(left)), eps=0.3)
        (expected,) = torch.autograd.grad((deleted * weight[mask]).sum(), left)
        assert_close(masked[row, mask], deleted.detach(), rtol=0, atol=1e-11)
        assert_close(slope[row, mask], expected, rtol=0, atol=1e-9)
        assert (masked[row, ~mask] == 0).all()
        assert (slope[row, ~mask] == 0).all()


@pytest.mark.parametrize(
    ("relaxation", "options"), [(neural_sort, {"stochastic": True}), (relaxed_subset, {})]
)
def test_masked_is_deleted_with_noise(relaxation, options):
    """The last elements are masked, so that the others have the noise they would have alone."""

    def run(scores, mask=None):
        generator = torch.Generator().manual_seed(5)
        return relaxation(scores, 2, eps=0.3, mask=mask, generator=generator, **options)

    scores, mask = randn(7).requires_grad_(), torch.arange(7) < 5
    selection = run(scores, mask)
    assert_close(selection[:5], run(scores[:5]), rtol=0, atol=1e-11)
    assert (selection[5:] == 0).all()
    (slope,) = torch.autograd.grad(selection.square().sum(), scores)
    assert (slope[5:] == 0).all()
    assert (slope[:5] != 0).all()


def test_minus_infinity_is_masked(any_relaxation):
    scores, infinite = randn(2, 8), randn(2, 8).masked_fill(~MASK, -INF)
    expected = gradient(any_relaxation, scores, 3, eps=0.3, mask=MASK)
    assert_close(gradient(any_relaxation, infinite, 3, eps=0.3), expected)


@pytest.mark.parametrize("n", [1, 4])
def test_few_elements_are_all_selected(any_relaxation, n):
    scores = randn(2, n)
    mask = torch.arange(n) < torch.tensor([[1], [0]])
    selection, slope = gradient(any_relaxation, scores, n, eps=0.3, mask=mask)
    assert torch.equal(selection, mask.double())
    assert torch.equal(slope, torch.zeros_like(slope))
    assert_close(any_relaxation(scores, n, eps=0.3), torch.ones(2, n).double())


@pytest.mark.parametrize("bad", [math.nan, INF])
def test_nan_stays_in_its_row(relaxation, bad):
    scores = randn(3, 8)
    expected = relaxation(scores, 2, eps=0.5)[[0, 2]]
    scores[1, 2] = bad
    mask = torch.ones(3, 8).bool()
    mask[1, 4] = False
    selection = relaxation(scores, 2, eps=0.5, mask=mask)
    assert_close(selection[[0, 2]], expected)
    assert selection[1, 4] == 0
    if math.isnan(bad):
        assert selection[1, mask[1]].isnan().all()


def test_batch_is_loop(relaxation):
    scores, mask = randn(2, 3, 6), randn(2, 3, 6, seed=1) > -1
    batch = relaxation(scores, 2, eps=0.4, mask=mask)
    for index in torch.cartesian_prod(torch.arange(2), torch.arange(3)):
        row = tuple(index)
        single = relaxation(scores[row], 2, eps=0.4, mask=mask[row])
        assert_close(batch[row], single, rtol=0, atol=1e-12)
    assert relaxation(torch.randn(0, 6), 2).shape == (0, 6)


def test_a_mask_broadcasts(relaxation):
    scores, mask = randn(2, 8), MASK[0]
    expected = relaxation(scores, 3, mask=mask.expand(2, 8).contiguous())
    assert_close(relaxation(scores, 3, mask=mask), expected)


@shared
@given(problem=problems(), random=st.randoms(use_true_random=False))
def test_permutation_equivariance(relaxation, problem, random):
    """Of distinct scores: some relaxations break ties by position."""
    scores, k, eps = problem
    scores = scores.unique()
    k = min(k, len(scores))
    order = list(range(len(scores)))
    random.shuffle(order)
    permuted = relaxation(scores[order], k, eps=eps)
    assert_close(permuted, relaxation(scores, k, eps=eps)[order], rtol=0, atol=1e-9)


@shared
@given(problem=problems(), shift=st.integers(-1000, 1000))
def test_shift_invariance(relaxation, problem, shift):
    scores, k, eps = problem
    scores = (scores * 2**20).round() / 2**20  # so that the shift itself is exact
    shifted = relaxation(scores + shift, k, eps=eps)
    assert_close(shifted, relaxation(scores, k, eps=eps), rtol=0, atol=1e-9)


def test_the_sort_by_transport_does_not_depend_on_the_scale():
    scores = randn(2, 8)
    for scale in (1e-200, 1e-3, 1e200):
        assert_close(sinkhorn_sort(scale * scores, 3), sinkhorn_sort(scores, 3))


def test_a_large_offset_costs_no_digits(relaxation):
    scores = torch.arange(8.0).flip(0) / 4  # exact in float32, also with the offset
    expected = relaxation(scores.double(), 3, eps=0.1).float()
    assert_close(relaxation(scores + 2.0**20, 3, eps=0.1), expected, rtol=0, atol=1e-5)


def test_what_the_subset_has_selected_it_does_not_select_again():
    """Even if its weight rounds to one and its score is far above the rest."""
    scores = torch.tensor([1e6, 0.0, -1e6])
    selection = relaxed_subset(scores, 2, eps=0.1, noise=False)
    assert_close(selection, torch.tensor([1.0, 1.0, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single(any_relaxation, dtype):
    scores = torch.randn(2, 8).to(dtype).requires_grad_()
    selection = any_relaxation(scores, 3, eps=0.5)
    assert selection.dtype is dtype
    assert_close(selection, any_relaxation(scores.float(), 3, eps=0.5).to(dtype), rtol=0, atol=0)
    (slope,) = torch.autograd.grad(selection.square().sum(), scores)
    assert slope.dtype is dtype
    assert slope.isfinite().all()


EXTREME = {
    "tied": [1.0] * 12,
    "zero": [0.0] * 12,
    "huge": [1e30, -1e30, 0, 1e30, 5, 1e30, 3, 2, 1, 0, 0, -1e30],
    "largest": [3e38, -3e38, 0, 3e38, -3e38, 1, 2, 3, 4, 5, 6, 7],
    "tiny": [1e-38, 2e-38, 0, -1e-40, 1e-45, 0, 0, 0, 0, 0, 0, 0],
    "outlier": [1e30, 0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1, -1.0, -2.0, 3.0, 4.0],
    "close": [1 + 1e-7 * i for i in range(12)],
}


@pytest.mark.parametrize("values", EXTREME.values(), ids=EXTREME)
def test_extreme_scores_are_finite(bounded, values):
    relaxation, promises_one = bounded
    for eps in (1e-30, 1e-6, 1.0, 1e30):
        for k in (1, 5, 11, 12):
            selection, slope = gradient(relaxation, torch.tensor(values), k, eps=eps)
            assert selection.isfinite().all()
            assert abs(selection.sum().item() - k) <= 1e-3
            assert slope.isfinite().all()
            if promises_one:
                assert selection.max() <= 1 + 1e-5
