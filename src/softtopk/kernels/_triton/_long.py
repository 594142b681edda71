"""Rows that are too long for the registers of one program: several passes in one launch.

A pass is a loop over blocks of the row. Where there are fewer rows than the device has
multiprocessors, P programs share a row. They meet at a barrier after a pass and add up what each of
them has found, in the same order, so that all of them go on with the same numbers. Such a launch is
cooperative: the device runs all programs at once, or refuses.

The pivot is found by the digits of its key, most significant first: a histogram of the next digit
of the keys that begin as the pivot does says which digit it has.

What stands for a solved row, besides its pivot and the offset, is what the derivative would need a
pass of its own for.
"""

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
    number_of_key,
    odds,
    row_of_mask,
    settle,
    smallest,
    tail_of,
)

#: Digits of the keys have 11 bits.
DIGIT = tl.constexpr(11)
BINS = tl.constexpr(2048)
#: The numbers of a solved row: pivot, offset, best distance of the rest, leaks of the rest and of
#: the top, sum of the weights, largest score, sum of exp(score - largest) A, and the index of the
#: steepest element.
STATE = 9
#: The sums that programs of a row exchange after a pass. There are two sets, used in turns: a
#: program may write the next sums while another one still reads these.
SLOTS = tl.constexpr(8)


@triton.jit
def _meet(counter, turn, P: tl.constexpr):
    """Wait until all P programs of the row are here, for the ``turn``-th time."""
    if P > 1:
        tl.debug_barrier()  # all threads of this program have written
        tl.atomic_add(counter, 1, sem="release", scope="gpu")
        while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < turn * P:
            pass
        tl.debug_barrier()


@triton.jit
def _leave(sums, turn, slot: tl.constexpr, part, value, P: tl.constexpr):
    if P > 1:
        tl.store(sums + ((turn % 2) * SLOTS + slot) * P + part, value)


@triton.jit
def _left(sums, turn, slot: tl.constexpr, other, P: tl.constexpr, PP: tl.constexpr):
    """What every program of the row has left, and ``other`` beyond them."""
    program = tl.arange(0, PP)
    at = sums + ((turn % 2) * SLOTS + slot) * P + program
    return tl.load(at, mask=program < P, other=other, volatile=True)


@triton.jit
def _sum(sums, turn, slot: tl.constexpr, own, P: tl.constexpr, PP: tl.constexpr):
    if P > 1:
        return tl.sum(_left(sums, turn, slot, 0.0, P, PP), 0)
    else:
        return own


@triton.jit
def _largest(sums, turn, slot: tl.constexpr, own, P: tl.constexpr, PP: tl.constexpr):
    if P > 1:
        return tl.max(_left(sums, turn, slot, float("-inf"), P, PP), 0)
    else:
        return own


@triton.jit
def _part_of(n, part, P: tl.constexpr, BLOCK: tl.constexpr):
    """The elements of the row that are this program's: from, to."""
    size = tl.cdiv(tl.cdiv(n, P), BLOCK) * BLOCK
    return part * size, tl.minimum(n, (part + 1) * size)


@triton.jit
def forward(
    x,
    mask,
    k_values,
    tau_values,
    out,
    state,
    sums,
    meetings,
    histograms,
    rows,
    n,
    k_value: "fp64",
    tau_value: "fp64",
    mask_inner,
    mask_count,
    MODE: tl.constexpr,
    LARGEST: tl.constexpr,
    DOUBLE: tl.constexpr,
    BITS: tl.constexpr,
    P: tl.constexpr,
    PP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``state`` (STATE, rows). For P > 1: ``sums`` (rows, 2, SLOTS, P) in float64, and zeros:
    ``meetings`` (rows,), ``histograms`` (rows, digits, BINS). PP is P or the next power of two."""
    row = (tl.program_id(0) // P).to(tl.int64)
    part = tl.program_id(0) % P
    begin, end = _part_of(n, part, P, BLOCK)
    mask_row = row_of_mask(row, mask_inner, mask_count)
    k = number_of(k_values, k_value, row, row < rows, True)
    tau = number_of(tau_values, tau_value, row, row < rows, DOUBLE)
    if P > 1:
        sums += row * (2 * SLOTS * P)
        meetings += row
    turn = 1
    zero = (tau * 0.0).to(tl.float64)

    # The pivot.
    WIDTH: tl.constexpr = 64 if DOUBLE else 32
    DIGITS: tl.constexpr = (BITS + DIGIT - 1) // DIGIT
    rank = tl.minimum(tl.maximum(tl.ceil(k), 1.0), n).to(tl.int32)
    above = rank * 0
    tied = rank * 0
    taking_part = rank * 0
    infinite = rank * 0
    broken = rank * 0
    largest = zero - float("inf")
    digit_index = tl.arange(0, BINS)
    if DOUBLE:
        prefix = tl.full((), 0, tl.uint64)
    else:
        prefix = tl.full((), 0, tl.uint32)
    for i in tl.static_range(DIGITS):
        SIZE: tl.constexpr = min(DIGIT, WIDTH - DIGIT * i)
        SHIFT: tl.constexpr = WIDTH - DIGIT * i - SIZE
        counts = tl.zeros((BINS,), tl.int32)
        for start in range(begin, end, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < end
            v = load_scores(x, mask, row, mask_row, column, inside, n, LARGEST, DOUBLE)
            key = key_of(v, DOUBLE)
            digit = (key >> SHIFT).to(tl.int32) & ((1 << SIZE) - 1)
            if i == 0:
                counts += tl.histogram(digit, BINS, mask=inside)
                taking_part += tl.sum((v > float("-inf")).to(tl.int32), 0)
                infinite += tl.sum((v == float("inf")).to(tl.int32), 0)
                broken += tl.sum((v != v).to(tl.int32), 0)
                largest = tl.maximum(largest, tl.max(v, 0).to(tl.float64))
            else:
                counts += tl.histogram(digit, BINS, mask=inside & ((key >> (SHIFT + SIZE)) == prefix))
        if P > 1:
            shared = histograms + (row * DIGITS + i) * BINS + digit_index
            tl.atomic_add(shared, counts, mask=counts > 0, sem="relaxed", scope="gpu")
            if i == 0:
                _leave(sums, turn, 0, part, taking_part.to(tl.float64), P)
                _leave(sums, turn, 1, part, infinite.to(tl.float64), P)
                _leave(sums, turn, 2, part, broken.to(tl.float64), P)
                _leave(sums, turn, 3, part, largest, P)
            _meet(meetings, turn, P)
            counts = tl.load(shared, volatile=True)
            if i == 0:
                taking_part = _sum(sums, turn, 0, zero, P, PP).to(tl.int32)
                infinite = _sum(sums, turn, 1, zero, P, PP).to(tl.int32)
                broken = _sum(sums, turn, 2, zero, P, PP).to(tl.int32)
                largest = _largest(sums, turn, 3, largest, P, PP)
            turn += 1
        enough = tl.cumsum(counts, 0, reverse=True) >= rank
        digit = tl.max(tl.where(enough, digit_index, 0), 0)
        before = tl.sum(tl.where(digit_index > digit, counts, 0), 0)
        tied = tl.sum(tl.where(digit_index == digit, counts, 0), 0)
        above += before
        rank -= before
        prefix = (prefix << SIZE) | digit.to(prefix.dtype)
    REST: tl.constexpr = max(WIDTH - DIGIT * DIGITS, 0)
    if REST > 0:
        # Zeros in the numbers of a half dtype, and so ones in the keys of negative ones.
        key = prefix << REST
        prefix = tl.where((prefix >> (WIDTH - 1 - REST)) != 0, key, key | ((1 << REST) - 1))
    pivot = settle(number_of_key(prefix, DOUBLE), k, taking_part, broken > 0)

    # The best of the rest, and the two tails in the cold limit.
    rate = 1.0 / tau
    tiny = smallest(DOUBLE)
    share = ((k - above) / tl.maximum(tied, 1)).to(tau.dtype)
    tied_top, tied_rest = tied * share, tied * (1.0 - share)
    floor = (zero + largest_below(DOUBLE)).to(tau.dtype)
    best = tl.where(tied_rest > 0.0, 0.0, floor)
    rest, top = zero, zero
    for start in range(begin, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        v = load_scores(x, mask, row, mask_row, column, column < end, n, LARGEST, DOUBLE)
        d = distance_of(v, pivot, rate)
        new = tl.maximum(best, tl.max(tl.where(v < pivot, d, float("-inf")), 0))
        e = tail_of(v, d, pivot, new)
        rest = rest * tl.exp(best - new) + tl.sum(tl.where(v < pivot, e, 0.0), 0)
        top += tl.sum(tl.where(v > pivot, e, 0.0), 0)
        best = new
    if P > 1:
        _leave(sums, turn, 0, part, best.to(tl.float64), P)
        _leave(sums, turn, 1, part, rest, P)
        _leave(sums, turn, 2, part, top, P)
        _meet(meetings, turn, P)
        bests = _left(sums, turn, 0, largest_below(DOUBLE), P, PP).to(tau.dtype)
        best = tl.max(bests, 0)
        rest = tl.sum(_left(sums, turn, 1, 0.0, P, PP) * tl.exp(bests - best), 0)
        top = _sum(sums, turn, 2, top, P, PP)
        turn += 1

    # Newton's steps.
    rest, top = rest.to(tau.dtype) + tied_rest, top.to(tau.dtype) + tied_top
    t = 0.5 * (best + tl.log(tl.maximum(rest, tiny)) - tl.log(tl.maximum(top, tiny)))
    low, high = tau * 0.0 - float("inf"), tau * 0.0 + float("inf")
    moving = is_finite(pivot)
    step = 0
    while moving & (step < MAX_STEPS):
        c_rest, c_top = odds(best - t, DOUBLE), odds(t, DOUBLE)
        rest, top, rest_square, top_square = zero, zero, zero, zero
        for start in range(begin, end, BLOCK):
            column = start + tl.arange(0, BLOCK)
            v = load_scores(x, mask, row, mask_row, column, column < end, n, LARGEST, DOUBLE)
            d = distance_of(v, pivot, rate)
            e = tl.where(v == pivot, 0.0, tail_of(v, d, pivot, best))
            r = e / (1.0 + tl.where(v < pivot, c_rest, c_top) * e)
            rest += tl.sum(tl.where(v < pivot, r, 0.0), 0)
            top += tl.sum(tl.where(v < pivot, 0.0, r), 0)
            rest_square += tl.sum(tl.where(v < pivot, r * r, 0.0), 0)
            top_square += tl.sum(tl.where(v < pivot, 0.0, r * r), 0)
        if P > 1:
            _leave(sums, turn, 0, part, rest, P)
            _leave(sums, turn, 1, part, top, P)
            _leave(sums, turn, 2, part, rest_square, P)
            _leave(sums, turn, 3, part, top_square, P)
            _meet(meetings, turn, P)
            rest = _sum(sums, turn, 0, rest, P, PP)
            top = _sum(sums, turn, 1, top, P, PP)
            rest_square = _sum(sums, turn, 2, rest_square, P, PP)
            top_square = _sum(sums, turn, 3, top_square, P, PP)
            turn += 1
        r_rest, r_top = 1.0 / (1.0 + c_rest), 1.0 / (1.0 + c_top)
        t, low, high, moving = newton_step(
            t,
            low,
            high,
            best,
            tl.maximum(rest.to(t.dtype) + tied_rest * r_rest, tiny),
            rest_square.to(t.dtype) + tied_rest * r_rest * r_rest,
            tl.maximum(top.to(t.dtype) + tied_top * r_top, tiny),
            top_square.to(t.dtype) + tied_top * r_top * r_top,
            DOUBLE,
        )
        step += 1
    t = tl.where(t == t, t, 0.0)

    # The sums that the derivative needs; and the norm of a softmax.
    leak_rest, leak_top, slope_rest, slope_top, norm = zero, zero, zero, zero, zero
    nearest = zero + float("inf")
    index = rank * 0
    of_infinite = (tl.maximum(k, 0.0) / tl.maximum(infinite, 1)).to(tau.dtype)
    origin = tl.where(largest > float("-inf"), largest, 0.0).to(tau.dtype)
    for start in range(begin, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < end
        v = load_scores(x, mask, row, mask_row, column, inside, n, LARGEST, DOUBLE)
        d = distance_of(v, pivot, rate)
        leak, lost, kept = leak_of(v, d, t, pivot, best, DOUBLE)
        below = v < pivot
        leak_rest += tl.sum(tl.where(below, leak, 0.0), 0)
        leak_top += tl.sum(tl.where(below, 0.0, tl.where(v == pivot, share * leak, leak)), 0)
        slope_rest += tl.sum(tl.where(below, leak * kept, 0.0), 0)
        slope_top += tl.sum(tl.where(below, 0.0, leak * kept), 0)
        if MODE == "softmax":
            a = indicator_of(v, d - t, pivot, of_infinite)
            norm += tl.sum(tl.exp(v - origin) * a, 0)
            near = tl.where(is_finite(d), tl.abs(d - t), float("inf"))
            own = tl.min(near, 0).to(tl.float64)
            index = tl.where(own < nearest, start + tl.argmin(near, 0), index)
            nearest = tl.minimum(own, nearest)
        elif MODE == "indicator":
            result = indicator_of(v, d - t, pivot, of_infinite)
            tl.store(out + row * n + column, result, mask=inside)
        elif MODE == "log_indicator":
            result = log_indicator_of(v, d - t, pivot, of_infinite, DOUBLE)
            tl.store(out + row * n + column, result, mask=inside)
    if P > 1:
        _leave(sums, turn, 0, part, leak_rest, P)
        _leave(sums, turn, 1, part, leak_top, P)
        _leave(sums, turn, 2, part, slope_rest, P)
        _leave(sums, turn, 3, part, slope_top, P)
        _leave(sums, turn, 4, part, norm, P)
        _leave(sums, turn, 5, part, -nearest, P)
        _leave(sums, turn, 6, part, index.to(tl.float64), P)
        _meet(meetings, turn, P)
        leak_rest = _sum(sums, turn, 0, leak_rest, P, PP)
        leak_top = _sum(sums, turn, 1, leak_top, P, PP)
        slope_rest = _sum(sums, turn, 2, slope_rest, P, PP)
        slope_top = _sum(sums, turn, 3, slope_top, P, PP)
        norm = _sum(sums, turn, 4, norm, P, PP)
        first = tl.argmax(_left(sums, turn, 5, float("-inf"), P, PP), 0)
        indices = _left(sums, turn, 6, 0.0, P, PP)
        index = tl.sum(tl.where(tl.arange(0, PP) == first, indices, 0.0), 0).to(tl.int32)
    if MODE == "softmax":
        for start in range(begin, end, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < end
            v = load_scores(x, mask, row, mask_row, column, inside, n, LARGEST, DOUBLE)
            a = indicator_of(v, distance_of(v, pivot, rate) - t, pivot, of_infinite)
            total = norm.to(v.dtype)
            result = tl.where(total > 0.0, tl.exp(v - origin) * a / total, total)
            tl.store(out + row * n + column, result, mask=inside)

    if part == 0:
        leak_rest = leak_rest.to(t.dtype) + tied_rest / (1.0 + odds(best - t, DOUBLE))
        leak_top = leak_top.to(t.dtype)
        weights = slope_rest.to(t.dtype) / tl.maximum(leak_rest, tiny)
        weights += slope_top.to(t.dtype) / tl.maximum(leak_top, tiny)
        if DOUBLE:
            index_bits = index.to(tl.int64).to(tl.float64, bitcast=True)
        else:
            index_bits = index.to(tl.float32, bitcast=True)
        tl.store(state + row, pivot)
        tl.store(state + rows + row, t)
        tl.store(state + 2 * rows + row, best)
        tl.store(state + 3 * rows + row, leak_rest)
        tl.store(state + 4 * rows + row, leak_top)
        tl.store(state + 5 * rows + row, weights)
        tl.store(state + 6 * rows + row, origin)
        tl.store(state + 7 * rows + row, norm.to(t.dtype))
        tl.store(state + 8 * rows + row, index_bits)
        if MODE == "threshold":
            threshold = tl.where(is_finite(pivot), pivot + tau * t, pivot)
            tl.store(out + row, threshold if LARGEST else -threshold)


@triton.jit
def backward(
    x,
    mask,
    tau_values,
    state,
    grad,
    grad_x,
    grad_tau,
    sums,
    meetings,
    rows,
    n,
    tau_value: "fp64",
    mask_inner,
    mask_count,
    MODE: tl.constexpr,
    LARGEST: tl.constexpr,
    DOUBLE: tl.constexpr,
    P: tl.constexpr,
    PP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The same formulas as for rows in registers: see _short.py."""
    row = (tl.program_id(0) // P).to(tl.int64)
    part = tl.program_id(0) % P
    begin, end = _part_of(n, part, P, BLOCK)
    mask_row = row_of_mask(row, mask_inner, mask_count)
    rate = 1.0 / number_of(tau_values, tau_value, row, row < rows, DOUBLE)
    if P > 1:
        sums += row * (2 * SLOTS * P)
        meetings += row
    zero = (rate * 0.0).to(tl.float64)
    tiny = smallest(DOUBLE)
    pivot = tl.load(state + row)
    t = tl.load(state + rows + row)
    best = tl.load(state + 2 * rows + row)
    leak_rest = tl.maximum(tl.load(state + 3 * rows + row), tiny)
    leak_top = tl.maximum(tl.load(state + 4 * rows + row), tiny)
    total = tl.maximum(tl.load(state + 5 * rows + row), tiny)
    alive = is_finite(pivot)
    mass = odds(t, DOUBLE) * leak_top
    turn = 1
    g = (rate * 0.0).to(rate.dtype)
    if MODE == "threshold":
        g = tl.load(grad + row).to(rate.dtype)
    centre, first, g_first, origin, norm = g, g, g, g, g
    if MODE == "softmax":
        origin = tl.load(state + 6 * rows + row)
        norm = tl.maximum(tl.load(state + 7 * rows + row), tiny)
        bits = tl.load(state + 8 * rows + row)
        index = bits.to(tl.int64 if DOUBLE else tl.int32, bitcast=True)
        steepest = load_scores(x, mask, row, mask_row, index, index < n, n, LARGEST, DOUBLE)
        first = tl.exp(steepest - origin) / norm
        g_first = tl.load(grad + row * n + index).to(rate.dtype)
        selected = zero
        for start in range(begin, end, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < end
            v = load_scores(x, mask, row, mask_row, column, inside, n, LARGEST, DOUBLE)
            g = tl.load(grad + row * n + column, mask=inside, other=0.0).to(v.dtype)
            d = distance_of(v, pivot, rate)
            a = _share_of(v, d, t, pivot, best, DOUBLE)
            weighted = tl.where(a > 0.0, tl.exp(v - origin) * a * g, 0.0)
            selected += tl.sum(weighted, 0)
        _leave(sums, turn, 0, part, selected, P)
        _meet(meetings, turn, P)
        centre = _sum(sums, turn, 0, selected, P, PP).to(rate.dtype) / norm
        turn += 1

    weighted_f, weighted_z, pulled, pulled_z = zero, zero, zero, zero
    for start in range(begin, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < end
        v = load_scores(x, mask, row, mask_row, column, inside, n, LARGEST, DOUBLE)
        d = distance_of(v, pivot, rate)
        leak, lost, kept = leak_of(v, d, t, pivot, best, DOUBLE)
        weight = leak * kept / tl.where(v < pivot, leak_rest, leak_top)
        weight = tl.where(alive & is_finite(d), weight, 0.0)
        z = tl.where(is_finite(d), d - t, 0.0)
        weighted_z += tl.sum(weight * z, 0)
        if MODE != "threshold":
            g = tl.load(grad + row * n + column, mask=inside, other=0.0).to(v.dtype)
            if MODE == "indicator":
                f = tl.where(weight > 0.0, g, 0.0)
                pull = weight * mass * f
            elif MODE == "log_indicator":
                f = g * 0.0
                pull = tl.where(alive & is_finite(d), g * tl.where(v < pivot, kept, lost), 0.0)
            else:
                g = tl.where(weight > 0.0, g, 0.0)
                quotient = tl.exp(v - origin) / norm
                f = (quotient - first) * (g - centre) + first * (g - g_first)
                pull = quotient * (g - centre) * weight * mass
            weighted_f += tl.sum(weight * f, 0)
            pulled += tl.sum(pull, 0)
            pulled_z += tl.sum(pull * z, 0)
    if P > 1:
        _leave(sums, turn, 0, part, weighted_f, P)
        _leave(sums, turn, 1, part, weighted_z, P)
        _leave(sums, turn, 2, part, pulled, P)
        _leave(sums, turn, 3, part, pulled_z, P)
        _meet(meetings, turn, P)
        weighted_f = _sum(sums, turn, 0, weighted_f, P, PP)
        weighted_z = _sum(sums, turn, 1, weighted_z, P, PP)
        pulled = _sum(sums, turn, 2, pulled, P, PP)
        pulled_z = _sum(sums, turn, 3, pulled_z, P, PP)
    mean = weighted_f.to(rate.dtype) / total
    shift = pulled.to(rate.dtype) / total

    for start in range(begin, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < end
        v = load_scores(x, mask, row, mask_row, column, inside, n, LARGEST, DOUBLE)
        d = distance_of(v, pivot, rate)
        leak, lost, kept = leak_of(v, d, t, pivot, best, DOUBLE)
        weight = leak * kept / tl.where(v < pivot, leak_rest, leak_top)
        weight = tl.where(alive & is_finite(d), weight, 0.0)
        if MODE == "threshold":
            result = weight * (g / total)
        else:
            g = tl.load(grad + row * n + column, mask=inside, other=0.0).to(v.dtype)
            if MODE == "indicator":
                g = tl.where(weight > 0.0, g, 0.0)
                result = weight * (mass * rate) * (g - mean)
            elif MODE == "log_indicator":
                pull = tl.where(alive & is_finite(d), g * tl.where(v < pivot, kept, lost), 0.0)
                result = (pull - weight * shift) * rate
            else:
                a = _share_of(v, d, t, pivot, best, DOUBLE)
                g = tl.where(a > 0.0, g, 0.0)
                quotient = tl.exp(v - origin) / norm
                f = (quotient - first) * (g - centre) + first * (g - g_first)
                result = quotient * a * (g - centre) + weight * (mass * rate) * (f - mean)
            result = result if LARGEST else -result
        tl.store(grad_x + row * n + column, result, mask=inside)
    if grad_tau is not None:
        if part == 0:
            z_mean = weighted_z / total
            if MODE == "threshold":
                slope = -g * z_mean if LARGEST else g * z_mean
            else:
                slope = (z_mean * pulled - pulled_z) * rate
            tl.store(grad_tau + row, slope.to(rate.dtype))


@triton.jit
def _share_of(v, d, t, pivot, best, DOUBLE: tl.constexpr):
    """A, and 0 where a softmax has no derivative."""
    leak, lost, kept = leak_of(v, d, t, pivot, best, DOUBLE)
    a = tl.where(is_finite(pivot), tl.where(v < pivot, lost, kept), 1.0)
    nowhere = (v == float("-inf")) | (pivot == float("inf")) | (pivot != pivot)
    return tl.where(nowhere, 0.0, a)
