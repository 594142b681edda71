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
    place_of,
    settle,
    share_of,
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
def _meet(counter, turn, P):
    """Wait until all P programs of the row are here, for the ``turn``-th time."""
    tl.debug_barrier()  # all threads of this program have written
    tl.atomic_add(counter, 1, sem="release", scope="gpu")
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < turn * P:
        pass
    tl.debug_barrier()


@triton.jit
def _leave(sums, turn, slot: tl.constexpr, part, value, P):
    tl.store(sums + ((turn % 2) * SLOTS + slot) * P + part, value)


@triton.jit
def _left(sums, turn, slot: tl.constexpr, other, P, PP: tl.constexpr):
    """What every program of the row has left, and ``other`` beyond them."""
    program = tl.arange(0, PP)
    at = sums + ((turn % 2) * SLOTS + slot) * P + program
    return tl.load(at, mask=program < P, other=other, volatile=True)


@triton.jit
def _add_up(exchange, turn, a, b, c, d, e, m, PP: tl.constexpr):
    """Five sums and a maximum over the programs of the row. All numbers are float64."""
    if PP > 1:
        sums, meetings, part, P = exchange
        _leave(sums, turn, 0, part, a, P)
        _leave(sums, turn, 1, part, b, P)
        _leave(sums, turn, 2, part, c, P)
        _leave(sums, turn, 3, part, d, P)
        _leave(sums, turn, 4, part, e, P)
        _leave(sums, turn, 5, part, m, P)
        _meet(meetings, turn, P)
        a = tl.sum(_left(sums, turn, 0, 0.0, P, PP), 0)
        b = tl.sum(_left(sums, turn, 1, 0.0, P, PP), 0)
        c = tl.sum(_left(sums, turn, 2, 0.0, P, PP), 0)
        d = tl.sum(_left(sums, turn, 3, 0.0, P, PP), 0)
        e = tl.sum(_left(sums, turn, 4, 0.0, P, PP), 0)
        m = tl.max(_left(sums, turn, 5, float("-inf"), P, PP), 0)
    return a, b, c, d, e, m


@triton.jit
def _part_of(n, part, P, BLOCK: tl.constexpr):
    """The elements of the row that are this program's: from, to."""
    size = tl.cdiv(tl.cdiv(n, P), BLOCK) * BLOCK
    return part * size, tl.minimum(n, (part + 1) * size)


@triton.jit
def _block(source, start, end, LARGEST: tl.constexpr, DOUBLE: tl.constexpr, BLOCK: tl.constexpr):
    """A block of the row: its elements in canonical form, their columns, and which of them are this
    program's."""
    x, mask, base, mask_base = source
    column = start + tl.arange(0, BLOCK)
    inside = column < end
    v = load_scores(x, mask, base, mask_base, column, inside, LARGEST, DOUBLE)
    return v, column, inside


@triton.jit
def _solved_block(
    source,
    pivot,
    start,
    end,
    LARGEST: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The same, and nothing that takes part in a row with a NaN, which must not get into a sum."""
    v, column, inside = _block(source, start, end, LARGEST, DOUBLE, BLOCK)
    return tl.where(pivot == pivot, v, float("-inf")), column, inside


@triton.jit
def _digits(
    source,
    span,
    prefix,
    i: tl.constexpr,
    LARGEST: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """How often each value occurs as the i-th digit of the keys that begin with ``prefix``."""
    WIDTH: tl.constexpr = 64 if DOUBLE else 32
    SIZE: tl.constexpr = min(DIGIT, WIDTH - DIGIT * i)
    SHIFT: tl.constexpr = WIDTH - DIGIT * i - SIZE
    LAST: tl.constexpr = (BINS >> (DIGIT - SIZE)) - 1
    begin, end = span
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(begin, end, BLOCK):
        v, _, inside = _block(source, start, end, LARGEST, DOUBLE, BLOCK)
        key = key_of(v, DOUBLE)
        if i > 0:
            inside = inside & ((key >> (SHIFT + SIZE)) == prefix)
        counts += tl.histogram((key >> SHIFT).to(tl.int32) & LAST, BINS, mask=inside)
    return counts


@triton.jit
def _extended(prefix, digit, i: tl.constexpr, DOUBLE: tl.constexpr):
    WIDTH: tl.constexpr = 64 if DOUBLE else 32
    SIZE: tl.constexpr = min(DIGIT, WIDTH - DIGIT * i)
    return (prefix << SIZE) | digit.to(prefix.dtype)


@triton.jit
def _find_pivot(
    source,
    span,
    exchange,
    histograms,
    rank,
    DIGITS: tl.constexpr,
    LARGEST: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
    PP: tl.constexpr,
):
    """The element of this rank, how many are above it, and how many tie with it."""
    _, meetings, _, P = exchange
    above = rank * 0
    tied = rank * 0
    value = tl.arange(0, BINS)
    prefix = tl.full((), 0, tl.uint64 if DOUBLE else tl.uint32)
    for i in tl.static_range(DIGITS):
        counts = _digits(source, span, prefix, i, LARGEST, DOUBLE, BLOCK)
        if PP > 1:
            shared = histograms + i * BINS + value
            tl.atomic_add(shared, counts, mask=counts > 0, sem="relaxed", scope="gpu")
            _meet(meetings, i + 1, P)
            counts = tl.load(shared, volatile=True)
        enough = tl.cumsum(counts, 0, reverse=True) >= rank
        digit = tl.max(tl.where(enough, value, 0), 0)
        before = tl.sum(tl.where(value > digit, counts, 0), 0)
        tied = tl.sum(tl.where(value == digit, counts, 0), 0)
        above += before
        rank -= before
        prefix = _extended(prefix, digit, i, DOUBLE)
    WIDTH: tl.constexpr = 64 if DOUBLE else 32
    REST: tl.constexpr = max(WIDTH - DIGIT * DIGITS, 0)
    if REST > 0:
        # Zeros in the numbers of a half dtype, and so ones in the keys of negative ones.
        first = prefix << REST
        ones = (tl.full((), 1, prefix.dtype) << REST) - 1
        prefix = tl.where((prefix >> (WIDTH - 1 - REST)) != 0, first, first | ones)
    return number_of_key(prefix, DOUBLE), above, tied


@triton.jit
def _kinds(
    source,
    span,
    exchange,
    turn,
    LARGEST: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
    PP: tl.constexpr,
):
    """How many elements take part, are infinite, are NaN; and the largest. All in float64."""
    begin, end = span
    taking_part = tl.full((), 0.0, tl.float64)
    infinite, broken = taking_part, taking_part
    largest = taking_part - float("inf")
    for start in range(begin, end, BLOCK):
        v, _, _ = _block(source, start, end, LARGEST, DOUBLE, BLOCK)
        taking_part += tl.sum((v > float("-inf")).to(tl.int32), 0)
        infinite += tl.sum((v == float("inf")).to(tl.int32), 0)
        broken += tl.sum((v != v).to(tl.int32), 0)
        largest = tl.maximum(largest, tl.max(v, 0))
    none = taking_part * 0.0
    taking_part, infinite, broken, _, _, largest = _add_up(
        exchange, turn, taking_part, infinite, broken, none, none, largest, PP
    )
    return taking_part, infinite, broken, largest


@triton.jit
def _cold_tails(
    source,
    span,
    exchange,
    turn,
    pivot,
    best,
    rate,
    LARGEST: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
    PP: tl.constexpr,
):
    """The best distance of the rest, from ``best`` on, and the sums of the two tails where they are
    pure exponentials. A better one scales the sum of those before it."""
    begin, end = span
    rest = tl.full((), 0.0, tl.float64)
    top = rest
    for start in range(begin, end, BLOCK):
        v, _, _ = _block(source, start, end, LARGEST, DOUBLE, BLOCK)
        d = distance_of(v, pivot, rate)
        new = tl.maximum(best, tl.max(tl.where(v < pivot, d, float("-inf")), 0))
        e = tail_of(v, d, pivot, new)
        rest = rest * tl.exp(best - new) + tl.sum(tl.where(v < pivot, e, 0.0), 0)
        top += tl.sum(tl.where(v > pivot, e, 0.0), 0)
        best = new
    if PP > 1:
        sums, meetings, part, P = exchange
        _leave(sums, turn, 0, part, best.to(tl.float64), P)
        _leave(sums, turn, 1, part, rest, P)
        _leave(sums, turn, 2, part, top, P)
        _meet(meetings, turn, P)
        bests = _left(sums, turn, 0, largest_below(DOUBLE), P, PP).to(best.dtype)
        best = tl.max(bests, 0)
        rest = tl.sum(_left(sums, turn, 1, 0.0, P, PP) * tl.exp(bests - best), 0)
        top = tl.sum(_left(sums, turn, 2, 0.0, P, PP), 0)
    return best, rest.to(best.dtype), top.to(best.dtype)


@triton.jit
def _tails(
    source,
    span,
    exchange,
    turn,
    pivot,
    best,
    rate,
    c_rest,
    c_top,
    LARGEST: tl.constexpr,
    DOUBLE: tl.constexpr,
    BLOCK: tl.constexpr,
    PP: tl.constexpr,
):
    """The sums of e / (1 + c e) over the two tails, without ties, and of its square."""
    begin, end = span
    rest = tl.full((), 0.0, tl.float64)
    top, rest_square, top_square = rest, rest, rest
    for start in range(begin, end, BLOCK):
        v, _, _ = _block(source, start, end, LARGEST, DOUBLE, BLOCK)
        e = tail_of(v, distance_of(v, pivot, rate), pivot, best)
        e = tl.where(v == pivot, 0.0, e)
        r = e / (1.0 + tl.where(v < pivot, c_rest, c_top) * e)
        rest += tl.sum(tl.where(v < pivot, r, 0.0), 0)
        top += tl.sum(tl.where(v < pivot, 0.0, r), 0)
        rest_square += tl.sum(tl.where(v < pivot, r * r, 0.0), 0)
        top_square += tl.sum(tl.where(v < pivot, 0.0, r * r), 0)
    rest, top, rest_square, top_square, _, _ = _add_up(
        exchange, turn, rest, top, rest_square, top_square, rest * 0.0, rest * 0.0, PP
    )
    dtype: tl.constexpr = best.dtype
    return rest.to(dtype), top.to(dtype), rest_square.to(dtype), top_square.to(dtype)


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
    offsets,
    rows,
    n,
    shorter,
    k_value: "fp64",
    tau_value: "fp64",
    mask_inner,
    mask_count,
    P,
    MODE: tl.constexpr,
    LARGEST: tl.constexpr,
    DOUBLE: tl.constexpr,
    BITS: tl.constexpr,
    PP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``state`` (STATE, rows). For P > 1: ``sums`` (rows, 2, SLOTS, P) in float64, and zeros:
    ``meetings`` (rows,), ``histograms`` (rows, digits, BINS). PP is P or the next power of two, and
    so a constant of few values.

    With ``offsets`` (rows + 1) rows are ragged: those of more than ``shorter`` elements are solved,
    others are left alone.
    """
    row = (tl.program_id(0) // P).to(tl.int64)
    part = tl.program_id(0) % P
    base, mask_base, n = place_of(row, row < rows, offsets, n, mask_inner, mask_count)
    if offsets is not None:
        if n <= shorter:
            return
    begin, end = _part_of(n, part, P, BLOCK)
    span = (begin, end)
    source = (x, mask, base, mask_base)
    k = number_of(k_values, k_value, row, row < rows, True)
    tau = number_of(tau_values, tau_value, row, row < rows, DOUBLE)
    rate = 1.0 / tau
    tiny = smallest(DOUBLE)
    DIGITS: tl.constexpr = (BITS + DIGIT - 1) // DIGIT
    if PP > 1:
        sums += row * (2 * SLOTS * P)
        meetings += row
        histograms += row * (DIGITS * BINS)
    exchange = (sums, meetings, part, P)

    rank = tl.minimum(tl.maximum(tl.ceil(k), 1.0), n).to(tl.int32)
    pivot, above, tied = _find_pivot(
        source, span, exchange, histograms, rank, DIGITS, LARGEST, DOUBLE, BLOCK, PP
    )
    turn = DIGITS + 1
    taking_part, infinite, broken, largest = _kinds(
        source, span, exchange, turn, LARGEST, DOUBLE, BLOCK, PP
    )
    turn += 1
    pivot = settle(pivot, k, taking_part, broken > 0)
    share = ((k - above) / tl.maximum(tied, 1)).to(tau.dtype)
    tied_top, tied_rest = tied * share, tied * (1.0 - share)

    best = tl.where(tied_rest > 0.0, 0.0, largest_below(DOUBLE)).to(tau.dtype)
    best, rest, top = _cold_tails(
        source, span, exchange, turn, pivot, best, rate, LARGEST, DOUBLE, BLOCK, PP
    )
    turn += 1
    t = tl.log(tl.maximum(rest + tied_rest, tiny)) - tl.log(tl.maximum(top + tied_top, tiny))
    t = 0.5 * (best + t)
    low, high = tau * 0.0 - float("inf"), tau * 0.0 + float("inf")
    moving = is_finite(pivot)
    step = 0
    while moving & (step < MAX_STEPS):
        c_rest, c_top = odds(best - t, DOUBLE), odds(t, DOUBLE)
        rest, top, rest_square, top_square = _tails(
            source,
            span,
            exchange,
            turn,
            pivot,
            best,
            rate,
            c_rest,
            c_top,
            LARGEST,
            DOUBLE,
            BLOCK,
            PP,
        )
        turn += 1
        r_rest, r_top = 1.0 / (1.0 + c_rest), 1.0 / (1.0 + c_top)
        t, low, high, moving = newton_step(
            t,
            low,
            high,
            best,
            tl.maximum(rest + tied_rest * r_rest, tiny),
            rest_square + tied_rest * r_rest * r_rest,
            tl.maximum(top + tied_top * r_top, tiny),
            top_square + tied_top * r_top * r_top,
            DOUBLE,
        )
        step += 1
    t = tl.where(t == t, t, 0.0)

    # The result, with the sums that the derivative needs.
    of_infinite = (tl.maximum(k, 0.0) / tl.maximum(infinite, 1.0)).to(tau.dtype)
    origin = tl.where(largest > float("-inf"), largest, 0.0).to(tau.dtype)
    leak_rest = tl.full((), 0.0, tl.float64)
    leak_top, slope_rest, slope_top, norm = leak_rest, leak_rest, leak_rest, leak_rest
    nearest = leak_rest + float("inf")
    index = rank * 0
    for start in range(begin, end, BLOCK):
        v, column, inside = _block(source, start, end, LARGEST, DOUBLE, BLOCK)
        d = distance_of(v, pivot, rate)
        leak, _, kept = leak_of(v, d, t, pivot, best, DOUBLE)
        below = v < pivot
        leak_rest += tl.sum(tl.where(below, leak, 0.0), 0)
        leak_top += tl.sum(tl.where(below, 0.0, tl.where(v == pivot, share * leak, leak)), 0)
        slope_rest += tl.sum(tl.where(below, leak * kept, 0.0), 0)
        slope_top += tl.sum(tl.where(below, 0.0, leak * kept), 0)
        if MODE == "softmax":
            norm += tl.sum(tl.exp(v - origin) * indicator_of(v, d - t, pivot, of_infinite), 0)
            near = tl.where(is_finite(d), tl.abs(d - t), float("inf"))
            own = tl.min(near, 0)
            index = tl.where(own < nearest, start + tl.argmin(near, 0), index)
            nearest = tl.minimum(own, nearest)
        elif MODE == "indicator":
            result = indicator_of(v, d - t, pivot, of_infinite)
            tl.store(out + base + column, result, mask=inside)
        elif MODE == "log_indicator":
            result = log_indicator_of(v, d - t, pivot, of_infinite, DOUBLE)
            tl.store(out + base + column, result, mask=inside)
    if PP > 1:
        _leave(sums, turn, 6, part, index.to(tl.float64), P)
    leak_rest, leak_top, slope_rest, slope_top, norm, _ = _add_up(
        exchange, turn, leak_rest, leak_top, slope_rest, slope_top, norm, -nearest, PP
    )
    if PP > 1:
        first = tl.argmax(_left(sums, turn, 5, float("-inf"), P, PP), 0)
        indices = _left(sums, turn, 6, 0.0, P, PP)
        index = tl.sum(tl.where(tl.arange(0, PP) == first, indices, 0.0), 0).to(tl.int32)
    if MODE == "softmax":
        total = norm.to(tau.dtype)
        for start in range(begin, end, BLOCK):
            v, column, inside = _block(source, start, end, LARGEST, DOUBLE, BLOCK)
            a = indicator_of(v, distance_of(v, pivot, rate) - t, pivot, of_infinite)
            result = tl.where(total > 0.0, tl.exp(v - origin) * a / total, total)
            tl.store(out + base + column, result, mask=inside)

    if part == 0:
        leak_rest = leak_rest + tied_rest / (1.0 + odds(best - t, DOUBLE))
        weights = slope_rest / tl.maximum(leak_rest, tiny) + slope_top / tl.maximum(leak_top, tiny)
        # Any positive number will do where there is no derivative.
        leak_rest = tl.where(is_finite(pivot), leak_rest, 1.0)
        leak_top = tl.where(is_finite(pivot), leak_top, 1.0)
        weights = tl.where(is_finite(pivot), weights, 1.0)
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
        tl.store(state + 7 * rows + row, norm)
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
    offsets,
    rows,
    n,
    shorter,
    tau_value: "fp64",
    mask_inner,
    mask_count,
    P,
    MODE: tl.constexpr,
    LARGEST: tl.constexpr,
    DOUBLE: tl.constexpr,
    PP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The same formulas as for rows in registers: see _short.py."""
    row = (tl.program_id(0) // P).to(tl.int64)
    part = tl.program_id(0) % P
    base, mask_base, n = place_of(row, row < rows, offsets, n, mask_inner, mask_count)
    if offsets is not None:
        if n <= shorter:
            return
    begin, end = _part_of(n, part, P, BLOCK)
    source = (x, mask, base, mask_base)
    rate = 1.0 / number_of(tau_values, tau_value, row, row < rows, DOUBLE)
    if PP > 1:
        sums += row * (2 * SLOTS * P)
        meetings += row
    exchange = (sums, meetings, part, P)
    zero = (rate * 0.0).to(tl.float64)
    tiny = smallest(DOUBLE)
    pivot = tl.load(state + row)
    t = tl.load(state + rows + row)
    best = tl.load(state + 2 * rows + row)
    leak_rest = tl.maximum(tl.load(state + 3 * rows + row), tiny)
    leak_top = tl.maximum(tl.load(state + 4 * rows + row), tiny)
    total = tl.maximum(tl.load(state + 5 * rows + row), tiny)
    mass = odds(t, DOUBLE) * leak_top
    turn = 1
    centre = rate * 0.0
    first, g_first, origin, norm = centre, centre, centre, centre
    g_threshold = tl.load(grad + row).to(rate.dtype) if MODE == "threshold" else centre
    if MODE == "softmax":
        origin = tl.load(state + 6 * rows + row)
        norm = tl.load(state + 7 * rows + row)
        norm = tl.where(norm > 0.0, norm, 1.0)
        bits = tl.load(state + 8 * rows + row)
        index = bits.to(tl.int64 if DOUBLE else tl.int32, bitcast=True)
        steepest = load_scores(x, mask, base, mask_base, index, index < n, LARGEST, DOUBLE)
        first = tl.exp(steepest - origin) / norm
        g_first = tl.load(grad + base + index).to(rate.dtype)
        selected = zero
        for start in range(begin, end, BLOCK):
            v, column, inside = _solved_block(source, pivot, start, end, LARGEST, DOUBLE, BLOCK)
            g = tl.load(grad + base + column, mask=inside, other=0.0).to(v.dtype)
            d = distance_of(v, pivot, rate)
            _, lost, kept = leak_of(v, d, t, pivot, best, DOUBLE)
            a = share_of(v, pivot, lost, kept)
            weighted = tl.where(a > 0.0, tl.exp(v - origin) * a * g, 0.0)
            selected += tl.sum(weighted, 0)
        selected, _, _, _, _, _ = _add_up(
            exchange, turn, selected, zero, zero, zero, zero, zero, PP
        )
        centre = selected.to(rate.dtype) / norm
        turn += 1

    weighted_f, weighted_z, pulled, pulled_z = zero, zero, zero, zero
    for start in range(begin, end, BLOCK):
        v, column, inside = _solved_block(source, pivot, start, end, LARGEST, DOUBLE, BLOCK)
        d = distance_of(v, pivot, rate)
        weight, lost, kept = _weight_of(v, d, t, pivot, best, leak_rest, leak_top, DOUBLE)
        z = tl.where(is_finite(d), d - t, 0.0)
        weighted_z += tl.sum(weight * z, 0)
        if MODE != "threshold":
            g = tl.load(grad + base + column, mask=inside, other=0.0).to(v.dtype)
            if MODE == "indicator":
                f = tl.where(weight > 0.0, g, 0.0)
                pull = weight * mass * f
            elif MODE == "log_indicator":
                f = g * 0.0
                pull = tl.where(is_finite(d), g * tl.where(v < pivot, kept, lost), 0.0)
            else:
                g = tl.where(weight > 0.0, g, 0.0)
                quotient = tl.exp(v - origin) / norm
                f = (quotient - first) * (g - centre) + first * (g - g_first)
                pull = quotient * (g - centre) * weight * mass
            weighted_f += tl.sum(weight * f, 0)
            pulled += tl.sum(pull, 0)
            pulled_z += tl.sum(pull * z, 0)
    weighted_f, weighted_z, pulled, pulled_z, _, _ = _add_up(
        exchange, turn, weighted_f, weighted_z, pulled, pulled_z, zero, zero, PP
    )
    mean = weighted_f.to(rate.dtype) / total
    shift = pulled.to(rate.dtype) / total

    for start in range(begin, end, BLOCK):
        v, column, inside = _solved_block(source, pivot, start, end, LARGEST, DOUBLE, BLOCK)
        d = distance_of(v, pivot, rate)
        weight, lost, kept = _weight_of(v, d, t, pivot, best, leak_rest, leak_top, DOUBLE)
        if MODE == "threshold":
            result = weight * (g_threshold / total)
        else:
            g = tl.load(grad + base + column, mask=inside, other=0.0).to(v.dtype)
            if MODE == "indicator":
                g = tl.where(weight > 0.0, g, 0.0)
                result = weight * (mass * rate) * (g - mean)
            elif MODE == "log_indicator":
                pull = tl.where(is_finite(d), g * tl.where(v < pivot, kept, lost), 0.0)
                result = tl.where(is_finite(pivot), (pull - weight * shift) * rate, 0.0)
            else:
                a = share_of(v, pivot, lost, kept)
                g = tl.where(a > 0.0, g, 0.0)
                quotient = tl.exp(v - origin) / norm
                f = (quotient - first) * (g - centre) + first * (g - g_first)
                result = quotient * a * (g - centre) + weight * (mass * rate) * (f - mean)
            result = result if LARGEST else -result
        tl.store(grad_x + base + column, result, mask=inside)
    if grad_tau is not None:
        z_mean = weighted_z / total
        if MODE == "threshold":
            slope = -g_threshold * z_mean if LARGEST else g_threshold * z_mean
        else:
            slope = tl.where(is_finite(pivot), (z_mean * pulled - pulled_z) * rate, 0.0)
        tl.store(grad_tau + row, slope.to(rate.dtype))  # by all programs of the row: the same


@triton.jit
def _weight_of(v, d, t, pivot, best, leak_rest, leak_top, DOUBLE: tl.constexpr):
    """The weight of an element in means, not yet divided by the sum, and its two probabilities."""
    leak, lost, kept = leak_of(v, d, t, pivot, best, DOUBLE)
    weight = leak * kept / tl.where(v < pivot, leak_rest, leak_top)
    weight = tl.where(is_finite(d), weight, 0.0)
    return tl.where(is_finite(pivot), weight, 0.0), lost, kept
