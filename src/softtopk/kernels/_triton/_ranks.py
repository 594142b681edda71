"""The sorted operator in Triton: one program per row.

functional/_sorted.py has the derivation, and csrc/ranking.hpp the split that is used here too. The
K + 1 best finite elements of a row are its pivots. An element better than the last pivot is
"sorted" and measured from its own rank; the others are "outsiders" and measured from the rank after
the last. So the exponents of a plan are 0 at a rank that is likely, and add up from there.

The thresholds of a row have the columns first..last - 1 of the plan. Elements at +inf share the
columns before. Column ``last`` is a rank of the result where a row has no more than k elements.
Vectors over columns have a power of two as their length, called K here.

An element of rank s has another rank for each threshold c: rank c if c < s, else rank c + 1; then
the threshold lies ``after`` the element. In this order every tail is an inclusive sum.

Scores are computed in their type T, float32 or float64. Sorted elements and vectors of the size of
k are float64 always: the roundings of k thresholds would add up.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

#: Sorted elements are taken in chunks: as few as `tl.dot` can do.
CHUNK: tl.constexpr = tl.constexpr(16)
#: Six Newton steps were enough wherever we looked (see the tests): a dozen evaluations.
MAX_EVALUATIONS: tl.constexpr = tl.constexpr(120)
#: A distance, or an exponent, at which exp is 0.
IMPOSSIBLE: tl.constexpr = tl.constexpr(-1e30)
#: How many numbers `sort_out` writes about a row.
CENSUS: tl.constexpr = tl.constexpr(5)

# What the solver's next evaluation is for: a Sinkhorn iteration, the balance of the leaks, or an
# iteration after which it is done.
SWEEP: tl.constexpr = tl.constexpr(0)
BALANCE: tl.constexpr = tl.constexpr(1)
TOUCH_UP: tl.constexpr = tl.constexpr(2)


class Row(NamedTuple):
    """The finite part of a row."""

    pivots: Any  #: pointer
    first: Any
    last: Any
    column: Any  #: (K,)
    valid: Any  #: (K,) where there are thresholds
    pivot: Any  #: (K,) float64
    best: Any  #: the last pivot, the best of the outsiders, of type T
    depth: Any  #: (K,) of the best outsider below the pivots, in units of tau
    rate: Any  #: 1 / tau in float64


class Outsiders(NamedTuple):
    """Those that matter to rounding."""

    distances: Any  #: pointer to their distances from the best outsider, in units of tau, of type T
    count: Any
    tied: Any  #: how many there are beside these that tie with the best, itself included


# Numbers.


@triton.jit
def _is_finite(v):
    return tl.abs(v) < float("inf")


@triton.jit
def _exp(exponent):
    """Not so large that a sum overflows: far from the root exponents have no bound."""
    return tl.exp(tl.minimum(exponent, 600.0 if exponent.dtype == tl.float64 else 75.0))


@triton.jit
def _distance(difference, rate):
    """In units of tau, and not so large that a sum overflows."""
    return tl.minimum(tl.maximum(difference * rate, -1e300), 1e300)


@triton.jit
def _reach_of(n, dtype: tl.constexpr):
    """How far below the best outsider elements no longer matter: `reach_of` in csrc/rows.hpp."""
    digits: tl.constexpr = 36.1 if dtype == tl.float64 else 16.0
    return (2.0 * tl.log(2.0 * n.to(tl.float32)) + digits).to(dtype)


# Rows.


@triton.jit
def _load_scores(x, mask, at, inside, LARGEST: tl.constexpr, DTYPE: tl.constexpr):
    """Elements in canonical form, of type T; -inf where they are not ``inside``."""
    v = tl.load(x + at, mask=inside, other=0.0).to(DTYPE)
    if not LARGEST:
        v = -v
    if mask is not None:
        inside = inside & (tl.load(mask + at, mask=inside, other=0) != 0)
    return tl.where(inside, v, float("-inf"))


@triton.jit
def _load_tau(values, value, row, DTYPE: tl.constexpr):
    if values is not None:
        tau = tl.load(values + row)
    else:
        tau = value + tl.zeros((), tl.float64)
    return tau.to(DTYPE)


@triton.jit
def _load_row(pivots, first, last, tau, K: tl.constexpr):
    column = tl.arange(0, K)
    valid = (column >= first) & (column < last)
    rate = 1.0 / tau.to(tl.float64)
    pivot = tl.load(pivots + column, mask=valid, other=0.0).to(tl.float64)
    # Where nothing is left to solve, any finite element is an outsider.
    best = tl.load(pivots + last, mask=last > first, other=float("inf")).to(tau.dtype)
    depth = tl.where(valid, _distance(best.to(tl.float64) - pivot, rate), 0.0)
    return Row(pivots, first, last, column, valid, pivot, best, depth, rate)


# Plans.


@triton.jit
def _between(after, a):
    """Sum of ``a`` (elements, K) over the thresholds between the own rank of an element and each
    other: with a plus for the ranks before its own, with a minus for those after."""
    down = tl.cumsum(tl.where(after, a, 0.0), 1)
    up = tl.cumsum(tl.where(after, 0.0, a), 1, reverse=True)
    return tl.where(after, -down, up)


@triton.jit
def _beyond(after, p):
    """Sum of ``p`` (elements, K) over the ranks on the other side of each threshold."""
    down = tl.cumsum(tl.where(after, p, 0.0), 1, reverse=True)
    up = tl.cumsum(tl.where(after, 0.0, p), 1)
    return tl.where(after, down, up)


@triton.jit
def _sorted_plan(row, t, v, s, exists):
    """Of elements ``v`` (CHUNK, 1) with the ranks ``s``: which thresholds lie after them, the plan
    of the other ranks (CHUNK, K), and that of their own (CHUNK, 1)."""
    after = row.column[None, :] >= s
    thresholds = row.valid[None, :] & exists
    a = _distance(v - row.pivot[None, :], row.rate) - t[None, :]
    e = tl.where(thresholds, _exp(_between(after, tl.where(thresholds, a, 0.0))), 0.0)
    own = tl.where(exists, 1.0 / (1.0 + tl.sum(e, 1, keep_dims=True)), 0.0)
    return after, e * own, own


@triton.jit
def _pivots_plan(row, t, start):
    """`_sorted_plan` of the pivots from rank ``start`` on, and which ranks these are."""
    s = start + tl.arange(0, CHUNK)[:, None]
    exists = s < row.last
    v = tl.load(row.pivots + s, mask=exists, other=0.0).to(tl.float64)
    after, p, own = _sorted_plan(row, t, v, s, exists)
    return s, exists, after, p, own


@triton.jit
def _rank_of(row, v):
    """The ranks of sorted elements (CHUNK, 1), of equal ones the first."""
    better = row.valid[None, :] & (row.pivot[None, :] > v)
    s = row.first + tl.sum(better.to(tl.int32), 1, keep_dims=True)
    return tl.minimum(s, row.last - 1)


@triton.jit
def _best_outsider(row, t):
    """The exponents (K,) of the plan of the best outsider, in float64 and in the range of float32;
    those of columns without a threshold are as low as that of an impossible rank."""
    exponents = tl.cumsum(tl.where(row.valid, row.depth - t, 0.0), 0, reverse=True)
    return tl.where(row.valid, tl.maximum(exponents, IMPOSSIBLE), IMPOSSIBLE)


@triton.jit
def _outsider_plan(row, exponents, a):
    """Of elements at the distances ``a`` (elements, 1) from the best outsider: the plan of the
    first ranks (elements, K), and that of their own, the last (elements, 1)."""
    ranks = tl.maximum(row.last - row.column, 0).to(a.dtype)[None, :]
    e = _exp(ranks * a + exponents.to(a.dtype)[None, :])
    own = 1.0 / (1.0 + tl.sum(e, 1, keep_dims=True))
    return e * own, own


# The first launch: the pivots of a row, and the lists of its other elements.


@triton.jit
def sort_out(
    x,
    mask,
    tau_values,
    pivots,
    sorted_elements,
    outsiders,
    census,
    n,
    k,
    tau_value: "fp64",
    LARGEST: tl.constexpr,
    DTYPE: tl.constexpr,
    PIVOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``pivots`` (rows, k + 1) in order, all -inf where nothing is left to solve; the places of the
    ``sorted_elements`` (rows, k); the distances of the ``outsiders`` (rows, n) that matter.

    The ``census`` (rows, 5) says first and last, and how many elements are sorted, listed as
    outsiders, and tied with the best outsider. First and last are -1 for a row with a NaN.
    """
    row = tl.program_id(0).to(tl.int64)
    x += row * n
    if mask is not None:
        mask += row * n
    pivots += row * (k + 1)
    sorted_elements += row * k
    outsiders += row * n
    tau = _load_tau(tau_values, tau_value, row, DTYPE)
    at = tl.arange(0, BLOCK)
    place = tl.arange(0, PIVOTS)
    low = float("-inf")

    top = tl.full((PIVOTS,), low, DTYPE)
    infinite = 0
    finite = 0
    broken = (tau != tau).to(tl.int32)
    for start in range(0, n, BLOCK):
        v = _load_scores(x, mask, start + at, start + at < n, LARGEST, DTYPE)
        infinite += tl.sum((v == float("inf")).to(tl.int32), 0)
        finite += tl.sum(_is_finite(v).to(tl.int32), 0)
        broken += tl.sum((v != v).to(tl.int32), 0)
        v = tl.where(_is_finite(v), v, low)
        if tl.max(v, 0) > tl.min(tl.where(place <= k, top, float("inf")), 0):
            # Of two lists in opposite orders, the larger ones at each place are the largest of all.
            larger = tl.maximum(top, tl.flip(tl.topk(v, PIVOTS)))
            top = tl.bitonic_merge(larger, descending=True)

    count = tl.where(broken > 0, 0, tl.minimum(k - infinite, finite - 1))
    count = tl.maximum(count, 0)
    last = infinite + count
    kept = tl.where(count > 0, count + 1, 0)
    tl.store(pivots + infinite + place, top, mask=place < kept)
    filling = tl.where(place < tl.where(count > 0, infinite, 0), float("inf"), low)
    elsewhere = (place >= infinite) & (place < infinite + kept)
    tl.store(pivots + place, filling, mask=(place <= k) & ~elsewhere)

    sorted_count = 0
    listed = 0
    tied = 0
    if count > 0:
        best = tl.max(tl.where(place == count, top, low), 0)
        cut = best - _reach_of(n, DTYPE) * tau
        for start in range(0, n, BLOCK):
            i = start + at
            v = _load_scores(x, mask, i, i < n, LARGEST, DTYPE)
            v = tl.where(_is_finite(v), v, low)
            if tl.max(v, 0) >= cut:
                is_sorted = v > best
                to = sorted_count + tl.cumsum(is_sorted.to(tl.int32), 0) - 1
                tl.store(sorted_elements + to, i, mask=is_sorted)
                is_listed = (v >= cut) & (v < best) & (v > low)
                to = listed + tl.cumsum(is_listed.to(tl.int32), 0) - 1
                tl.store(outsiders + to, (v - best) / tau, mask=is_listed)
                sorted_count += tl.sum(is_sorted.to(tl.int32), 0)
                listed += tl.sum(is_listed.to(tl.int32), 0)
                tied += tl.sum((v == best).to(tl.int32), 0)
        tied -= count - sorted_count  # these have a rank of their own
    census += row * CENSUS
    tl.store(census, tl.where(broken > 0, -1, infinite))
    tl.store(census + 1, tl.where(broken > 0, -1, last))
    tl.store(census + 2, sorted_count)
    tl.store(census + 3, listed)
    tl.store(census + 4, tied)


# The second launch: the thresholds, and the plan.


@triton.jit
def _outsider_mass(row, outsiders, exponents, BLOCK: tl.constexpr):
    """What all outsiders have of the first ranks (K,), and of the last."""
    e = _exp(exponents)
    own = outsiders.tied / (1.0 + tl.sum(e, 0))
    mass = e * own
    i = tl.arange(0, BLOCK)[:, None]
    for start in range(0, outsiders.count, BLOCK):
        inside = start + i < outsiders.count
        a = tl.load(outsiders.distances + start + i, mask=inside, other=IMPOSSIBLE)
        p, p_own = _outsider_plan(row, exponents, a)
        mass += tl.sum(p, 0).to(tl.float64)
        own += tl.sum(tl.where(inside, p_own, 0.0)).to(tl.float64)
    return mass, own


@triton.jit
def _sorted_mass(row, t, phase):
    """What all sorted elements have of the ranks after and before their own, in the order of the
    thresholds, and of their own (K,). For BALANCE, what they have beyond each threshold instead."""
    down = tl.zeros_like(t)
    up = tl.zeros_like(t)
    own = tl.zeros_like(t)
    for start in range(row.first, row.last, CHUNK):
        s, _, after, p, p_own = _pivots_plan(row, t, start)
        if phase == BALANCE:
            p = _beyond(after, p)
        down += tl.sum(tl.where(after, p, 0.0), 0)
        up += tl.sum(tl.where(after, 0.0, p), 0)
        own += tl.sum(tl.where(row.column[None, :] == s, p_own, 0.0), 0)
    return down, up, own


@triton.jit
def _sweep(row, outsiders, t, mass, mass_of_last, SMALLEST: tl.constexpr):
    """One Sinkhorn iteration in terms of thresholds: rows to one, then columns to their mass."""
    excess = tl.log(tl.maximum(mass, SMALLEST))
    elements = (outsiders.count + outsiders.tied).to(tl.float64)
    excess_of_last = tl.log(tl.maximum(mass_of_last, SMALLEST) / elements)
    following = tl.gather(excess, tl.minimum(row.column + 1, row.column.shape[0] - 1), 0)
    following = tl.where(row.column == row.last - 1, excess_of_last, following)
    return tl.where(row.valid, t - (following - excess), 0.0)


@triton.jit
def _cumulative(square, leak):
    """Sum of M_min N_max (K, K) over outsiders, from that of the products of their plans.

    An outsider has N = 1 - M without cancellation. So this is the sum of M_min less that of M M,
    and plans are summed up over the ranks once for all elements. ``leak`` (K,) is the sum of M.
    """
    smaller = tl.minimum(leak[:, None], leak[None, :])
    return smaller - tl.cumsum(tl.cumsum(square, 0), 1)


@triton.jit
def _jacobian(
    row,
    outsiders,
    t,
    exponents,
    leak,
    rest,
    top,
    alive,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The negative of the Jacobian of h, (K, K) of type T, for the thresholds that are ``alive``.
    ``leak`` is the part of ``rest`` that is due to outsiders."""
    dtype: tl.constexpr = row.best.dtype
    e = _exp(exponents)
    best = (e / (1.0 + tl.sum(e, 0))).to(dtype)
    square = outsiders.tied.to(dtype) * best[:, None] * best[None, :]
    i = tl.arange(0, BLOCK)[:, None]
    for start in range(0, outsiders.count, BLOCK):
        inside = start + i < outsiders.count
        a = tl.load(outsiders.distances + start + i, mask=inside, other=IMPOSSIBLE)
        p, _ = _outsider_plan(row, exponents, a)
        square = tl.dot(tl.trans(p), p, square, input_precision=PRECISION)
    per_rest, per_top = 1.0 / rest, 1.0 / top
    matrix = (_cumulative(square, leak) * per_rest[:, None]).to(dtype)
    # The product of a large weight and a large tail is multiplied with a small tail.
    longest: tl.constexpr = 1e300 if dtype == tl.float64 else 1e30
    at, other = row.column[:, None], row.column[None, :]
    for start in range(row.first, row.last, CHUNK):
        _, exists, after, p, _ = _pivots_plan(row, t, start)
        tail = _beyond(after, p)
        upper = tl.where(exists, tl.where(after, 1.0 - tail, tail), 0.0)
        lower = tl.where(exists, tl.where(after, tail, 1.0 - tail), 0.0)
        per_leak = tl.where(after, per_top[None, :], per_rest[None, :])
        a = tl.trans((lower * per_leak).to(dtype))
        matrix_before = tl.dot(a, upper.to(dtype), input_precision=PRECISION)
        a = tl.trans(tl.minimum(upper * per_leak, longest).to(dtype))
        matrix_after = tl.dot(a, lower.to(dtype), input_precision=PRECISION)
        matrix += tl.where(other <= at, matrix_before, matrix_after)
    matrix = tl.where(alive[:, None] & row.valid[None, :], matrix, 0.0)
    return tl.where((at == other) & ~alive[:, None], 1.0, matrix)


@triton.jit
def _inverse(row, matrix):
    """Of a matrix (K, K) that needs no pivots: see `factorise` in csrc/linear.hpp."""
    at, other = row.column[:, None], row.column[None, :]
    for c in range(row.first, row.last):
        here = row.column == c
        right = tl.sum(tl.where(at == c, matrix, 0.0), 0)
        left = tl.sum(tl.where(other == c, matrix, 0.0), 1)
        diagonal = tl.sum(tl.where(here, right, 0.0), 0)
        regular = tl.abs(diagonal) > 1e-14
        scale = tl.where(regular, 1.0 / tl.where(regular, diagonal, 1.0), 0.0)
        right = tl.where(here, 1.0, right) * scale
        left = tl.where(here, -1.0, left)
        matrix = tl.where((at == c) | (other == c), 0.0, matrix) - left[:, None] * right[None, :]
    return matrix


@triton.jit
def _solve(row, outsiders, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """The offsets (K,) of the thresholds, and whether they have converged.

    Newton's method on h_j = log(leak into the first j + 1 ranks / leak out of them), safeguarded as
    in csrc/rank_solver.hpp. There is one place for all evaluations, or the code would be there
    several times.
    """
    dtype: tl.constexpr = row.best.dtype
    precision: tl.constexpr = 2.2e-16 if dtype == tl.float64 else 1.2e-7
    smallest: tl.constexpr = 2.3e-308 if dtype == tl.float64 else 1.2e-38
    matrix_error: tl.constexpr = 1e-8 if dtype == tl.float64 else 1e-3
    K: tl.constexpr = row.column.shape[0]
    following = tl.load(row.pivots + row.column + 1, mask=row.valid, other=0.0).to(tl.float64)
    t = -0.5 * _distance(row.pivot - following, row.rate)
    trial = t
    inverse = tl.zeros((K, K), dtype)
    # Norms of h at t (infinite if the next one is to be taken in any case), and at the matrix.
    norm = tl.full((), float("inf"), tl.float64)
    norm_of_matrix = norm
    phase = tl.full((), SWEEP, tl.int32)
    evaluations = 0
    running = True
    while running:
        exponents = _best_outsider(row, trial)
        mass, mass_of_last = _outsider_mass(row, outsiders, exponents, BLOCK)
        down, up, own = _sorted_mass(row, trial, phase)
        if phase == BALANCE:
            leak = tl.cumsum(mass, 0)
            rest = up + leak
            # Outsiders underflow in T. Where both leaks are about that small a threshold is
            # decided: any place is right to rounding, and there is nothing to solve.
            alive = row.valid & (tl.maximum(rest, down) >= 1e8 * smallest)
            rest = tl.where(alive, tl.maximum(rest, 1e-307), 1.0)
            top = tl.where(alive, tl.maximum(down, 1e-307), 1.0)
            h = tl.log(rest / top)
            new_norm = tl.max(tl.where(_is_finite(h), tl.abs(h), float("inf")), 0)
            finished = new_norm <= precision
            if new_norm < norm:
                t = trial
                if not finished:
                    # A matrix that takes a digit off per step is good for another one.
                    if (new_norm >= 0.1 * norm) | (norm_of_matrix == float("inf")):
                        matrix = _jacobian(
                            row,
                            outsiders,
                            t,
                            exponents,
                            leak,
                            rest,
                            top,
                            alive,
                            BLOCK,
                            PRECISION,
                        )
                        inverse = _inverse(row, matrix)
                        norm_of_matrix = new_norm
                    trial = t + tl.sum(inverse * h.to(dtype)[None, :], 1).to(tl.float64)
                    # The error after a step is about that before it times that of the matrix.
                    finished = new_norm * (norm_of_matrix + matrix_error) <= 0.06 * precision
                norm = new_norm
                phase = tl.where(norm > 1.0, SWEEP, BALANCE)
                if finished:
                    # A leak of many elements is known to its own rounding, and the columns of the
                    # plan show it: that takes a last iteration.
                    running = tl.max(tl.where(alive, rest, 0.0), 0) > 1.0
                    phase = tl.full((), TOUCH_UP, tl.int32)
            else:
                # Not seen in practice. A sweep by itself always makes progress.
                trial = t
                norm = tl.full((), float("inf"), tl.float64)
                norm_of_matrix = norm
                phase = tl.full((), SWEEP, tl.int32)
        else:
            shifted = tl.gather(down, tl.maximum(row.column - 1, 0), 0)
            mass += up + own + tl.where(row.column > row.first, shifted, 0.0)
            mass_of_last += tl.sum(tl.where(row.column == row.last - 1, down, 0.0), 0)
            trial = _sweep(row, outsiders, trial, mass, mass_of_last, smallest)
            running = phase == SWEEP
            phase = tl.full((), BALANCE, tl.int32)
        evaluations += 1
        running = running & (evaluations < MAX_EVALUATIONS)
    return tl.where(trial == trial, trial, 0.0), evaluations < MAX_EVALUATIONS


@triton.jit
def solve(
    x,
    mask,
    tau_values,
    pivots,
    sorted_elements,
    outsiders,
    census,
    plan,
    offsets,
    converged,
    n,
    k,
    tau_value: "fp64",
    LARGEST: tl.constexpr,
    DTYPE: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The ``plan`` (rows, n, k), the ``offsets`` (rows, k) of its thresholds and whether they have
    ``converged`` (rows), from what `sort_out` has written."""
    index = tl.program_id(0).to(tl.int64)
    x += index * n
    if mask is not None:
        mask += index * n
    pivots += index * (k + 1)
    sorted_elements += index * k
    plan += index * n * k
    census += index * CENSUS
    first = tl.load(census)
    last = tl.load(census + 1)
    sorted_count = tl.load(census + 2)
    tau = _load_tau(tau_values, tau_value, index, DTYPE)
    row = _load_row(pivots, first, last, tau, K)
    t = tl.zeros((K,), tl.float64)
    has_converged = True
    if last > first:
        listed = Outsiders(outsiders + index * n, tl.load(census + 3), tl.load(census + 4))
        t, has_converged = _solve(row, listed, BLOCK, PRECISION)
    tl.store(offsets + index * k + row.column, t, mask=row.column < k)
    tl.store(converged + index, has_converged)

    column = row.column[None, :]
    exponents = _best_outsider(row, t)
    share = 1.0 / tl.maximum(first, 1).to(DTYPE)
    i = tl.arange(0, BLOCK)[:, None]
    for start in range(0, n, BLOCK):
        at = start + i
        v = _load_scores(x, mask, at, at < n, LARGEST, DTYPE)
        is_finite = _is_finite(v)
        is_sorted = is_finite & (v > row.best)
        a = (tl.where(is_finite, v, row.best) - row.best) / tau
        p, own = _outsider_plan(row, exponents, tl.maximum(a, IMPOSSIBLE))
        p = tl.where(is_finite & ~is_sorted, tl.where(column == last, own, p), 0.0)
        p = tl.where((v == float("inf")) & (column < first), share, p)
        p = tl.where((v != float("-inf")) & (first < 0), float("nan"), p)
        elsewhere = is_sorted & (column >= first) & (column <= last)
        tl.store(plan + at.to(tl.int64) * k + column, p, mask=(at < n) & (column < k) & ~elsewhere)
    for start in range(0, sorted_count, CHUNK):
        r = start + tl.arange(0, CHUNK)[:, None]
        exists = r < sorted_count
        at = tl.load(sorted_elements + r, mask=exists, other=0)
        v = _load_scores(x, mask, at, exists, LARGEST, DTYPE).to(tl.float64)
        s = _rank_of(row, v)
        after, p, own = _sorted_plan(row, t, v, s, exists)
        to = plan + at.to(tl.int64) * k
        rank = column + after.to(tl.int32)
        tl.store(to + rank, p.to(DTYPE), mask=exists & row.valid[None, :] & (rank < k))
        tl.store(to + s, own.to(DTYPE), mask=exists)


# The derivative.


@triton.jit
def _outsider_gradients(row, grad, at, inside, k, DTYPE: tl.constexpr):
    """``grad`` of outsiders (BLOCK, K), measured from that of their own rank."""
    at = at.to(tl.int64) * k
    own = tl.zeros(at.shape, DTYPE)
    if row.last < k:
        own = tl.load(grad + at + row.last, mask=inside, other=0.0).to(DTYPE)
    inside = inside & row.valid[None, :]
    g = tl.load(grad + at + row.column[None, :], mask=inside, other=0.0).to(DTYPE)
    return tl.where(inside, g - own, 0.0)


@triton.jit
def _sorted_gradients(row, grad, at, s, after, exists, k):
    """``grad`` of sorted elements (CHUNK, K), measured from that of their own rank."""
    at = at.to(tl.int64) * k
    own = tl.load(grad + at + s, mask=exists, other=0.0).to(row.best.dtype).to(tl.float64)
    rank = row.column[None, :] + after.to(tl.int32)
    exists = exists & row.valid[None, :]
    g = tl.load(grad + at + rank, mask=exists & (rank < k), other=0.0)
    g = g.to(row.best.dtype).to(tl.float64)  # bfloat16 knows no float64
    return tl.where(exists, g - own, 0.0)


@triton.jit
def _sorted_chunk(row, t, x, mask, found, start, count, LARGEST: tl.constexpr, DTYPE: tl.constexpr):
    """`_sorted_plan` of a chunk of the elements at the places ``found`` (K,), and their places."""
    r = start + tl.arange(0, CHUNK)[:, None]
    at = tl.sum(tl.where(row.column[None, :] == r, found[None, :], 0), 1, keep_dims=True)
    exists = r < count
    v = _load_scores(x, mask, at, exists, LARGEST, DTYPE).to(tl.float64)
    s = _rank_of(row, v)
    after, p, _ = _sorted_plan(row, t, v, s, exists)
    return at, exists, s, after, p


@triton.jit
def _thresholds_gradient(row, matrix, pull):
    """u (K,) with H u = ``pull``, for the symmetric H whose upper triangle is in ``matrix``.

    Scaled to a unit diagonal the matrix is well conditioned at every temperature: where a threshold
    is cold, its row and column vanish together. One that has all but vanished has no derivative.
    """
    at, other = row.column[:, None], row.column[None, :]
    matrix = tl.where(at <= other, matrix, tl.trans(matrix))
    diagonal = tl.sum(tl.where(at == other, matrix, 0.0), 0)
    alive = row.valid & (diagonal > 1.5e-154)
    scale = tl.where(alive, 1.0 / tl.sqrt(tl.where(alive, diagonal, 1.0)), 0.0)
    matrix = tl.where(at == other, 1.0, scale[:, None] * matrix * scale[None, :])
    return scale * tl.sum(_inverse(row, matrix) * (scale * pull)[None, :], 1)


@triton.jit
def gradient(
    x,
    mask,
    tau_values,
    pivots,
    offsets,
    grad,
    grad_x,
    n,
    k,
    tau_value: "fp64",
    LARGEST: tl.constexpr,
    DTYPE: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``grad_x`` (rows, n) of ``grad`` (rows, n, k): csrc/rank_gradient.hpp has the formula."""
    index = tl.program_id(0).to(tl.int64)
    x += index * n
    if mask is not None:
        mask += index * n
    pivots += index * (k + 1)
    grad += index * n * k
    grad_x += index * n
    tau = _load_tau(tau_values, tau_value, index, DTYPE)
    column = tl.arange(0, K)
    low = float("-inf")
    pivot = tl.load(pivots + column, mask=column < k, other=low)
    last_pivot = tl.load(pivots + k)
    first = tl.sum((pivot == float("inf")).to(tl.int32), 0)
    last = tl.sum((pivot > low).to(tl.int32), 0) + (last_pivot > low).to(tl.int32) - 1
    last = tl.maximum(first, last)
    row = _load_row(pivots, first, last, tau, K)
    t = tl.load(offsets + index * k + column, mask=row.valid, other=0.0)
    exponents = _best_outsider(row, t)

    i = tl.arange(0, BLOCK)[:, None]
    reach = _reach_of(n, DTYPE)
    # Of outsiders: sums of the plans, of their products, of the pull on each threshold. Of sorted
    # elements: their places.
    mass = tl.zeros((K,), tl.float64)
    square = tl.zeros((K, K), tl.float64)
    pull = tl.zeros((K,), tl.float64)
    found = tl.zeros((K,), tl.int32)
    count = 0
    for start in range(0, n, BLOCK):
        at = start + i
        v = _load_scores(x, mask, at, at < n, LARGEST, DTYPE)
        v = tl.where(_is_finite(v), v, low)
        is_sorted = v > row.best
        a = tl.where(is_sorted, 0.0, tl.maximum((v - row.best) / tau, IMPOSSIBLE))
        matters = ~is_sorted & (a >= -reach)
        if tl.max(matters.to(tl.int32)) > 0:
            p, _ = _outsider_plan(row, exponents, a)
            p = tl.where(matters, p, 0.0)
            g = _outsider_gradients(row, grad, at, matters, k, DTYPE)
            g -= tl.sum(p * g, 1, keep_dims=True)
            mass += tl.sum(p, 0).to(tl.float64)
            pull += tl.sum(p * g, 0).to(tl.float64)
            square += tl.dot(tl.trans(p), p, input_precision="ieee").to(tl.float64)
        if tl.max(is_sorted.to(tl.int32)) > 0:
            # More than K only if the scores have changed since the forward pass.
            to = count + tl.cumsum(is_sorted.to(tl.int32), 0) - 1
            found += tl.sum(tl.where(is_sorted & (to == column[None, :]), at, 0), 0)
            count = tl.minimum(count + tl.sum(is_sorted.to(tl.int32)), last - first)
    matrix = _cumulative(square, tl.cumsum(mass, 0))
    pull = tl.cumsum(pull, 0)
    for start in range(0, count, CHUNK):
        at, exists, s, after, p = _sorted_chunk(
            row, t, x, mask, found, start, count, LARGEST, DTYPE
        )
        g = _sorted_gradients(row, grad, at, s, after, exists, k)
        g -= tl.sum(p * g, 1, keep_dims=True)
        part = _beyond(after, p * g)
        pull += tl.sum(tl.where(after, -part, part), 0)
        tail = _beyond(after, p)
        upper = tl.where(exists, tl.where(after, 1.0 - tail, tail), 0.0)
        lower = tl.where(exists, tl.where(after, tail, 1.0 - tail), 0.0)
        matrix += tl.dot(tl.trans(upper), lower, input_precision="ieee")
    u = tl.where(row.valid, _thresholds_gradient(row, matrix, pull), 0.0)

    # Under the plan of an element, the covariance of the rank and of grad less the sum of u over
    # the thresholds from there on, both measured from the rank that is its own.
    shift = tl.cumsum(u, 0, reverse=True).to(DTYPE)[None, :]
    ranks = (last - column).to(DTYPE)[None, :]
    rate = (1.0 / tau) if LARGEST else (-1.0 / tau)
    for start in range(0, n, BLOCK):
        at = start + i
        v = _load_scores(x, mask, at, at < n, LARGEST, DTYPE)
        v = tl.where(_is_finite(v), v, low)
        is_sorted = v > row.best
        a = tl.where(is_sorted, 0.0, tl.maximum((v - row.best) / tau, IMPOSSIBLE))
        moves = ~is_sorted & (a >= (-745.0 if DTYPE == tl.float64 else -104.0))
        slope = tl.zeros((BLOCK, 1), DTYPE)
        if tl.max(moves.to(tl.int32)) > 0:
            p, own = _outsider_plan(row, exponents, a)
            free = _outsider_gradients(row, grad, at, moves, k, DTYPE) - shift
            mean = tl.sum(p * free, 1, keep_dims=True)
            mean_rank = tl.sum(p * ranks, 1, keep_dims=True)
            slope = tl.sum(p * (ranks - mean_rank) * (free - mean), 1, keep_dims=True)
            slope = tl.where(moves, (slope + own * mean * mean_rank) * rate, 0.0)
        tl.store(grad_x + at, slope, mask=(at < n) & ~is_sorted)
    for start in range(0, count, CHUNK):
        at, exists, s, after, p = _sorted_chunk(
            row, t, x, mask, found, start, count, LARGEST, DTYPE
        )
        free = _sorted_gradients(row, grad, at, s, after, exists, k) - _between(
            after, tl.where(row.valid & exists, u[None, :], 0.0)
        )
        rank = s - column[None, :] - after.to(tl.int32)
        mean = tl.sum(p * free, 1, keep_dims=True)
        mean_rank = tl.sum(p * rank, 1, keep_dims=True)
        slope = tl.sum(p * rank * free, 1, keep_dims=True) - mean * mean_rank
        tl.store(grad_x + at, (slope * rate).to(DTYPE), mask=exists)
