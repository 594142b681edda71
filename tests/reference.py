"""Slow, independent oracles for the soft top-k operators.

Everything here works on one row of scores, takes and returns numpy float64 arrays, and shares neither code nor
solver with the package. Throughout, ``tau = eps * scale / 2``, where ``scale`` is what the cost matrix is
divided by, and the *largest* scores are selected; negate the scores for the smallest.

Inner solves use ``np.longdouble`` (64-bit mantissa on x86). The accuracies stated below were measured there,
against 50-digit mpmath solutions of the defining equations; ``test_reference.py`` repeats a part of it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog
from scipy.special import expit, log_expit, log_softmax, logsumexp

Array = NDArray[np.float64]
LongArray = NDArray[np.longdouble]
Real = NDArray[np.float64] | NDArray[np.longdouble]

LONG_EPS = float(np.finfo(np.longdouble).eps)

# Bound on the error of every entry of a sorted plan that `sorted_soft_topk` certifies before it returns.
CERTIFIED = 1e-12


# ---------------------------------------------------------------------------------------------- unsorted


def soft_topk(x: ArrayLike, k: float, eps: float, scale: float = 1.0) -> tuple[Array, float]:
    """Soft indicator of the k largest scores: ``(n,) -> (n,)``, and its threshold.

    Problem: ``A_i = sigmoid((x_i - t) / tau)`` with ``t`` such that ``sum_i A_i = k``, real ``0 < k < n``.

    Method: bisection on ``t``, see `_threshold`; the last stage is in longdouble.

    Accuracy: see the table in `_threshold`. The returned ``t`` is rounded to float64, so where ``tau`` is tiny
    beside ``|t|`` it does not reproduce ``A``: compare ``A`` or `log_soft_topk` there.
    """
    x, tau = _check(x, k, eps, scale)
    d, u, centre = _threshold(x, k, tau)
    return expit(d - u).astype(np.float64), float(centre + tau * u)


def log_soft_topk(x: ArrayLike, k: float, eps: float, scale: float = 1.0) -> Array:
    """Logarithm of `soft_topk`, right also where ``A`` underflows: ``(n,) -> (n,)``."""
    x, tau = _check(x, k, eps, scale)
    d, u, _ = _threshold(x, k, tau)
    return log_expit(d - u).astype(np.float64)


def _check(x: ArrayLike, k: float, eps: float, scale: float) -> tuple[Array, np.longdouble]:
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 1 or not np.isfinite(x).all():
        raise ValueError(f"x must be one row of finite scores, got shape {x.shape}")
    if not 0 < k < x.size:
        raise ValueError(f"k must lie strictly between 0 and n = {x.size}, got {k}")
    return x, np.longdouble(eps) * np.longdouble(scale) / 2


def _threshold(x: Array, k: float, tau: np.longdouble) -> tuple[LongArray, np.longdouble, float]:
    """Scaled scores ``d = (x - centre) / tau`` and the root ``u`` of ``sum_i sigmoid(d_i - u) = k``.

    The centre is the score at which the selection is cut, so that d is exact where the sigmoid is not flat.
    The bracket is rigorous: with all scores at the smallest (largest) one, the root would be
    ``min d - logit(k/n)`` (``max d - logit(k/n)``). Float64 halves it down to its own rounding, longdouble verifies
    what is left, widens it if float64 was wrong about a sign, and halves on to its own rounding.
    """
    n, cut = x.size, int(np.ceil(k)) - 1
    order = np.argsort(-x, kind="stable")
    centre = float(x[order[cut]])
    d = (x.astype(np.longdouble) - centre) / tau
    logit = np.log(np.longdouble(k)) - np.log(n - np.longdouble(k))
    lo, hi = d.min() - logit - 1, d.max() - logit + 1

    # Elements so far from the cut that all n of them together weigh less than exp(-100) of their neighbours there.
    ranked = d[order]
    reach = 100 + np.log(n)
    selected = ranked > ranked[cut] + reach
    rejected = ranked < ranked[int(np.floor(k))] - reach
    ranked = ranked[~selected & ~rejected]
    k -= int(selected.sum())

    ranked64 = ranked.astype(np.float64)
    while hi - lo > 1e-13 * (1 + max(abs(lo), abs(hi))):
        u = (lo + hi) / 2
        lo, hi = (u, hi) if _excess(ranked64, np.float64(u), k) > 0 else (lo, u)

    width = hi - lo
    while _excess(ranked, lo - width, k) < 0 or _excess(ranked, hi + width, k) > 0:
        width *= 8
    lo, hi = lo - width, hi + width
    while hi - lo > 2 * LONG_EPS * (1 + max(abs(lo), abs(hi))):
        u = (lo + hi) / 2
        lo, hi = (u, hi) if _excess(ranked, u, k) > 0 else (lo, u)
    return d, (lo + hi) / 2, centre


def _excess(d: Real, u: np.floating, k: float) -> np.floating:
    """A number with the sign of ``sum_i sigmoid(d_i - u) - k``, for d in descending order.

    The sum itself is not formed: its rounding would hide everything below k * 1e-19, and the threshold of a cold
    row hangs on masses like exp(-1e6). Instead each sigmoid is compared with the hard top-k. A whole k leaves two
    tails to compare, both divided by their largest term where that may underflow. A fractional k leaves in
    addition one element that holds a fraction.
    """
    whole = int(np.floor(k))
    fraction = d.dtype.type(k - whole)
    if fraction == 0:
        into_rest, out_of_top = d[whole:] - u, u - d[:whole]
        largest = max(into_rest[0], out_of_top[-1])
        if largest < -100:  # here sigmoid(z) = exp(z) to the last bit
            return np.exp(into_rest - largest).sum() - np.exp(out_of_top - largest).sum()
        return expit(into_rest).sum() - expit(out_of_top).sum()
    z = d[whole] - u
    held = expit(z) - fraction if fraction < 0.5 else (1 - fraction) - expit(-z)
    return held + expit(d[whole + 1 :] - u).sum() - expit(u - d[:whole]).sum()


# ------------------------------------------------------------------------------------------------ sorted


def sorted_soft_topk(x: ArrayLike, k: int, eps: float, scale: float = 1.0) -> Array:
    """Soft indicators of ranks 1 to k, largest first: ``(n,) -> (n, k)``.

    Problem: the plan ``P (n, k+1)`` whose rows are softmaxes over j of ``sum_{j <= l < k} (x_i - theta_l) / tau``
    (0 for j = k), with thresholds theta such that columns 0 to k-1 sum to 1 and the last one to n - k.
    For k = n the last column is empty: the rows are softmaxes over n ranks with n - 1 thresholds.

    Method: the thresholds minimise a smooth convex function (the semi-dual of the transport problem), whose
    gradient is the violation of the column sums. Newton's method with a line search, in float64, follows the
    minimiser from a temperature above the spread of the scores down to tau; longdouble Newton steps finish.

    Certificate: the plan has the right form and row sums by construction. If its column sums are off by v_j, then
    every entry is off by at most ``sum_j |v_j| / 2``: moving the column sums moves the plan like currents through
    a network of resistors with conductances P_ij, and no wire carries more than the current fed in. The function
    raises AssertionError unless this bound is below `CERTIFIED`.
    """
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 1 or not np.isfinite(x).all():
        raise ValueError(f"x must be one row of finite scores, got shape {x.shape}")
    if not 1 <= k <= x.size or k != int(k):
        raise ValueError(f"k must be an integer from 1 to n = {x.size}, got {k}")
    if x.size == 1:
        return np.ones((1, 1))
    tau = np.longdouble(eps) * np.longdouble(scale) / 2
    cuts = min(int(k), x.size - 1)

    # Threshold l is sought relative to the l-th largest score, so that differences near it are exact.
    centres = np.sort(x)[::-1][:cuts].astype(np.longdouble)
    gaps = x[:, None] - centres
    u = _continuation(gaps.astype(np.float64), float(tau))
    u = _newton(gaps / tau, u.astype(np.longdouble), tol=gaps.size * LONG_EPS)

    plan = _plan(gaps / tau, u)
    columns = np.append(np.ones(cuts), x.size - cuts)
    bound = float(np.abs(plan.sum(0) - columns).sum() / 2)
    assert bound <= CERTIFIED, f"column sums leave an error of up to {bound:.1e} in the plan"
    return plan[:, : int(k)].astype(np.float64)


def _continuation(gaps: Array, tau: float) -> Array:
    """Thresholds at tau, divided by tau, found by lowering the temperature threefold at a time.

    Far above the spread, the thresholds are linear in the temperature t: the mean score, plus ``t log(n - k)`` for
    the last. Far below, they stand still. Extrapolating them linearly from the last two temperatures is right in
    both limits.
    """
    n, cuts = gaps.shape
    # Ranks 0 and k are k steps apart, so that k times the spread is what "far above" has to exceed.
    hot = max(2 * cuts * float(np.ptp(gaps[:, 0])), tau)
    last_t, last = 0.0, gaps.mean(0)
    rate = np.zeros(cuts)
    rate[-1] = np.log(n - cuts)
    for t in np.geomspace(hot, tau, 1 + int(np.ceil(np.log(hot / tau) / np.log(3)))):
        start = last + rate * (t - last_t)
        now = t * _newton(gaps / t, start / t, tol=1e-3)
        rate = (now - last) / (t - last_t)
        last_t, last = t, now
    return _newton(gaps / tau, last / tau, tol=1e-11)


def _plan(gaps: Real, u: Real) -> Real:
    """Row-wise softmax of the suffix sums of ``gaps - u``: ``(n, cuts), (cuts,) -> (n, cuts + 1)``.

    Sums run outwards from each row's largest entry, because there the steps are small and nothing cancels; suffix
    sums from the last rank would carry the rounding of all the large steps passed on the way.
    """
    steps = gaps - u
    none = np.zeros((steps.shape[0], 1), dtype=steps.dtype)
    suffix = np.hstack([np.cumsum(steps[:, ::-1], axis=1)[:, ::-1], none])
    before = np.arange(steps.shape[1]) < suffix.argmax(1)[:, None]
    left = np.cumsum(np.where(before, steps, 0)[:, ::-1], axis=1)[:, ::-1]
    right = np.cumsum(np.where(before, 0, steps), axis=1)
    logits = np.hstack([left, none]) - np.hstack([none, right])
    plan = np.exp(logits - logits.max(1, keepdims=True))
    return plan / plan.sum(1, keepdims=True)


def _newton(gaps: Real, u: Real, tol: float) -> Real:
    """Thresholds u at which the plan's column sums are right within tol, from a start: ``(cuts,) -> (cuts,)``.

    With ``M_il = P(rank_i <= l)``, the semi-dual has gradient ``l + 1 - sum_i M_il`` and Hessian
    ``sum_i M_i,min(j,l) (1 - M_i,max(j,l))``. The Hessian is only ever needed in float64.
    """
    target = np.arange(1, u.size + 1)

    def state(u: Real) -> tuple[Real, Real, Real]:
        plan = _plan(gaps, u)
        inside = np.cumsum(plan, axis=1)[:, :-1]
        outside = np.cumsum(plan[:, ::-1], axis=1)[:, ::-1][:, 1:]
        return target - inside.sum(0), inside, outside

    gradient, inside, outside = state(u)
    for _ in range(50):
        if np.abs(gradient).max() <= tol:
            return u
        hessian = np.triu(inside.astype(np.float64).T @ outside.astype(np.float64))
        hessian += np.triu(hessian, 1).T
        # A cut in a wide gap has neither curvature nor gradient: the ridge leaves it where it is.
        size = np.sqrt(hessian.diagonal() + 1e-15)
        scaled = hessian / np.outer(size, size)
        np.fill_diagonal(scaled, 1 + 1e-14)
        direction = -np.linalg.solve(scaled, gradient.astype(np.float64) / size) / size
        # Along the direction, the derivative of a convex function only grows. Values would be useless here: near
        # the minimum their differences drown in rounding long before the gradient does.
        slope = gradient @ direction
        step = 1.0
        while (new := state(u + step * direction))[0] @ direction > -slope / 2:
            step /= 2
            assert step > 1e-12, "the Newton direction is not one of descent"
        u, (gradient, inside, outside) = u + step * direction, new
    raise AssertionError(f"column sums are still off by {np.abs(gradient).max():.1e} after 50 Newton steps")


# ------------------------------------------------------------------------------------ transport problems


def sinkhorn_plan(
    cost: ArrayLike,
    mu: ArrayLike,
    nu: ArrayLike,
    eps: float,
    iterations: int = 1000,
    tol: float | None = None,
) -> Array:
    """Entropic transport plan by Sinkhorn's iteration: ``(n, m), (n,), (m,) -> (n, m)``.

    Problem: ``argmin <C, G> + eps sum_ij G_ij log G_ij`` over plans G with row sums mu and column sums nu. Entries
    of mu and nu may be zero.

    Method: Algorithm 1 of the paper, row update then column update, on the logarithms of p and q in float64.
    Without ``tol``, exactly so many iterations. With it, iterations stop as soon as no row or column sum is off by
    more than ``tol``, and AssertionError is raised if that takes more than ``iterations``.

    Accuracy: column sums are right to rounding; every entry is within half of the summed violation of the row
    sums (the bound of `sorted_soft_topk`), plus the rounding of ``max |C| / eps``, which float64 cannot avoid.
    """
    log_kernel = -np.asarray(cost, dtype=np.float64) / eps
    mu, nu = np.asarray(mu, dtype=np.float64), np.asarray(nu, dtype=np.float64)
    with np.errstate(divide="ignore"):
        log_mu, log_nu = np.log(mu), np.log(nu)
    log_q = np.full(nu.shape, -np.log(nu.size))
    violation = np.inf
    for _ in range(iterations):
        log_p = log_mu - logsumexp(log_kernel + log_q, axis=1)
        log_q = log_nu - logsumexp(log_kernel + log_p[:, None], axis=0)
        if tol is None:
            continue
        plan = np.exp(log_p[:, None] + log_kernel + log_q)
        violation = max(np.abs(plan.sum(1) - mu).max(), np.abs(plan.sum(0) - nu).max())
        if violation <= tol:
            return plan
    assert tol is None, f"row sums are still off by {violation:.1e} after {iterations} iterations"
    return np.exp(log_p[:, None] + log_kernel + log_q)


def topk_lp(x: ArrayLike, k: float) -> Array:
    """Hard indicator of the k largest scores, by linear programming: ``(n,) -> (n,)``.

    Problem: the unregularised transport of n scores to the anchors 1 (k of them) and 0 (n - k) at squared
    distance; the share of each score that goes to anchor 1. k may be real. Where scores tie at the cut, the
    solution is not unique and this is one of them.

    Method: scipy's HiGHS on centred scores of spread 1, which have the same solutions. Scores that differ by
    less than about 1e-9 of the spread count as tied.
    """
    x = np.asarray(x, dtype=np.float64)
    return _transport_lp(x, np.array([1.0, 0.0]), np.array([k, x.size - k]))[:, 0]


def sorted_topk_lp(x: ArrayLike, k: int) -> Array:
    """Hard indicators of ranks 1 to k, largest first, by linear programming: ``(n,) -> (n, k)``.

    Problem: transport to the anchors k, ..., 1 (one score each) and 0 (the other n - k). As `topk_lp` otherwise.
    """
    x = np.asarray(x, dtype=np.float64)
    anchors = np.arange(k, -1.0, -1.0)
    return _transport_lp(x, anchors, np.append(np.ones(k), x.size - k))[:, :k]


def _transport_lp(x: Array, anchors: Array, columns: Array) -> Array:
    """Plan with unit row sums and the given column sums that minimises ``(x_i - anchor_j)^2``."""
    n, m = x.size, anchors.size
    scores = (x - x.mean()) / (np.ptp(x) or 1.0)
    cost = (scores[:, None] - anchors) ** 2
    rows = scipy.sparse.kron(scipy.sparse.eye(n), np.ones((1, m)))
    cols = scipy.sparse.kron(np.ones((1, n)), scipy.sparse.eye(m))
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    result = linprog(
        cost.ravel(),
        A_eq=scipy.sparse.vstack([rows, cols]).tocsr(),
        b_eq=np.concatenate([np.ones(n), columns]),
        options=tight,
    )
    assert result.status == 0, result.message
    return result.x.reshape(n, m)


# -------------------------------------------------------------------------------------- derivatives, data


def numerical_jacobian(f: Callable[[Array], ArrayLike], x: ArrayLike, h: float) -> Array:
    """Jacobian of f at x by finite differences, of shape ``f(x).shape + x.shape``.

    Method: central differences at h, h/2 and h/4, extrapolated twice (Richardson), so that the error is
    ``O(h^6)`` plus about ten times the rounding of f divided by h. For an operator at temperature tau,
    ``h = tau / 10`` leaves about 1e-9 of the largest entry when f is right to rounding.
    """
    x = np.asarray(x, dtype=np.float64)
    columns = []
    for index in np.ndindex(x.shape):
        table = []
        for step in (h, h / 2, h / 4):
            up, down = x.copy(), x.copy()
            up[index] += step
            down[index] -= step
            rise = np.asarray(f(up), dtype=np.float64) - np.asarray(f(down), dtype=np.float64)
            table.append(rise / (up[index] - down[index]))
        fine, finer = (4 * table[1] - table[0]) / 3, (4 * table[2] - table[1]) / 3
        columns.append((16 * finer - fine) / 15)
    jacobian = np.stack(columns, axis=-1)
    return jacobian.reshape(jacobian.shape[:-1] + x.shape)


def score_families(rng: np.random.Generator, n: int) -> dict[str, Array]:
    """Rows of n scores that between them are awkward in most of the ways scores can be: name -> ``(n,)``."""
    levels = rng.normal(size=4)
    clusters = 10.0 * rng.permutation(5)
    return {
        "normal": rng.normal(size=n),
        "uniform": rng.uniform(size=n),
        "cauchy": rng.standard_cauchy(size=n),
        "tied": rng.choice(levels, size=n),
        "clustered": rng.choice(clusters, size=n) + 1e-3 * rng.normal(size=n),
        "logsoftmax": log_softmax(3 * rng.normal(size=n)),
    }
