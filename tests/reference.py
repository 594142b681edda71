"""Slow, independent oracles for the soft top-k operators and for training with beam search.

Everything here works on one row of scores, or one sentence, and shares neither code nor solver with
the package. The oracles of the operators take and return numpy float64 arrays; those of the beam
search are written in torch, so that autograd gives their gradients. Throughout,
``tau = eps * scale / 2``, where ``scale`` is what the cost matrix is divided by, and the *largest*
scores are selected; negate the scores for the smallest.

Inner solves use ``np.longdouble``. The accuracies stated below were measured on x86, where its
mantissa has 64 bits, against 50-digit mpmath solutions of the defining equations;
``test_reference.py`` repeats a part of that. An oracle that cannot vouch for its answer raises
AssertionError.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import lru_cache, wraps
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog
from scipy.special import expit, log_expit, log_softmax, logsumexp
from torch import Tensor

Array = NDArray[np.float64]
Real = NDArray[np.floating[Any]]  # float64 or longdouble

LONG_EPS = float(np.finfo(np.longdouble).eps)

# What `sorted_soft_topk` certifies: no entry of its result is off by more than this.
CERTIFIED = 1e-12


def _row(x: ArrayLike) -> Array:
    scores = np.asarray(x, dtype=np.float64)
    if scores.ndim != 1 or not np.isfinite(scores).all():
        raise ValueError(f"x must be one row of finite scores, got {x!r}")
    return scores


def _tau(eps: float, scale: float) -> np.longdouble:
    return np.longdouble(eps) * np.longdouble(scale) / 2


# ----------------------------------------------------------------------------------------- unsorted


def _computed_once(oracle: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the last results for a row of float64 scores: most are asked for once for each path."""

    @lru_cache(maxsize=1000)
    def result(row: bytes, *arguments: float) -> Any:
        return oracle(np.frombuffer(row), *arguments)

    @wraps(oracle)
    def copy(x: ArrayLike, *arguments: float) -> Any:
        return deepcopy(result(_row(x).tobytes(), *arguments))

    return copy


@_computed_once
def soft_topk(x: ArrayLike, k: float, eps: float, scale: float = 1.0) -> tuple[Array, float]:
    """Soft indicator of the k largest scores: ``(n,) -> (n,)``, and its threshold.

    Problem: ``A_i = sigmoid((x_i - t) / tau)`` with t such that ``sum_i A_i = k``, for real k with
    ``0 < k < n``.

    Method: bisection on t, see `_threshold`.

    Accuracy: the last bit of A (6e-17) for n up to 9, whole and fractional k, eps from 1e-6 to 1e3
    times the spread and every family of `score_families`. For n = 1e5 the sum of A, evaluated with
    mpmath, is within 3e-15 of k; no entry can be off by more than the sum is. The returned t is
    rounded to float64: where tau is tiny beside ``|t|`` it does not reproduce A.
    """
    d, u, centre, tau = _threshold(x, k, eps, scale)
    return np.asarray(expit(d - u), dtype=np.float64), float(centre + tau * u)


@_computed_once
def log_soft_topk(x: ArrayLike, k: float, eps: float, scale: float = 1.0) -> Array:
    """Logarithm of `soft_topk`, right also where A underflows: ``(n,) -> (n,)``.

    Problem and method: those of `soft_topk`.

    Accuracy: the last bit (1.2e-16 relative) in the same trials, down to log A = -1e6 and, where A
    rounds to 1, up to log A = -1e-300.
    """
    d, u, _, _ = _threshold(x, k, eps, scale)
    return np.asarray(log_expit(d - u), dtype=np.float64)


def _threshold(
    x: ArrayLike, k: float, eps: float, scale: float
) -> tuple[Real, np.longdouble, float, np.longdouble]:
    """Root u of ``sum_i sigmoid(d_i - u) = k`` with ``d = (x - centre) / tau``: d, u, centre, tau.

    The centre is the score at which the selection is cut, so that d is exact where the sigmoid is
    not flat. The bracket is rigorous: with all scores at the smallest (largest) one, the root would
    be ``min d - logit(k/n)`` (``max d - logit(k/n)``). Float64 halves it down to its own rounding,
    longdouble verifies what is left, widens it if float64 was wrong about a sign, and halves on to
    its own rounding.
    """
    scores, tau = _row(x), _tau(eps, scale)
    n, cut = scores.size, int(np.ceil(k)) - 1
    if not 0 < k < n:
        raise ValueError(f"k must lie strictly between 0 and n = {n}, got {k}")
    order = np.argsort(-scores, kind="stable")
    centre = float(scores[order[cut]])
    d = (scores.astype(np.longdouble) - centre) / tau
    logit = np.log(np.longdouble(k)) - np.log(n - np.longdouble(k))
    lo, hi = d.min() - logit - 1, d.max() - logit + 1

    # Leave out elements so far from the cut that all of them together weigh less than exp(-100) of
    # the element next to it. Only the tails of the others decide.
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
    return d, (lo + hi) / 2, centre, tau


def _excess(d: Real, u: np.floating[Any], k: float) -> np.floating[Any]:
    """Return a number with the sign of ``sum_i sigmoid(d_i - u) - k``, d descending.

    The sum itself is not formed: its rounding would hide everything below k * 1e-19, and the
    threshold of a cold row hangs on masses like exp(-1e6). Instead each sigmoid is compared with
    the hard top-k. A whole k leaves two tails to compare, both divided by their largest term where
    that may underflow. A fractional k leaves in addition one element that holds a fraction.
    """
    whole = int(np.floor(k))
    fraction = d.dtype.type(k - whole)
    if fraction == 0:
        into_rest, out_of_top = d[whole:] - u, u - d[:whole]
        largest = max(into_rest[0], out_of_top[-1])
        if largest < -100:  # here sigmoid(z) = exp(z) to the last bit
            return np.sum(np.exp(into_rest - largest)) - np.sum(np.exp(out_of_top - largest))
        return np.sum(expit(into_rest)) - np.sum(expit(out_of_top))
    z = d[whole] - u
    held = expit(z) - fraction if fraction < 0.5 else (1 - fraction) - expit(-z)
    return held + np.sum(expit(d[whole + 1 :] - u)) - np.sum(expit(u - d[:whole]))


# ------------------------------------------------------------------------------------------- sorted


@_computed_once
def sorted_soft_topk(x: ArrayLike, k: int, eps: float, scale: float = 1.0) -> Array:
    """Soft indicators of ranks 1 to k, largest first: ``(n,) -> (n, k)``.

    Problem: the plan P of shape ``(n, k + 1)`` whose rows are softmaxes over j of

        ``L_ij = sum_{j <= l < k} (x_i - theta_l) / tau``   (``L_ik = 0``)

    with thresholds theta such that columns 0 to k-1 sum to 1 and the last one to n - k. For k = n
    the last column is empty: the rows are softmaxes over n ranks with n - 1 thresholds.

    Method: the thresholds minimise a smooth convex function (the semi-dual of the transport
    problem), whose gradient is the violation of the column sums. Newton's method with a line
    search, in float64, follows the minimiser from a temperature above the spread of the scores down
    to tau; longdouble Newton steps finish.

    Certificate: the plan has the right form and row sums by construction. If its column sums are
    off by v_j, then every entry is off by at most ``sum_j |v_j| / 2``: moving the column sums moves
    the plan like currents through a network of resistors with conductances P_ij, and no wire
    carries more than the current fed in. AssertionError is raised unless this bound is below
    `CERTIFIED`.

    Accuracy: 2e-15 for (n, k) up to (30, 8), k = n included, eps from 1e-6 to 1e3 times the spread
    and every family of `score_families`. For (2000, 64), the bound evaluated with mpmath is 9e-15.
    The certificate held in 35,000 random problems with n up to 400, k up to 100 and eps from 1e-6
    to 1e4 times the spread.
    """
    return _sorted_plan(x, k, eps, scale)[:, : int(k)].astype(np.float64)


def _sorted_plan(x: ArrayLike, k: int, eps: float, scale: float) -> Real:
    """The plan of `sorted_soft_topk`, with the column of the rest if k < n."""
    scores, tau = _row(x), _tau(eps, scale)
    n = scores.size
    if not 1 <= k <= n or k != int(k):
        raise ValueError(f"k must be an integer from 1 to n = {n}, got {k}")
    if n == 1:
        return np.ones((1, 1))
    cuts = min(int(k), n - 1)

    # Threshold l is sought relative to the l-th largest score: differences near it are exact.
    centres = np.sort(scores)[::-1][:cuts].astype(np.longdouble)
    gaps = scores[:, None] - centres
    start = _continuation(gaps.astype(np.float64), float(tau))
    u = _newton(gaps / tau, start.astype(np.longdouble), tol=5e-15)

    plan = _plan(gaps / tau, u)
    columns = np.append(np.ones(cuts), n - cuts)
    bound = float(np.abs(plan.sum(0) - columns).sum() / 2)
    assert bound <= CERTIFIED, f"column sums leave an error of up to {bound:.1e} in the plan"
    return plan


def _continuation(gaps: Array, tau: float) -> Real:
    """Thresholds at tau, divided by tau, found by lowering the temperature threefold at a time.

    Far above the spread, the thresholds are linear in the temperature t: the mean score, plus ``t
    log(n - k)`` for the last. Far below, they stand still. Extrapolating them linearly from the
    last two temperatures is right in both limits.
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
    return last / tau


def _plan(gaps: Real, u: Real) -> Real:
    """Row-wise softmax of the suffix sums of ``gaps - u``: ``(n, cuts), (cuts,) -> (n, cuts + 1)``.

    Sums run outwards from each row's largest entry, because there the steps are small and nothing
    cancels; suffix sums from the last rank would carry the rounding of all the large steps passed
    on the way.
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
    """Move thresholds u until the column sums are right within tol: ``(cuts,) -> (cuts,)``.

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
        root = np.sqrt(hessian.diagonal() + 1e-15)
        scaled = hessian / np.outer(root, root)
        np.fill_diagonal(scaled, 1 + 1e-14)
        direction = -np.linalg.solve(scaled, gradient.astype(np.float64) / root) / root
        # Along the direction, the derivative of a convex function only grows. Values would be
        # useless: near the minimum their differences drown in rounding long before the gradient.
        slope, largest = gradient @ direction, np.abs(gradient).max()
        step = 1.0
        while True:
            new = state(u + step * direction)
            # The second condition is for the end, where the noise of a gap may outweigh the slope.
            if new[0] @ direction <= -slope / 2 or np.abs(new[0]).max() <= largest / 2:
                break
            step /= 2
            assert step > 1e-12, "the Newton direction is not one of descent"
        u, (gradient, inside, outside) = u + step * direction, new
    raise AssertionError(
        f"column sums are still off by {np.abs(gradient).max():.1e} after 50 Newton steps"
    )


# ------------------------------------------------------------------------------- transport problems


def sinkhorn_plan(
    cost: ArrayLike,
    mu: ArrayLike,
    nu: ArrayLike,
    eps: float,
    iterations: int = 1000,
    tol: float | None = None,
) -> Array:
    """Entropic transport plan by Sinkhorn's iteration: ``(n, m), (n,), (m,) -> (n, m)``.

    Problem: ``argmin <C, G> + eps sum_ij G_ij log G_ij`` over plans G with row sums mu and column
    sums nu. Entries of mu and nu may be zero.

    Method: Algorithm 1 of the paper, row update then column update, on the logarithms of p and q in
    float64. Without ``tol``, exactly so many iterations. With it, iterations stop as soon as no row
    or column sum is off by more than ``tol``, and AssertionError is raised if that takes more than
    ``iterations``.

    Accuracy: column sums are right to rounding; every entry is within half of the summed violation
    of the row sums (the bound of `sorted_soft_topk`), plus the rounding of ``max |C| / eps``, which
    float64 cannot avoid.
    """
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    log_kernel = -np.asarray(cost, dtype=np.float64) / eps
    rows, columns = np.asarray(mu, dtype=np.float64), np.asarray(nu, dtype=np.float64)
    with np.errstate(divide="ignore"):
        log_mu, log_nu = np.log(rows), np.log(columns)
    log_q = np.full(columns.shape, -np.log(columns.size))
    violation = np.inf
    for _ in range(iterations):
        log_p = log_mu - logsumexp(log_kernel + log_q, axis=1)
        log_q = log_nu - logsumexp(log_kernel + log_p[:, None], axis=0)
        if tol is None:
            continue
        plan = np.exp(log_p[:, None] + log_kernel + log_q)
        violation = max(np.abs(plan.sum(1) - rows).max(), np.abs(plan.sum(0) - columns).max())
        if violation <= tol:
            return plan
    assert tol is None, f"row sums are still off by {violation:.1e} after {iterations} iterations"
    return np.exp(log_p[:, None] + log_kernel + log_q)


def topk_lp(x: ArrayLike, k: float) -> Array:
    """Hard indicator of the k largest scores, by linear programming: ``(n,) -> (n,)``.

    Problem: the unregularised transport of n scores to the anchors 1 (k of them) and 0 (n - k) at
    squared distance; the share of each score that goes to anchor 1. k may be real. Where scores tie
    at the cut, the solution is not unique and this is one of them.

    Method: scipy's HiGHS on centred scores of spread 1, which have the same solutions. Scores that
    differ by less than about 1e-9 of the spread count as tied.
    """
    scores = _row(x)
    return _transport_lp(scores, np.array([1.0, 0.0]), np.array([k, scores.size - k]))[:, 0]


def sorted_topk_lp(x: ArrayLike, k: int) -> Array:
    """Hard indicators of ranks 1 to k, largest first, by linear programming: ``(n,) -> (n, k)``.

    Problem: transport to the anchors k, ..., 1 (one score each) and 0 (the other n - k). As
    `topk_lp` otherwise.
    """
    scores = _row(x)
    anchors = np.arange(k, -1.0, -1.0)
    return _transport_lp(scores, anchors, np.append(np.ones(k), scores.size - k))[:, :k]


def _transport_lp(scores: Array, anchors: Array, columns: Array) -> Array:
    """Plan of unit row sums and given column sums at least cost ``(scores_i - anchors_j)^2``."""
    n, m = scores.size, anchors.size
    unit = (scores - scores.mean()) / (np.ptp(scores) or 1.0)
    cost = (unit[:, None] - anchors) ** 2
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


# -------------------------------------------------------------------------------- derivatives, data


def numerical_jacobian(f: Callable[[Array], ArrayLike], x: ArrayLike, h: float) -> Array:
    """Jacobian of f at x by finite differences, of shape ``f(x).shape + x.shape``.

    Method: central differences at h, h/2 and h/4, extrapolated twice (Richardson), so that the
    error is ``O(h^6)`` plus about ten times the rounding of f divided by h. For an operator at
    temperature tau, ``h = tau / 10`` left 1e-11 of the largest entry of the Jacobian of
    `soft_topk`, and ``h = tau / 2`` 1e-7.
    """
    point = np.asarray(x, dtype=np.float64)
    columns = []
    for index in np.ndindex(point.shape):
        table = []
        for step in (h, h / 2, h / 4):
            up, down = point.copy(), point.copy()
            up[index] += step
            down[index] -= step
            rise = np.asarray(f(up), dtype=np.float64) - np.asarray(f(down), dtype=np.float64)
            table.append(rise / (up[index] - down[index]))
        fine, finer = (4 * table[1] - table[0]) / 3, (4 * table[2] - table[1]) / 3
        columns.append((16 * finer - fine) / 15)
    jacobian = np.stack(columns, axis=-1)
    return jacobian.reshape(jacobian.shape[:-1] + point.shape)


def score_families(rng: np.random.Generator, n: int) -> dict[str, Array]:
    """Rows of n scores, between them awkward in most of the ways scores can be: name -> ``(n,)``.

    Light tails, bounded, heavy tails, exact ties, near-ties far apart, log-probabilities.
    """
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


# ------------------------------------------------------------------------- operators with gradients


def sorted_soft_topk_tensor(x: Tensor, k: int, eps: float, scale: float = 1.0) -> Tensor:
    """`sorted_soft_topk` with its first derivative in x, for autograd: ``(n,) -> (n, k)``.

    Method: the logits of the plan are ``L_ij = x_i (k - j) / tau + b_j``, and dL is known up to db,
    which has to keep the column sums. That is the linear system of a Laplacian, with weights
    ``sum_i P_ij P_im`` between the ranks j and m. All its entries are sums of positive numbers, so
    that nothing cancels where the plan is nearly 0-1. Least squares leave out what moves the plan
    by less than 1e-14 / tau. (A pseudo-inverse would not do: the rounding of its large entries is
    not confined to the directions that hardly move the plan.)
    """
    scores = x.detach().numpy()
    plan = _sorted_plan(scores, k, eps, scale).astype(np.float64)
    slope = (k - np.arange(plan.shape[1])) / float(_tau(eps, scale))
    weights = plan.T @ plan
    np.fill_diagonal(weights, 0)
    laplacian = np.diag(weights.sum(1)) - weights
    # What dx_i alone does to column j: P_ij sum_m P_im (slope_j - slope_m).
    direct = plan * np.einsum("im,jm->ij", plan, slope[:, None] - slope)
    offset = -np.linalg.lstsq(laplacian, direct.T, rcond=1e-14)[0]
    constant, slopes, offsets = (torch.from_numpy(a) for a in (plan, slope, offset))
    dx = x - x.detach()
    moved = dx[:, None] * slopes + offsets @ dx
    change = constant * (moved - (constant * moved).sum(1, keepdim=True))
    return (constant + change)[:, :k]


def log_soft_topk_tensor(x: Tensor, k: int, eps: float) -> Tensor:
    """`log_soft_topk` with its first derivative in x, for autograd: ``(n,) -> (n,)``.

    The threshold moves with the mean of the dx_i, weighted by A_i (1 - A_i). With n <= k all are
    selected.
    """
    if x.numel() <= k:
        return torch.zeros_like(x)
    d, u, _, tau = _threshold(x.detach().numpy(), k, eps, 1.0)
    z = np.asarray(d - u, dtype=np.float64)
    log_weight = log_expit(z) + log_expit(-z)
    weight = np.exp(log_weight - logsumexp(log_weight))
    dx = x - x.detach()
    moved = (dx - torch.from_numpy(weight) @ dx) / float(tau)
    return torch.nn.functional.logsigmoid(torch.from_numpy(z) + moved)


# -------------------------------------------------------------------------------------- beam search

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]


class Hypothesis(NamedTuple):
    """One sequence of a beam."""

    tokens: tuple[int, ...]
    log_likelihood: Tensor
    inputs: Tensor  #: (D,): what the decoder is fed next
    state: Any  #: the decoder's, with a leading axis of size 1
    log_probs: tuple[Tensor, ...] = ()  #: (V,) each: of the decoder, along the ancestors

    def ends_in(self, eos: int) -> bool:
        return self.tokens[-1:] == (eos,)


class Extension(NamedTuple):
    parent: int
    token: int
    log_likelihood: Tensor


def _start(state: Any, embedding: Tensor, bos: int) -> list[Hypothesis]:
    return [Hypothesis((), embedding.new_zeros(()), embedding[bos], state)]


def _run(step: Step, beam: Sequence[Hypothesis]) -> tuple[list[Tensor], list[Any]]:
    """Log-probabilities (V,) and new state of every hypothesis, by one call of step for each."""
    log_probs, states = [], []
    for hypothesis in beam:
        row, state = step(hypothesis.inputs[None], hypothesis.state)
        log_probs.append(row[0])
        states.append(state)
    return log_probs, states


def _extensions(beam: Sequence[Hypothesis], rows: Sequence[Tensor], eos: int) -> list[Extension]:
    """By every token; of a finished hypothesis by the end token alone, which costs nothing."""
    found = []
    for parent, (hypothesis, row) in enumerate(zip(beam, rows, strict=True)):
        if hypothesis.ends_in(eos):
            found.append(Extension(parent, eos, hypothesis.log_likelihood))
            continue
        for token in range(row.numel()):
            total = hypothesis.log_likelihood + row[token]
            found.append(Extension(parent, token, total))
    return found


def _mix(weights: Tensor, states: Sequence[Any], parent: int) -> Any:
    """Weighted sum of floating tensors; any other tensor is the parent's."""
    first = states[0]
    if isinstance(first, Tensor):
        if not first.is_floating_point():
            return states[parent]
        mixed = torch.zeros_like(first)
        for weight, state in zip(weights, states, strict=True):
            mixed = mixed + weight * state
        return mixed
    if isinstance(first, dict):
        return {key: _mix(weights, [s[key] for s in states], parent) for key in first}
    if first is None:
        return None
    parts = [_mix(weights, part, parent) for part in zip(*states, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)


def _soft_selection(
    beam: Sequence[Hypothesis],
    rows: Sequence[Tensor],
    states: Sequence[Any],
    embedding: Tensor,
    beam_size: int,
    eps: float,
    normalized: bool,
    eos: int,
) -> list[Hypothesis]:
    """One selection of Algorithm 2, over all the extensions."""
    extensions = _extensions(beam, rows, eos)
    x = torch.stack([extension.log_likelihood for extension in extensions])
    anchors = torch.arange(beam_size + 1)
    # The paper's x is the negative of this one.
    scale = float((-x.detach()[:, None] - anchors).square().max()) if normalized else 1.0
    ranks = sorted_soft_topk_tensor(x, beam_size, eps, scale)
    selected = []
    for weights in ranks.T:
        inputs, shares = torch.zeros_like(embedding[0]), [x.new_zeros(()) for _ in beam]
        for weight, extension in zip(weights, extensions, strict=True):
            inputs = inputs + weight * embedding[extension.token]
            shares[extension.parent] = shares[extension.parent] + weight
        parent, token, log_likelihood = extensions[int(weights.argmax())]
        selected.append(
            Hypothesis(
                (*beam[parent].tokens, token),
                log_likelihood,
                inputs,
                _mix(torch.stack(shares), states, parent),
                (*beam[parent].log_probs, rows[parent]),
            )
        )
    return selected


def soft_beam(
    step: Step,
    state: Any,
    embedding: Tensor,
    length: int,
    *,
    beam_size: int,
    eps: float,
    normalized: bool = False,
    bos: int = 2,
    eos: int = 3,
) -> list[Hypothesis]:
    """Algorithm 2 of the paper for one sentence: the beam after ``length`` selections.

    A finished hypothesis repeats its end token. ``state`` has a leading axis of size 1.
    """
    beam = _start(state, embedding, bos)
    for _ in range(length):
        rows, states = _run(step, beam)
        beam = _soft_selection(beam, rows, states, embedding, beam_size, eps, normalized, eos)
    return beam


def best_of(beam: Sequence[Hypothesis]) -> Hypothesis:
    return max(beam, key=lambda hypothesis: hypothesis.log_likelihood.item())


def soft_beam_nats(
    step: Step,
    state: Any,
    embedding: Tensor,
    gold: Sequence[int],
    *,
    follow: Literal["best", "gold"] = "best",
    beam_size: int,
    eps: float,
    normalized: bool = False,
    bos: int = 2,
    eos: int = 3,
) -> tuple[Tensor, int]:
    """Summed negative log-likelihood of ``gold`` along a soft sequence, and the positions summed.

    The end token of ``gold`` counts too.
    """
    options = {"beam_size": beam_size, "eps": eps, "normalized": normalized, "eos": eos}
    if follow == "gold":
        return _nats_along_gold(step, state, embedding, gold, bos=bos, **options), len(gold)
    best = best_of(soft_beam(step, state, embedding, len(gold), bos=bos, **options))
    total = embedding.new_zeros(())
    for row, token in zip(best.log_probs, gold, strict=True):
        total = total - row[token]
    return total, len(gold)


def _nats_along_gold(
    step: Step, state: Any, embedding: Tensor, gold: Sequence[int], *, bos: int, **options: Any
) -> Tensor:
    """Scored where the gold prefix stands in the beam; restarted from it when it is in none."""
    beam, place = _start(state, embedding, bos), 0
    total = embedding.new_zeros(())
    for t, token in enumerate(gold):
        rows, states = _run(step, beam)
        total = total - rows[place][token]
        selected = _soft_selection(beam, rows, states, embedding, **options)
        prefix = tuple(gold[: t + 1])
        if prefix in [hypothesis.tokens for hypothesis in selected]:
            place = [hypothesis.tokens for hypothesis in selected].index(prefix)
            beam = selected
            continue
        log_likelihood = beam[place].log_likelihood + rows[place][token]
        beam = [Hypothesis(prefix, log_likelihood, embedding[token], states[place])]
        place = 0
    return total


def membership_nats(
    step: Step,
    state: Any,
    embedding: Tensor,
    gold: Sequence[int],
    *,
    beam_size: int,
    eps: float,
    bos: int = 2,
    eos: int = 3,
) -> tuple[Tensor, list[str]]:
    """Summed -log of the soft membership of gold's prefixes in the beam, and what happened.

    The second result names, for each position, what became of the beam: "kept" or "restarted", with
    " with finished" added if one of the candidates was a finished hypothesis.
    """
    beam, place = _start(state, embedding, bos), 0
    total, events = embedding.new_zeros(()), []
    for t, token in enumerate(gold):
        rows, states = _run(step, beam)
        extensions = _extensions(beam, rows, eos)
        mine = [(e.parent, e.token) for e in extensions].index((place, token))
        x = torch.stack([extension.log_likelihood for extension in extensions])
        total = total - log_soft_topk_tensor(x, beam_size, eps)[mine]
        finished = any(hypothesis.ends_in(eos) for hypothesis in beam)
        chosen = x.argsort(descending=True, stable=True)[:beam_size].tolist()
        restart = mine not in chosen
        chosen = [mine] if restart else chosen
        beam = [
            Hypothesis(
                (*beam[parent].tokens, token),
                log_likelihood,
                embedding[token],
                states[parent],
            )
            for parent, token, log_likelihood in (extensions[c] for c in chosen)
        ]
        place = chosen.index(mine)
        assert beam[place].tokens == tuple(gold[: t + 1])
        events.append("restarted" if restart else "kept")
        events[-1] += " with finished" if finished else ""
    return total, events


def hard_beam(
    step: Step,
    state: Any,
    embedding: Tensor,
    max_len: int,
    *,
    beam_size: int,
    bos: int = 2,
    eos: int = 3,
) -> list[tuple[tuple[int, ...], float]]:
    """Ordinary beam search for one sentence: tokens up to the end token, and log-likelihood.

    Finished hypotheses stay in the beam as long as they are among the best.
    """
    beam = _start(state, embedding, bos)
    for _ in range(max_len):
        rows, states = _run(step, beam)
        extensions = _extensions(beam, rows, eos)
        extensions.sort(key=lambda extension: -extension.log_likelihood.item())
        beam = [
            Hypothesis(
                (*beam[parent].tokens, token),
                log_likelihood,
                embedding[token],
                states[parent],
            )
            for parent, token, log_likelihood in extensions[:beam_size]
        ]
    return [(until_end(h.tokens, eos), h.log_likelihood.item()) for h in beam]


def until_end(tokens: Sequence[int], eos: int = 3) -> tuple[int, ...]:
    """The tokens up to the first end token, that one included."""
    return tuple(tokens[: tokens.index(eos) + 1] if eos in tokens else tokens)


def all_sequences(
    step: Step,
    state: Any,
    embedding: Tensor,
    max_len: int,
    *,
    length_penalty: float = 0.0,
    bos: int = 2,
    eos: int = 3,
) -> list[tuple[tuple[int, ...], float]]:
    """Every sequence that ends, or has ``max_len`` tokens, with its score; the best first."""
    vocabulary = range(len(embedding))
    sequences = {until_end(tokens, eos) for tokens in itertools.product(vocabulary, repeat=max_len)}
    scored = []
    for tokens in sequences:
        log_likelihood = -forced_nats(step, state, embedding, tokens, bos=bos).item()
        scored.append((tokens, log_likelihood / len(tokens) ** length_penalty))
    return sorted(scored, key=lambda pair: -pair[1])


def forced_nats(
    step: Step, state: Any, embedding: Tensor, tokens: Sequence[int], *, bos: int = 2
) -> Tensor:
    """Summed negative log-likelihood of ``tokens`` by a decoder that is fed them."""
    total, last = embedding.new_zeros(()), bos
    for token in tokens:
        row, state = step(embedding[last][None], state)
        total, last = total - row[0, token], token
    return total
