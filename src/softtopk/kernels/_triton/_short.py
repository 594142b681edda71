"""Rows that fit into the registers of one program: each element is read once and written once."""

import triton
import triton.language as tl

from ._solver import (
    MAX_STEPS,
    distance_of,
    indicator_of,
    is_finite,
    key_of,
    largest_below,
    leak_of,
    load_scores,
    log_indicator_of,
    newton_step,
    number_of,
    odds,
    place_of,
    settle,
    share_of,
    smallest,
    tail_of,
)


@triton.jit
def _pivot_of(v, k, n, BITS: tl.constexpr, DOUBLE: tl.constexpr):
    """The ceil(k)-th largest element, by bisection over the first BITS bits of the keys: all that
    numbers of the dtype differ in."""
    key = key_of(v, DOUBLE)
    rank = tl.minimum(tl.maximum(tl.ceil(k), 1.0), n).to(tl.int32)
    if DOUBLE:
        bit = tl.full((), 1, tl.uint64) << 63
    else:
        bit = tl.full((), 1, tl.uint32) << 31
    found = tl.zeros_like(tl.max(key, 1, keep_dims=True))
    for _ in range(BITS):
        trial = found | bit
        enough = tl.sum((key >= trial).to(tl.int32), 1, keep_dims=True) >= rank
        found = tl.where(enough, trial, found)
        bit = bit >> 1
    return tl.min(tl.where(key >= found, v, float("inf")), 1, keep_dims=True)


@triton.jit
def _sides(v, d, pivot, k):
    """How many elements tie with the pivot, their share of the top, and the largest distance of the
    rest."""
    above = tl.sum((v > pivot).to(tl.int32), 1, keep_dims=True)
    tied = tl.sum((v == pivot).to(tl.int32), 1, keep_dims=True)
    # Divided in the dtype: a division in float64 is a call, which needs registers of its own.
    share = (k - above).to(d.dtype) / tl.maximum(tied, 1).to(d.dtype)
    best = tl.max(tl.where(v < pivot, d, float("-inf")), 1, keep_dims=True)
    best = tl.where(tied * (1.0 - share) > 0.0, 0.0, best).to(d.dtype)
    return tied.to(d.dtype), share, best


@triton.jit
def _solve(v, d, pivot, k, DOUBLE: tl.constexpr):
    """The offset of the threshold: Newton's method on the logarithm of a ratio of leaks."""
    tied, share, best = _sides(v, d, pivot, k)
    best = tl.maximum(best, largest_below(DOUBLE))
    tied_top, tied_rest = tied * share, tied * (1.0 - share)
    tiny = smallest(DOUBLE)
    below = v < pivot
    e = tl.where(v == pivot, 0.0, tail_of(v, d, pivot, best))
    # In the cold limit both tails are pure exponentials and the root is explicit.
    rest = tl.sum(tl.where(below, e, 0.0), 1, keep_dims=True) + tied_rest
    top = tl.sum(tl.where(below, 0.0, e), 1, keep_dims=True) + tied_top
    t = 0.5 * (best + tl.log(tl.maximum(rest, tiny)) - tl.log(tl.maximum(top, tiny)))
    low, high = tl.zeros_like(t) - float("inf"), tl.zeros_like(t) + float("inf")
    active = is_finite(pivot)
    step = 0
    moving = tl.max(tl.max(active.to(tl.int32), 1), 0)
    while (moving > 0) & (step < MAX_STEPS):
        c_rest, c_top = odds(best - t, DOUBLE), odds(t, DOUBLE)
        r = e / (1.0 + tl.where(below, c_rest, c_top) * e)
        square = r * r
        r_rest, r_top = 1.0 / (1.0 + c_rest), 1.0 / (1.0 + c_top)
        rest = tl.sum(tl.where(below, r, 0.0), 1, keep_dims=True) + tied_rest * r_rest
        top = tl.sum(tl.where(below, 0.0, r), 1, keep_dims=True) + tied_top * r_top
        rest_square = tl.sum(tl.where(below, square, 0.0), 1, keep_dims=True)
        top_square = tl.sum(tl.where(below, 0.0, square), 1, keep_dims=True)
        new, low, high, far = newton_step(
            t,
            low,
            high,
            best,
            tl.maximum(rest, tiny),
            rest_square + tied_rest * r_rest * r_rest,
            tl.maximum(top, tiny),
            top_square + tied_top * r_top * r_top,
            DOUBLE,
        )
        t = tl.where(active, new, t)
        active = active & far
        moving = tl.max(tl.max(active.to(tl.int32), 1), 0)
        step += 1
    return tl.where(t == t, t, 0.0)


@triton.jit
def forward(
    x,
    mask,
    k_values,
    tau_values,
    out,
    state,
    offsets,
    rows,
    n,
    shorter,
    k_value: "fp64",
    tau_value: "fp64",
    mask_inner,
    mask_count,
    MODE: tl.constexpr,
    LARGEST: tl.constexpr,
    DOUBLE: tl.constexpr,
    BITS: tl.constexpr,
    R: tl.constexpr,
    N: tl.constexpr,
):
    """``state`` (2, rows): the pivots and the offsets. ``out`` (rows, n), or (rows,) thresholds.

    With ``offsets`` (rows + 1) rows are ragged: those of more than ``shorter`` and at most N
    elements are solved, others are left alone.
    """
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    column = tl.arange(0, N)[None, :]
    exists = row < rows
    begin, mask_begin, n = place_of(row, exists, offsets, n, mask_inner, mask_count)
    if offsets is not None:
        exists = exists & (n > shorter) & (n <= N)
    inside = exists & (column < n)
    v = load_scores(x, mask, begin, mask_begin, column, inside, LARGEST, DOUBLE)
    k = number_of(k_values, k_value, row, exists, True)
    tau = number_of(tau_values, tau_value, row, exists, DOUBLE)
    broken = tl.max((v != v).to(tl.int32), 1, keep_dims=True) > 0
    taking_part = tl.sum((v > float("-inf")).to(tl.int32), 1, keep_dims=True)
    pivot = settle(_pivot_of(v, k, n, BITS, DOUBLE), k, taking_part, broken)
    d = distance_of(v, pivot, 1.0 / tau)
    t = _solve(v, d, pivot, k, DOUBLE)
    tl.store(state + row, pivot, mask=exists)
    tl.store(state + rows + row, t, mask=exists)
    if MODE == "threshold":
        threshold = tl.where(is_finite(pivot), pivot + tau * t, pivot)
        tl.store(out + row, threshold if LARGEST else -threshold, mask=exists)
    else:
        infinite = tl.sum((v == float("inf")).to(tl.int32), 1, keep_dims=True)
        shared = (tl.maximum(k, 0.0) / tl.maximum(infinite, 1)).to(v.dtype)
        if MODE == "log_indicator":
            result = log_indicator_of(v, d - t, pivot, shared, DOUBLE)
        else:
            result = indicator_of(v, d - t, pivot, shared)
        if MODE == "softmax":
            largest = tl.max(v, 1, keep_dims=True)
            origin = tl.where(largest > float("-inf"), largest, 0.0)
            # An infinite score makes its row NaN, as torch.softmax has it.
            result = tl.exp(v - origin) * result
            total = tl.sum(result, 1, keep_dims=True)
            result = tl.where(total > 0.0, result / total, total)
        tl.store(out + begin + column, result, mask=inside)


@triton.jit
def backward(
    x,
    mask,
    k_values,
    tau_values,
    state,
    grad,
    grad_x,
    grad_tau,
    offsets,
    rows,
    n,
    shorter,
    k_value: "fp64",
    tau_value: "fp64",
    mask_inner,
    mask_count,
    MODE: tl.constexpr,
    LARGEST: tl.constexpr,
    DOUBLE: tl.constexpr,
    R: tl.constexpr,
    N: tl.constexpr,
):
    """From the scores, the ``state`` of `forward`, and ``grad`` of the shape of its result."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    column = tl.arange(0, N)[None, :]
    exists = row < rows
    begin, mask_begin, n = place_of(row, exists, offsets, n, mask_inner, mask_count)
    if offsets is not None:
        exists = exists & (n > shorter) & (n <= N)
    inside = exists & (column < n)
    v = load_scores(x, mask, begin, mask_begin, column, inside, LARGEST, DOUBLE)
    k = number_of(k_values, k_value, row, exists, True)
    rate = 1.0 / number_of(tau_values, tau_value, row, exists, DOUBLE)
    pivot = tl.load(state + row, mask=exists, other=float("inf"))
    t = tl.load(state + rows + row, mask=exists, other=0.0)
    alive = is_finite(pivot)
    v = tl.where(pivot == pivot, v, float("-inf"))  # a NaN must not get into a sum
    d = distance_of(v, pivot, rate)
    tied, share, best = _sides(v, d, pivot, k)
    best = tl.maximum(best, largest_below(DOUBLE))
    leak, lost, kept = leak_of(v, d, t, pivot, best, DOUBLE)
    below = v < pivot
    leak_rest = tl.sum(tl.where(below, leak, 0.0), 1, keep_dims=True)
    leak_rest += tied * (1.0 - share) / (1.0 + odds(best - t, DOUBLE))
    leak_top = tl.where(below, 0.0, tl.where(v == pivot, share * leak, leak))
    leak_top = tl.sum(leak_top, 1, keep_dims=True)
    tiny = smallest(DOUBLE)
    weight = leak * kept / tl.maximum(tl.where(below, leak_rest, leak_top), tiny)
    weight = tl.where(alive, weight, 0.0)
    total = tl.maximum(tl.sum(weight, 1, keep_dims=True), tiny)
    # s = A (1 - A) is the weight times the mass that leaks, the same on both sides at the root.
    mass = odds(t, DOUBLE) * leak_top
    # Registers are scarce: what needs no gradient is done before that is loaded.
    if MODE == "softmax":
        a = share_of(v, pivot, odds(best - t, DOUBLE) * leak, kept)
        largest = tl.max(v, 1, keep_dims=True)
        quotient = tl.exp(v - tl.where(is_finite(largest), largest, 0.0))
        quotient = quotient / tl.maximum(tl.sum(quotient * a, 1, keep_dims=True), tiny)
        steepest = column == tl.argmax(weight, 1, keep_dims=True)
        first = tl.sum(tl.where(steepest, quotient, 0.0), 1, keep_dims=True)
    if MODE == "threshold":
        g = tl.load(grad + row, mask=exists, other=0.0).to(v.dtype)
    else:
        g = tl.load(grad + begin + column, mask=inside, other=0.0).to(v.dtype)

    if MODE == "indicator":
        g = tl.where(weight > 0.0, g, 0.0)
        mean = tl.sum(weight * g, 1, keep_dims=True) / total
        pull = weight * mass * g
    elif MODE == "log_indicator":
        pull = tl.where(alive & is_finite(d), g * tl.where(below, kept, lost), 0.0)
        mean = tl.sum(pull, 1, keep_dims=True) / total
    elif MODE == "softmax":
        g = tl.where(a > 0.0, g, 0.0)
        centre = tl.sum(quotient * a * g, 1, keep_dims=True)
        pull = quotient * (g - centre) * weight * mass
    if grad_tau is not None:
        counts = is_finite(d) if MODE == "log_indicator" else weight > 0.0
        z = tl.where(counts, d - t, 0.0)
        z_mean = tl.sum(weight * z, 1, keep_dims=True) / total
        if MODE == "threshold":
            slope = -g * z_mean if LARGEST else g * z_mean
        else:
            slope = -tl.sum(pull * (z - z_mean), 1, keep_dims=True) * rate
        tl.store(grad_tau + row, slope, mask=exists)

    if MODE == "indicator":
        result = weight * (mass * rate) * (g - mean)
    elif MODE == "log_indicator":
        result = (pull - weight * mean) * rate
    elif MODE == "threshold":
        result = weight * (g / total)
    else:
        # From the steepest element, and so that its own distance is exactly zero: see softmax.hpp.
        g_first = tl.sum(tl.where(steepest, g, 0.0), 1, keep_dims=True)
        distance = (quotient - first) * (g - centre) + first * (g - g_first)
        mean = tl.sum(weight * distance, 1, keep_dims=True) / total
        result = quotient * a * (g - centre) + weight * (mass * rate) * (distance - mean)
    if not LARGEST and MODE != "threshold":  # whose own sign changes too
        result = -result
    tl.store(grad_x + begin + column, result, mask=inside)
