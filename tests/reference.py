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
    u = _newton(gaps / tau, u.astype(np.longdouble), tol=1e-16)

    plan = _plan(gaps / tau, u)
    columns = np.append(np.ones(cuts), x.size - cuts)
    bound = float(np.abs(plan.sum(0) - columns).sum() / 2)
    assert bound <= CERTIFIED, f"column sums leave an error of up to {bound:.1e} in the plan"
    return plan[:, : int(k)].astype(np.float64)


def _continuation(gaps: Array, tau: float) -> Array:
    """Thresholds at tau, divided by tau, found by halving the temperature from above the spread of the scores.

    Far above the spread, the thresholds are linear in the temperature t: the mean score, plus ``t log(n - k)`` for
    the last. Far below, they stand still. Extrapolating them linearly from the last two temperatures is right in
    both limits.
    """
    n, cuts = gaps.shape
    hot = max(2 * cuts * float(np.ptp(gaps[:, 0])), tau)
    last_t, last = 0.0, gaps.mean(0)
    rate = np.zeros(cuts)
    rate[-1] = np.log(n - cuts)
    for t in np.geomspace(hot, tau, 1 + int(np.ceil(np.log(hot / tau) / np.log(RATIO)))):
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
    for _ in range(100):
        if np.abs(gradient).max() <= tol:
            break
        hessian = np.triu(inside.astype(np.float64).T @ outside.astype(np.float64))
        hessian += np.triu(hessian, 1).T
        # A cut in a wide gap has no curvature and no gradient either: the ridge leaves it where it is.
        size = np.sqrt(hessian.diagonal() + 1e-15)
        scaled = hessian / np.outer(size, size)
        np.fill_diagonal(scaled, 1 + 1e-14)
        direction = -np.linalg.solve(scaled, gradient.astype(np.float64) / size) / size
        slope = gradient @ direction
        step = 1.0
        while True:
            trial = u + step * direction
            new = state(trial)
            if new[0] @ direction <= -slope / 2 or step < 1e-12:
                break
            step /= 2
        u, (gradient, inside, outside) = trial, new
        if LOG is not None: LOG.append((float(np.abs(gradient).max()), step))
    return u
LOG=None
RATIO=2
