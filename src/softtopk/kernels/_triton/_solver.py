"""What the kernels of the unsorted operators share, on tiles ``(R, N)`` of R rows.

functional/_unsorted.py has the derivation. All numbers of a row are columns ``(R, 1)``. A row is in
canonical form: its largest elements are wanted, and -inf takes no part.

What stands for a solved row are its pivot and the offset of the threshold from it, in units of tau.
The pivot is -inf where all elements that take part are selected, +inf where none is, or where
infinite scores share the places, and NaN where the row has a NaN. Such rows have no derivative.
"""

import triton
import triton.language as tl

#: Newton needs at most 6 steps (measured over the whole documented range, see tests).
MAX_STEPS: tl.constexpr = tl.constexpr(12)


@triton.jit
def place_of(row, exists, offsets, n, mask_inner, mask_count):
    """Where rows begin, where those of their mask do, and how long they are.

    A mask may be repeated: each row ``mask_inner`` times, and all of it again after that. Of ragged
    rows, from one offset to the next, it never is.
    """
    if offsets is not None:
        begin = tl.load(offsets + row, mask=exists, other=0)
        end = tl.load(offsets + row + 1, mask=exists, other=0)
        return begin, begin, (end - begin).to(tl.int32)
    else:
        return row * n, ((row // mask_inner) % mask_count) * n, n


@triton.jit
def load_scores(
    x, mask, begin, mask_begin, column, inside, LARGEST: tl.constexpr, DOUBLE: tl.constexpr
):
    """Elements in canonical form, in float32 or float64; -inf where they are not ``inside``."""
    low = float("-inf")
    v = tl.load(x + begin + column, mask=inside, other=low if LARGEST else float("inf"))
    v = v.to(tl.float64) if DOUBLE else v.to(tl.float32)
    if not LARGEST:
        v = -v
    if mask is not None:
        takes_part = tl.load(mask + mask_begin + column, mask=inside, other=0) != 0
        v = tl.where(takes_part, v, low)
    return v


@triton.jit
def number_of(values, value, row, inside, DOUBLE: tl.constexpr):
    """A number per row, out of an array or the same for all."""
    if values is not None:
        number = tl.load(values + row, mask=inside, other=1.0)
    else:
        number = value + tl.zeros_like(row).to(tl.float64)
    return number.to(tl.float64) if DOUBLE else number.to(tl.float32)


@triton.jit
def key_of(v, DOUBLE: tl.constexpr):
    """Unsigned integers in the order of the numbers. Both zeros have one key."""
    v = tl.where(v == 0.0, 0.0, v)
    if DOUBLE:
        bits = v.to(tl.uint64, bitcast=True)
        one = tl.full((), 1, tl.uint64)
        return tl.where((bits >> 63) != 0, ~bits, bits | (one << 63))
    else:
        bits = v.to(tl.uint32, bitcast=True)
        one = tl.full((), 1, tl.uint32)
        return tl.where((bits >> 31) != 0, ~bits, bits | (one << 31))


@triton.jit
def number_of_key(key, DOUBLE: tl.constexpr):
    if DOUBLE:
        one = tl.full((), 1, tl.uint64) << 63
        return tl.where(key >= one, key ^ one, ~key).to(tl.float64, bitcast=True)
    else:
        one = tl.full((), 1, tl.uint32) << 31
        return tl.where(key >= one, key ^ one, ~key).to(tl.float32, bitcast=True)


@triton.jit
def is_finite(v):
    return tl.abs(v) < float("inf")


@triton.jit
def settle(pivot, k, taking_part, broken):
    """The pivot, moved to where it says that nothing is left to solve."""
    pivot = tl.where(k >= taking_part, float("-inf"), pivot)
    pivot = tl.where(k <= 0, float("inf"), pivot)
    return tl.where(broken, float("nan"), pivot)


@triton.jit
def largest_below(DOUBLE: tl.constexpr):
    """No distance is further below the pivot: there is room for sums and differences."""
    return -2.2e307 if DOUBLE else -4.2e37


@triton.jit
def odds(exponent, DOUBLE: tl.constexpr):
    """exp, kept finite."""
    return tl.exp(tl.minimum(exponent, 708.0 if DOUBLE else 87.5))


@triton.jit
def smallest(DOUBLE: tl.constexpr):
    """The smallest normal number."""
    return 2.2250738585072014e-308 if DOUBLE else 1.1754943508222875e-38


@triton.jit
def newton_step(t, low, high, best, rest, rest_square, top, top_square, DOUBLE: tl.constexpr):
    """The next offset, its bracket, and whether it is still moving.

    ``rest`` and ``top`` are the sums of e / (1 + c e) of the two tails at t, ties included, and the
    squares those of its square: see `solve_offset` in functional/_unsorted.py.
    """
    h = (best - t) - t + tl.log(rest) - tl.log(top)
    saturated = odds(best - t, DOUBLE) * rest_square / rest + odds(t, DOUBLE) * top_square / top
    slope = tl.minimum(tl.maximum(2.0 - saturated, 1.0), 2.0)
    low = tl.maximum(low, t + tl.minimum(0.5 * h, h))
    high = tl.minimum(high, t + tl.maximum(0.5 * h, h))
    t = tl.minimum(tl.maximum(t + h / slope, low), high)
    # A quarter of the root of the precision, from which a step reaches it; and far below the pivot
    # the rounding of the terms of h.
    near = 3.7e-9 - 8.9e-16 * best if DOUBLE else 8.6e-5 - 4.8e-7 * best
    return t, low, high, tl.abs(h) > near


@triton.jit
def sigmoid(z):
    return 1.0 / (1.0 + tl.exp(-z))


@triton.jit
def log_sigmoid(z, DOUBLE: tl.constexpr):
    """-log(1 + exp(-z)), with the log(1 + e) of an e <= 1 as the series of 2 atanh(e / (2 + e)).

    The fast logarithm of a GPU is known to an absolute 2^-22 near 1, and libdevice has no log1p for
    the interpreter.
    """
    e = tl.exp(-tl.abs(z))
    y = e / (2.0 + e)
    square = y * y
    series = tl.zeros_like(y)
    last: tl.constexpr = 17 if DOUBLE else 8  # (1/9)^last is below the precision
    for i in tl.static_range(last):
        series = series * square + 1.0 / (2 * (last - i) - 1)
    return tl.minimum(z, 0.0) - 2.0 * y * series


@triton.jit
def indicator_of(v, z, pivot, share_of_infinite):
    """A, also of rows in which nothing is left to solve."""
    a = tl.where(v == float("inf"), 1.0, sigmoid(z))
    a = tl.where(pivot == float("-inf"), 1.0, a)
    a = tl.where(pivot == float("inf"), tl.where(v == float("inf"), share_of_infinite, 0.0), a)
    a = tl.where(pivot != pivot, float("nan"), a)
    return tl.where(v == float("-inf"), 0.0, a)


@triton.jit
def log_indicator_of(v, z, pivot, share_of_infinite, DOUBLE: tl.constexpr):
    low = float("-inf")
    a = tl.where(v == float("inf"), 0.0, log_sigmoid(z, DOUBLE))
    a = tl.where(pivot == low, 0.0, a)
    of_infinite = tl.where(share_of_infinite > 0.0, tl.log(share_of_infinite), low)
    a = tl.where(pivot == float("inf"), tl.where(v == float("inf"), of_infinite, low), a)
    a = tl.where(pivot != pivot, float("nan"), a)
    return tl.where(v == low, low, a)


@triton.jit
def distance_of(v, pivot, rate):
    """In units of tau from the pivot; from zero in a row in which nothing is left to solve."""
    return (v - tl.where(is_finite(pivot), pivot, 0.0)) * rate


@triton.jit
def tail_of(v, d, pivot, best):
    """e = exp(-distance) of an element: of the rest from the best of these, else from the pivot."""
    return tl.exp(tl.where(v < pivot, d - best, -tl.abs(d)))


@triton.jit
def leak_of(v, d, t, pivot, best, DOUBLE: tl.constexpr):
    """What an element leaks out of its side, in the units of the side; the same as a probability;
    and what it keeps.

    So A is the one of the last two, and s = A (1 - A) their product. Divided by the leak of the
    side, the first times the last is proportional to s without underflowing with it: see `_weights`
    in functional/_unsorted.py.
    """
    e = tail_of(v, d, pivot, best)
    c = tl.where(v < pivot, odds(best - t, DOUBLE), odds(t, DOUBLE))
    kept = 1.0 / (1.0 + c * e)
    leak = e * kept
    return leak, c * leak, kept


@triton.jit
def share_of(v, pivot, lost, kept):
    """A out of what `leak_of` returns, and 0 where a softmax has no derivative."""
    a = tl.where(pivot == float("-inf"), 1.0, tl.where(v < pivot, lost, kept))
    a = tl.where(v == float("-inf"), 0.0, a)
    return tl.where(pivot < float("inf"), a, 0.0)  # nor is a NaN
