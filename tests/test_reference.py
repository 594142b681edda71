"""The oracles of ``reference.py`` against each other, against the paper and against mpmath."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import reference
import torch
from reference import Array
from torch import Tensor

pytestmark = pytest.mark.slow

FAMILIES = sorted(reference.score_families(np.random.default_rng(0), 2))
PAPER = np.array([0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1])


def scores(family: str, n: int, seed: int = 0) -> Array:
    return reference.score_families(np.random.default_rng([seed, n]), n)[family]


def spread(x: Array) -> float:
    return float(np.ptp(x)) or 1.0


def sinkhorn(x: Array, anchors: Array, counts: Array, eps: float, scale: float = 1.0) -> Array:
    """Plan with unit row sums for squared distances, run to convergence."""
    cost = (x[:, None] - anchors) ** 2 / scale
    mu, nu = np.full(x.size, 1 / x.size), counts / x.size
    return x.size * reference.sinkhorn_plan(cost, mu, nu, eps, iterations=20_000, tol=1e-14)


# ----------------------------------------------------------------------------------------- Sinkhorn


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("k", [1, 3, 2.6, 8])
@pytest.mark.parametrize("eps", [0.2, 10.0])
def test_soft_topk_is_the_limit_of_sinkhorn(family: str, k: float, eps: float) -> None:
    x = scores(family, 9)
    eps *= spread(x)
    plan = sinkhorn(x, np.array([1.0, 0.0]), np.array([k, 9 - k]), eps)
    np.testing.assert_allclose(reference.soft_topk(x, k, eps)[0], plan[:, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("k", [1, 3, 6, 7])
@pytest.mark.parametrize("eps", [0.5, 10.0])
def test_sorted_soft_topk_is_the_limit_of_sinkhorn(family: str, k: int, eps: float) -> None:
    x = scores(family, 7)
    eps *= spread(x)
    plan = sinkhorn(x, np.arange(k, -1.0, -1.0), np.append(np.ones(k), 7 - k), eps)
    found = reference.sorted_soft_topk(x, k, eps)
    np.testing.assert_allclose(found, plan[:, :k], rtol=0, atol=1e-12)


def test_scale_divides_the_cost() -> None:
    x, eps, scale = scores("normal", 8), 0.3, 2.5
    plan = sinkhorn(x, np.array([1.0, 0.0]), np.array([3.0, 5.0]), eps, scale)
    found = reference.soft_topk(x, 3, eps, scale)[0]
    np.testing.assert_allclose(found, plan[:, 0], rtol=0, atol=1e-12)
    log_found = reference.log_soft_topk(x, 3, eps, scale)
    np.testing.assert_allclose(np.exp(log_found), found, rtol=1e-14)
    plan = sinkhorn(x, np.arange(3, -1.0, -1.0), np.array([1.0, 1.0, 1.0, 5.0]), eps, scale)
    found = reference.sorted_soft_topk(x, 3, eps, scale)
    np.testing.assert_allclose(found, plan[:, :3], rtol=0, atol=1e-12)


def test_sinkhorn_runs_as_many_iterations_as_asked() -> None:
    # One iteration in plain arithmetic, as Algorithm 1 has it.
    cost = (PAPER[:, None] - np.array([0.0, 1.0])) ** 2
    mu, nu, eps = np.full(7, 1 / 7), np.array([5 / 7, 2 / 7]), 0.5
    kernel = np.exp(-cost / eps)
    p = mu / (kernel @ np.array([0.5, 0.5]))
    q = nu / (kernel.T @ p)
    plan = reference.sinkhorn_plan(cost, mu, nu, eps, iterations=1)
    np.testing.assert_allclose(plan, p[:, None] * kernel * q, rtol=1e-13)


def test_sinkhorn_refuses_what_has_not_converged() -> None:
    cost = (PAPER[:, None] - np.array([0.0, 1.0])) ** 2
    with pytest.raises(AssertionError, match="after 20 iterations"):
        reference.sinkhorn_plan(
            cost, np.full(7, 1 / 7), np.array([5 / 7, 2 / 7]), 0.01, iterations=20, tol=1e-12
        )


# -------------------------------------------------------------------------------------- hard limits


@pytest.mark.parametrize("family", ["normal", "uniform", "cauchy", "clustered", "logsoftmax"])
@pytest.mark.parametrize("k", [1, 4, 4.3, 11])
def test_cold_soft_topk_is_the_linear_program(family: str, k: float) -> None:
    x = scores(family, 12)
    eps = np.diff(np.sort(x)).min() / 50
    hard = reference.topk_lp(x, k)
    np.testing.assert_allclose(reference.soft_topk(x, k, eps)[0], hard, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["normal", "uniform", "cauchy", "clustered", "logsoftmax"])
@pytest.mark.parametrize("k", [1, 4, 12])
def test_cold_sorted_soft_topk_is_the_linear_program(family: str, k: int) -> None:
    x = scores(family, 12)
    eps = np.diff(np.sort(x)).min() / 50
    hard = reference.sorted_topk_lp(x, k)
    np.testing.assert_allclose(reference.sorted_soft_topk(x, k, eps), hard, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(hard.argmax(0), np.argsort(-x)[:k])


def test_linear_program_with_ties_keeps_the_sums() -> None:
    x = np.array([1.0, 0.0, 1.0, 1.0, -1.0])
    a = reference.topk_lp(x, 2)
    np.testing.assert_allclose(a.sum(), 2, atol=1e-9)
    np.testing.assert_allclose(a[[1, 4]], 0, atol=1e-9)


def test_example_of_the_paper() -> None:
    smallest_five = np.array([1, 1, 0, 0, 1, 1, 1])
    smallest_two = np.zeros((7, 2))
    smallest_two[4, 0] = smallest_two[6, 1] = 1
    np.testing.assert_allclose(reference.topk_lp(-PAPER, 5), smallest_five, atol=1e-9)
    np.testing.assert_allclose(reference.sorted_topk_lp(-PAPER, 2), smallest_two, atol=1e-9)
    np.testing.assert_allclose(reference.soft_topk(-PAPER, 5, 0.02)[0], smallest_five, atol=1e-9)
    np.testing.assert_allclose(reference.sorted_soft_topk(-PAPER, 2, 0.02), smallest_two, atol=1e-3)
    # Figure 1 with the anchors as the paper has them: the smallest five go to 0.
    cost = (PAPER[:, None] - np.array([0.0, 1.0])) ** 2
    plan = reference.sinkhorn_plan(
        cost, np.full(7, 1 / 7), np.array([5 / 7, 2 / 7]), 0.3, iterations=20_000, tol=1e-14
    )
    soft = reference.soft_topk(-PAPER, 5, 0.3)[0]
    np.testing.assert_allclose(soft, 7 * plan[:, 0], rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------- mpmath


def mp_log_soft_topk(x: Array, k: float, eps: float) -> list[mpmath.mpf]:
    """Bisection in 50 digits on the masses that leave and enter the hard top-k."""
    exact, tau = [mpmath.mpf(v) for v in x.tolist()], mpmath.mpf(eps) / 2
    order = np.argsort(-x, kind="stable").tolist()
    held = [mpmath.mpf(0)] * x.size
    for rank, i in enumerate(order):
        held[i] = min(max(mpmath.mpf(k) - rank, mpmath.mpf(0)), mpmath.mpf(1))

    def excess(t: mpmath.mpf) -> mpmath.mpf:
        terms = []
        for v, share in zip(exact, held, strict=True):
            z = (v - t) / tau
            terms.append(
                -1 / (1 + mpmath.exp(z)) if share == 1 else 1 / (1 + mpmath.exp(-z)) - share
            )
        return mpmath.fsum(terms)

    logit = mpmath.log(mpmath.mpf(k) / (x.size - mpmath.mpf(k)))
    lo, hi = min(exact) - tau * (logit + 1), max(exact) - tau * (logit - 1)
    for _ in range(200):
        t = (lo + hi) / 2
        lo, hi = (t, hi) if excess(t) > 0 else (lo, t)
    return [-mpmath.log1p(mpmath.exp((lo - v) / tau)) for v in exact]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("eps", [1e-6, 1e-3, 0.1, 1e3])
@pytest.mark.parametrize("k", [2, 1.3])
def test_soft_topk_in_fifty_digits(family: str, eps: float, k: float) -> None:
    x = scores(family, 5)
    eps *= spread(x)
    with mpmath.workdps(50):
        log_a = mp_log_soft_topk(x, k, eps)
        expected = np.array([float(v) for v in log_a])
        a = np.array([float(mpmath.exp(v)) for v in log_a])
    np.testing.assert_allclose(reference.soft_topk(x, k, eps)[0], a, rtol=0, atol=2e-16)
    found = reference.log_soft_topk(x, k, eps)
    np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-300)


def mp_sorted_soft_topk(x: Array, k: int, eps: float) -> Array:
    """Sinkhorn's iteration on ``exp(2 x_i (k - j) / eps)`` in 50 digits, to 20 of them."""
    columns = [j for j in range(k + 1) if j < k or k < x.size]
    counts = [1 if j < k else x.size - k for j in columns]
    kernel = [
        [mpmath.exp(2 * mpmath.mpf(v) * (k - j) / mpmath.mpf(eps)) for j in columns]
        for v in x.tolist()
    ]
    q = [mpmath.mpf(1)] * len(columns)
    for _ in range(5000):
        p = [1 / mpmath.fdot(row, q) for row in kernel]
        sums = [mpmath.fdot(p, column) for column in zip(*kernel, strict=True)]
        last, q = q, [c / s for c, s in zip(counts, sums, strict=True)]
        if max(abs(b / a - 1) for a, b in zip(last, q, strict=True)) < mpmath.mpf(10) ** -25:
            break
    else:
        raise AssertionError("no convergence in 5000 iterations")
    plan = [
        [a * g * b for g, b in zip(row, q, strict=True)] for a, row in zip(p, kernel, strict=True)
    ]
    return np.array([[float(v) for v in row[:k]] for row in plan])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("eps", [0.2, 1.0, 1e3])
@pytest.mark.parametrize("k", [2, 5])
def test_sorted_soft_topk_in_fifty_digits(family: str, eps: float, k: int) -> None:
    x = scores(family, 5)
    eps *= spread(x)
    with mpmath.workdps(50):
        expected = mp_sorted_soft_topk(x, k, eps)
    np.testing.assert_allclose(reference.sorted_soft_topk(x, k, eps), expected, rtol=0, atol=1e-14)


# ------------------------------------------------------------------------------------- consistency


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("eps", [1e-4, 1e-2, 1.0, 1e3])
def test_sorted_with_one_rank_is_unsorted(family: str, eps: float) -> None:
    x = scores(family, 40)
    eps *= spread(x)
    np.testing.assert_allclose(
        reference.sorted_soft_topk(x, 1, eps)[:, 0],
        reference.soft_topk(x, 1, eps)[0],
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("eps", [1e-6, 1e-3, 1.0, 1e3])
@pytest.mark.parametrize("k", [1, 400, 123.75])
def test_selecting_the_rest_is_the_complement(family: str, eps: float, k: float) -> None:
    x = scores(family, 500)
    eps *= spread(x)
    a, t = reference.soft_topk(x, k, eps)
    rest, minus_t = reference.soft_topk(-x, x.size - k, eps)
    np.testing.assert_allclose(a, 1 - rest, rtol=0, atol=1e-15)
    np.testing.assert_allclose(t, -minus_t, rtol=1e-15, atol=1e-15 * eps)
    np.testing.assert_allclose(np.sum(a), k, rtol=1e-14)
    # log A - log (1 - A) = (x - t) / tau exactly, underflow or not.
    log_odds = reference.log_soft_topk(x, k, eps) - reference.log_soft_topk(-x, x.size - k, eps)
    np.testing.assert_allclose(log_odds * eps / 2, x - t, rtol=1e-13, atol=1e-13 * spread(x))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("eps", [1e-3, 1.0])
def test_a_tiny_k_is_kept_to_its_last_digits(family: str, eps: float) -> None:
    x = scores(family, 50)
    eps *= spread(x)
    np.testing.assert_allclose(reference.soft_topk(x, 1e-12, eps)[0].sum(), 1e-12, rtol=1e-14)
    # 50 - 2**-40 is a float64 number, so that the elements left out must hold exactly 2**-40.
    log_rest = reference.log_soft_topk(-x, 2.0**-40, eps)
    log_a = reference.log_soft_topk(x, 50 - 2.0**-40, eps)
    np.testing.assert_allclose(-np.expm1(log_a), np.exp(log_rest), rtol=1e-12, atol=1e-300)


def test_equal_scores_get_equal_shares() -> None:
    x = np.full(7, 3.25)
    np.testing.assert_allclose(reference.soft_topk(x, 2.5, 1e-6)[0], 2.5 / 7, rtol=1e-15)
    np.testing.assert_allclose(reference.sorted_soft_topk(x, 3, 1e-6), 1 / 7, rtol=1e-14)
    np.testing.assert_array_equal(reference.sorted_soft_topk(np.array([2.0]), 1, 0.1), [[1.0]])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("eps", "k"), [(1e-6, 33_333.25), (1e-2, 1000)])
def test_soft_topk_on_a_long_row(family: str, eps: float, k: float) -> None:
    x = scores(family, 100_000)
    a, _ = reference.soft_topk(x, k, eps * spread(x))
    np.testing.assert_allclose(np.sum(a, dtype=np.longdouble), k, rtol=0, atol=1e-12)
    assert (np.diff(a[np.argsort(x)]) >= 0).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("eps", [1e-4, 1e-2, 1.0, 1e3])
def test_sorted_soft_topk_on_a_long_row(family: str, eps: float) -> None:
    x = scores(family, 300)
    plan = reference.sorted_soft_topk(x, 32, eps * spread(x))
    np.testing.assert_allclose(plan.sum(0), 1, rtol=1e-13)
    assert plan.sum(1).max() <= 1 + 1e-14
    # The expected rank of a score must not fall as the score rises.
    weight = plan @ np.arange(32, 0.0, -1.0)
    assert (np.diff(weight[np.argsort(x)]) >= -1e-12).all()


# -------------------------------------------------------------------------------------- certificate


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("eps", [1e-2, 1.0])
def test_wrong_column_sums_bound_the_error_of_a_plan(family: str, eps: float) -> None:
    x = scores(family, 20)
    eps *= spread(x)
    exact = reference.sorted_soft_topk(x, 4, eps)
    gaps = 2 * (x[:, None] - np.sort(x)[::-1][:4]) / eps
    rng = np.random.default_rng(1)
    # log(P_ij / P_i,j+1) = gaps_ij - u_j, best read from a row where both are large.
    full = np.column_stack([exact, 1 - exact.sum(1)])
    best = np.minimum(full[:, :-1], full[:, 1:]).argmax(0)
    ratio = full[best, range(4)] / full[best, range(1, 5)]
    u = gaps[best, range(4)] - np.log(ratio)
    for size in (1e-6, 1e-2, 1.0, 10.0):
        wrong = reference._plan(gaps, u + size * rng.normal(size=4))
        bound = np.abs(wrong.sum(0) - [1, 1, 1, 1, 16]).sum() / 2
        assert np.abs(wrong - full).max() <= bound + 1e-12


def test_a_wrong_plan_is_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    newton = reference._newton
    monkeypatch.setattr(reference, "_newton", lambda gaps, u, tol: newton(gaps, u, tol) + 1e-9)
    with pytest.raises(AssertionError, match="column sums leave an error"):
        reference.sorted_soft_topk(scores("normal", 10), 3, 1.0)


@pytest.mark.parametrize("k", [0, 5, -1, 7.5])
def test_k_out_of_range_is_refused(k: float) -> None:
    with pytest.raises(ValueError, match="k must lie strictly between 0 and n = 5"):
        reference.soft_topk(np.arange(5.0), k, 0.1)


@pytest.mark.parametrize("k", [0, 6, 2.5])
def test_sorted_k_out_of_range_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match="k must be an integer from 1 to n = 5"):
        reference.sorted_soft_topk(np.arange(5.0), k, 0.1)


@pytest.mark.parametrize("x", [[[1.0, 2.0]], [1.0, np.nan, 0.0], [1.0, -np.inf, 0.0]])
def test_rows_are_finite(x: list[float]) -> None:
    for oracle in (reference.soft_topk, reference.sorted_soft_topk):
        with pytest.raises(ValueError, match="one row of finite scores"):
            oracle(x, 1, 0.1)


# -------------------------------------------------------------------------------------- derivatives


def test_numerical_jacobian_of_a_quintic_is_exact() -> None:
    # Two extrapolations remove the errors in h^2 and h^4: nothing is left but rounding.
    weights = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])
    x = np.array([0.3, -1.2, 0.8])
    found = reference.numerical_jacobian(lambda v: weights @ v**5, x, h=0.5)
    np.testing.assert_allclose(found, weights * 5 * x**4, rtol=1e-12)


def test_numerical_jacobian_keeps_shapes() -> None:
    x = np.arange(6.0).reshape(2, 3)
    found = reference.numerical_jacobian(lambda v: np.outer(v.sum(1), [1.0, 2.0, 3.0, 4.0]), x, 0.1)
    expected = np.einsum("ia,j,b->ijab", np.eye(2), np.arange(1.0, 5.0), np.ones(3))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert reference.numerical_jacobian(lambda v: v.sum(), x, 0.1).shape == (2, 3)


@pytest.mark.parametrize("eps", [0.1, 1.0, 10.0])
def test_numerical_jacobian_of_soft_topk(eps: float) -> None:
    x = scores("normal", 8)
    a, _ = reference.soft_topk(x, 3, eps)
    s = a * (1 - a)
    expected = (np.diag(s) - np.outer(s, s) / s.sum()) * 2 / eps
    found = reference.numerical_jacobian(lambda v: reference.soft_topk(v, 3, eps)[0], x, eps / 20)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


# --------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("n", [1, 2, 1000])
def test_score_families(n: int) -> None:
    rows = reference.score_families(np.random.default_rng(0), n)
    again = reference.score_families(np.random.default_rng(0), n)
    for name, x in rows.items():
        assert x.shape == (n,), name
        assert x.dtype == np.float64, name
        assert np.isfinite(x).all(), name
        np.testing.assert_array_equal(x, again[name])
    assert np.unique(rows["tied"]).size <= 4
    np.testing.assert_allclose(np.exp(rows["logsoftmax"]).sum(), 1)


# ------------------------------------------------------------------------------ for use by autograd


def unrolled_sinkhorn(x: Tensor, k: int, eps: float, iterations: int = 2000) -> Tensor:
    """Columns 0 to k-1 of the plan, by iterations that autograd sees."""
    n = len(x)
    log_kernel = -((x[:, None] - torch.arange(k, -1, -1)) ** 2) / eps
    log_nu = torch.log(torch.tensor([1.0] * k + [float(n - k)], dtype=x.dtype))
    log_q = torch.zeros_like(log_nu)
    for _ in range(iterations):
        log_p = -torch.logsumexp(log_kernel + log_q, 1)
        log_q = log_nu - torch.logsumexp(log_kernel + log_p[:, None], 0)
    return torch.exp(log_p[:, None] + log_kernel + log_q)[:, :k]


@pytest.mark.parametrize(("k", "eps"), [(1, 0.5), (3, 0.5), (3, 10.0), (6, 1.0)])
def test_gradient_of_sorted_soft_topk_is_that_of_sinkhorn(k: int, eps: float) -> None:
    x = torch.from_numpy(scores("normal", 6)).requires_grad_()
    weight = torch.from_numpy(np.random.default_rng(1).normal(size=(6, k)))
    found = reference.sorted_soft_topk_tensor(x, k, eps)
    expected = unrolled_sinkhorn(x, k, eps)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    (grad,) = torch.autograd.grad((weight * found).sum(), x)
    (expected_grad,) = torch.autograd.grad((weight * expected).sum(), x)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("family", ["normal", "clustered", "logsoftmax"])
@pytest.mark.parametrize("eps", [0.02, 0.3, 10.0])
@pytest.mark.parametrize("k", [2, 5])
def test_gradients_for_autograd_are_finite_differences(family: str, eps: float, k: int) -> None:
    x = scores(family, 7)
    tensor = torch.from_numpy(x).requires_grad_()
    for function, oracle in (
        (reference.sorted_soft_topk_tensor, reference.sorted_soft_topk),
        (reference.log_soft_topk_tensor, reference.log_soft_topk),
    ):
        value = function(tensor, k, eps)
        np.testing.assert_allclose(value.detach(), oracle(x, k, eps), rtol=1e-13, atol=1e-15)
        rows = [torch.autograd.grad(v, tensor, retain_graph=True)[0] for v in value.flatten()]
        found = torch.stack(rows).reshape(*value.shape, 7).numpy()
        expected = reference.numerical_jacobian(lambda v, f=oracle: f(v, k, eps), x, eps / 30)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8 / eps)


# -------------------------------------------------------------------------------------- beam search


def chain(seed: int, size: int = 5) -> tuple[reference.Step, Tensor]:
    """A Markov chain as a decoder: one-hot embeddings in, and one table of log p per position.

    The state is the position, of shape (1,).
    """
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randn(4, size, size, dtype=torch.float64, generator=generator).log_softmax(-1)
    return (lambda inputs, state: ((inputs @ tables[int(state)].exp()).log(), state + 1)), tables


EYE = torch.eye(5, dtype=torch.float64)
START = torch.tensor([0])


def test_exhaustive_search_of_a_chain_by_hand() -> None:
    step, (first, second, *_) = chain(0)
    found = reference.all_sequences(step, START, EYE, 2)
    expected = [((3,), first[2, 3])]
    expected += [((a, b), first[2, a] + second[a, b]) for a in (0, 1, 2, 4) for b in range(5)]
    expected.sort(key=lambda pair: -pair[1])
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    np.testing.assert_allclose([s for _, s in found], [float(s) for _, s in expected], rtol=1e-12)
    # All that ends, and all that is cut off, is all there is.
    np.testing.assert_allclose(sum(np.exp(s) for _, s in found), 1, rtol=1e-12)
    halved = dict(reference.all_sequences(step, START, EYE, 2, length_penalty=1.0))
    for tokens, score in found:
        np.testing.assert_allclose(halved[tokens], score / len(tokens), rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_cold_soft_beam_is_the_ordinary_one(seed: int) -> None:
    step, _ = chain(seed)
    soft = reference.soft_beam(step, START, EYE, 4, beam_size=3, eps=1e-6)
    hard = reference.hard_beam(step, START, EYE, 4, beam_size=3)
    assert [reference.until_end(h.tokens) for h in soft] == [tokens for tokens, _ in hard]
    np.testing.assert_allclose(
        [float(h.log_likelihood) for h in soft], [score for _, score in hard], rtol=1e-12
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_of_all_sequences_finds_the_best_ones(seed: int) -> None:
    step, _ = chain(seed)
    hard = reference.hard_beam(step, START, EYE, 3, beam_size=125)
    assert [t for t, _ in hard] == [t for t, _ in reference.all_sequences(step, START, EYE, 3)]


def test_membership_is_one_as_long_as_all_fit() -> None:
    step, _ = chain(0)
    nats, events = reference.membership_nats(step, START, EYE, [1, 4, 3], beam_size=200, eps=1.0)
    assert float(nats) == 0
    assert events == ["kept", "kept with finished", "kept with finished"]
    # A cold operator makes no secret of it when gold falls off: it is 2 / eps nats per nat below.
    nats, events = reference.membership_nats(step, START, EYE, [0, 3], beam_size=1, eps=1e-3)
    assert events[0] == "restarted"
    assert float(nats) > 10
