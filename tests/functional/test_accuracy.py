"""Values against oracles that share no code with the package."""

import warnings

import numpy as np
import pytest
import reference
import torch
from paths import both_paths

from softtopk import (
    ConvergenceWarning,
    Sinkhorn,
    kernels,
    log_soft_topk,
    soft_topk,
    sorted_soft_topk,
    topk_threshold,
)
from softtopk.functional import _sorted
from softtopk.functional._rows import distances, pivot_of, places_of, rows_of
from softtopk.functional._sorted import rank_distances, solve_ranking
from softtopk.functional._unsorted import NEEDED_STEPS, solve_offset

FAMILIES = ["normal", "uniform", "cauchy", "tied", "clustered", "logsoftmax"]


def cases(names, *sizes, large):
    """All families in all sizes; in the large one, those without heavy tails wait for a release."""
    slow = [pytest.mark.slow]
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(family, *size, marks=slow if size == large and family != "cauchy" else [])
            for size in sizes
            for family in FAMILIES
        ],
    )


every_length = cases(("family", "n"), (2,), (10,), (1000,), (100_000,), large=(100_000,))


def scores_of(family, n, dtype, seed=0):
    """Scores in ``dtype``, and their spread: temperatures are stated in units of it."""
    scores = torch.tensor(reference.score_families(np.random.default_rng(seed), n)[family])
    scores = scores.to(dtype)
    return scores, float(scores.max() - scores.min()) or 1.0


def error(result, truth):
    return float((result.double() - torch.as_tensor(truth, dtype=torch.float64)).abs().max())


@both_paths
@every_length
def test_unsorted_values(family, n):
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        scores, spread = scores_of(family, n, dtype)
        for k in sorted({1, n // 2, n - 1} if n < 100_000 else {1, n // 2}):
            for temperature in (1e-6, 1e-3, 1.0, 1e3):
                eps = temperature * spread
                truth, _ = reference.soft_topk(scores.double().numpy(), k, eps)
                result = soft_topk(scores, k, eps=eps)
                assert error(result, truth) <= tolerance, (dtype, k, temperature)


@every_length
def test_unsorted_steps(family, n):
    """At most 12 iterations are promised; Newton on the logarithm of the leaks takes half, which is
    what a graph for ONNX has."""
    for dtype in (torch.float32, torch.float64):
        scores, spread = scores_of(family, n, dtype)
        for k in {1, n // 3 or 1, n // 2, n - 1, 0.01, n - 0.5}:
            places = places_of(k, scores)
            pivot = pivot_of(scores, k)
            for exponent in range(-6, 4):
                tau = 0.5 * 10.0**exponent * spread
                d, _ = distances(scores, pivot, places, tau)
                _, steps = solve_offset(d.squeeze(-1), places)
                assert steps <= NEEDED_STEPS, (dtype, k, exponent)


@both_paths
@pytest.mark.parametrize("k", [0.25, 1.5, 3, 6.999])
def test_fractional_k(k):
    scores, _ = scores_of("normal", 9, torch.float64)
    truth, threshold = reference.soft_topk(scores.numpy(), k, 0.3)
    assert error(soft_topk(scores, k, eps=0.3), truth) <= 1e-13
    assert error(topk_threshold(scores, k, eps=0.3), threshold) <= 1e-13


@both_paths
def test_k_and_eps_per_row():
    scores = torch.randn(4, 3, 11, dtype=torch.float64)
    k = torch.tensor([[1.0], [2.5], [7.0], [10.9]], dtype=torch.float64)
    eps = torch.tensor([0.01, 0.5, 20.0], dtype=torch.float64)
    result = soft_topk(scores, k, eps=eps)
    for i in range(4):
        for j in range(3):
            truth, _ = reference.soft_topk(scores[i, j].numpy(), k[i, 0].item(), eps[j].item())
            assert error(result[i, j], truth) <= 1e-13


@both_paths
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [1e-4, 0.1, 10.0])
def test_log_values_also_where_they_underflow(dtype, eps):
    scores, _ = scores_of("normal", 50, dtype)
    result = log_soft_topk(scores, 7, eps=eps)
    truth = torch.tensor(reference.log_soft_topk(scores.double().numpy(), 7, eps))
    precision = torch.finfo(dtype).eps
    # log A = (x - t) / tau: its error is relative to itself, and absolute where A is not small.
    assert ((result.double() - truth).abs() <= 16 * precision * (1 + truth.abs())).all()
    if eps == 1e-4:
        assert truth.min() < np.log(torch.finfo(dtype).tiny)


@both_paths
def test_threshold_is_the_quantile_when_cold():
    scores = torch.randn(5, 20, dtype=torch.float64)
    ordered = scores.sort(dim=-1, descending=True).values
    middle = ordered[:, 2:4].mean(-1)
    torch.testing.assert_close(topk_threshold(scores, 3, eps=1e-9), middle)
    flipped = topk_threshold(-scores, 3, eps=1e-9, largest=False)
    torch.testing.assert_close(flipped, -middle)


@both_paths
@cases(
    ("family", "n", "k"),
    *((2, 1), (10, 3), (40, 40), (100, 64), (2000, 5), (1000, 64)),
    large=(1000, 64),
)
def test_sorted_values(family, n, k):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        scores, spread = scores_of(family, n, dtype)
        for temperature in (1e-4, 1e-2, 1.0, 1e3):
            eps = temperature * spread
            truth = reference.sorted_soft_topk(scores.double().numpy(), k, eps)
            result = sorted_soft_topk(scores, k, eps=eps)
            assert error(result, truth) <= tolerance, (dtype, temperature)
            assert error(result.double().sum(0), np.ones(k)) <= tolerance / 5
            assert float(result.sum(1).max()) <= 1 + tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", FAMILIES)
def test_sorted_steps(family, dtype):
    """Rows that are cold at the top and hot in the bulk (heavy tails) are the hard ones."""
    for n, k in ((30, 30), (300, 5), (500, 64)):
        for seed in range(2):
            scores, spread = scores_of(family, n, dtype, seed)
            for exponent in np.arange(-4, 3.5, 0.5):
                rows = rows_of(
                    scores,
                    eps=float(10**exponent * spread),
                    dim=-1,
                    largest=True,
                    mask=None,
                    normalize=None,
                    last_anchor=k,
                )
                found = solve_ranking(rank_distances(rows.scores, k, rows.tau))
                assert found.converged.all()
                assert found.steps <= 6, (n, k, seed, exponent)


@both_paths
def test_the_roundings_of_many_thresholds_do_not_add_up():
    for scores, eps in ((torch.full((400,), 3.0), 1e-3), (torch.randn(2000), 1e3)):
        ranks = sorted_soft_topk(scores, 64, eps=eps)
        assert error(ranks.double().sum(0), np.ones(64)) <= 2e-6


def test_the_fallback_of_the_sorted_solver(monkeypatch):
    """A step that fails, as with a singular Jacobian, is replaced by a sweep, and we go on."""
    newton, calls = _sorted._newton_step, []

    def failing(jacobian, h):
        calls.append(1)
        step = newton(jacobian, h)
        return torch.full_like(step, torch.nan) if len(calls) <= 2 else step

    monkeypatch.setattr(_sorted, "_newton_step", failing)
    scores, _ = scores_of("normal", 30, torch.float64)
    with kernels.plain():
        result = sorted_soft_topk(scores, 5, eps=1.0)
    assert len(calls) > 4
    assert error(result, reference.sorted_soft_topk(scores.numpy(), 5, 1.0)) <= 1e-9


@both_paths
def test_sorted_with_one_rank_is_unsorted():
    scores = torch.randn(6, 30, dtype=torch.float64)
    sorted_one = sorted_soft_topk(scores, 1, eps=0.4).squeeze(-1)
    torch.testing.assert_close(sorted_one, soft_topk(scores, 1, eps=0.4), rtol=0, atol=1e-14)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("normalize", [None, "row", "batch"])
def test_exact_solvers_agree_with_converged_sinkhorn(normalize, largest):
    """The whole route through the paper's cost matrix: anchors, normalisation, orientation."""
    torch.manual_seed(1)
    scores = 2 * torch.randn(3, 12, dtype=torch.float64) + 1
    options = {"eps": 0.2 if normalize else 3.0, "normalize": normalize, "largest": largest}
    solver = Sinkhorn(max_iter=20_000, tol=1e-13)
    for operator, k in (
        (soft_topk, 4),
        (soft_topk, 2.5),
        (log_soft_topk, 4),
        (topk_threshold, 4),
        (sorted_soft_topk, 4),
        (sorted_soft_topk, 12),
    ):
        exact = operator(scores, k, **options)
        sinkhorn = operator(scores, k, solver=solver, **options)
        torch.testing.assert_close(exact, sinkhorn, rtol=1e-9, atol=1e-10)


@both_paths
@pytest.mark.parametrize("largest", [True, False])
def test_normalised_cost_is_the_papers(largest):
    """Row and batch divisors against the cost matrix written out, solved by the oracle."""
    torch.manual_seed(2)
    scores = torch.randn(2, 9, dtype=torch.float64) * torch.tensor([[1.0], [3.0]])
    for sort, k in ((False, 3), (True, 3)):
        anchors = np.arange(k + 1) if sort else np.arange(2)
        cost = (scores.numpy()[:, :, None] - anchors) ** 2
        nu = np.append(np.ones(k), 9 - k) / 9 if sort else np.array([k, 9 - k]) / 9
        for normalize, divisor in (("row", cost.max((1, 2))), ("batch", np.full(2, cost.max()))):
            operator = sorted_soft_topk if sort else soft_topk
            result = operator(scores, k, eps=0.1, normalize=normalize, largest=largest)
            for row in range(2):
                c = cost[row][:, ::-1] if largest else cost[row]
                plan = reference.sinkhorn_plan(
                    c / divisor[row], np.full(9, 1 / 9), nu, 0.1, 50_000, tol=1e-14
                )
                truth = 9 * (plan[:, :k] if sort else plan[:, 0])
                assert error(result[row], truth) <= 1e-10


def test_sinkhorn_warns_where_the_paper_stops_too_early():
    """200 iterations at the paper's MNIST setting are far from converged."""
    scores = torch.randn(20, 100)
    with pytest.warns(ConvergenceWarning, match="residual of") as caught:
        stopped = soft_topk(scores, 9, eps=1e-3, normalize="batch", solver="sinkhorn")
    assert caught[0].filename == __file__  # the caller's line, not one of ours
    exact = soft_topk(scores, 9, eps=1e-3, normalize="batch")
    assert (stopped - exact).abs().max() > 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        soft_topk(scores, 9, eps=1.0, normalize="batch", solver="sinkhorn")
