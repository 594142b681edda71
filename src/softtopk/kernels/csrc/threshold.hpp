// The unsorted operator: one threshold per row, by Newton's method on the logarithm of a ratio of
// leaks. functional/_threshold.py has the derivation. Included once in each instruction set's file,
// after vector.hpp.
//
// The work of a row, in passes over it:
//   1. guess a bracket of the pivot from a sample, collect what is inside, select there
//   (`order_of`)
//   2. collect the elements that matter to rounding (`gather`); Newton's steps see only those
//   3. write A

constexpr int64_t kShortList = 256;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Beyond it the exponential overflows.
template <class T>
constexpr T kHottest = sizeof(T) == 4 ? T(87) : T(708);

// Half the cube root of the precision.
template <class T>
constexpr double kNear = sizeof(T) == 4 ? 2.4e-3 : 3.0e-6;

template <class T>
constexpr T kInf = std::numeric_limits<T>::infinity();

// What a row needs beside its result: O(n), and room to write a whole vector at the end of a list.
template <class T>
class Scratch {
  public:
    T *first = nullptr, *second = nullptr, *row = nullptr, *share = nullptr;
    double reach;  // how far below the largest of the rest an element matters: see `solve`

    Scratch(int64_t n, int lists)  // 0, 2, 3 with `row`, or 4 with `share` too
        : reach(2.0 * std::log(2.0 * static_cast<double>(n)) -
                std::log(std::numeric_limits<T>::epsilon())) {
        const auto length = static_cast<size_t>(n + Vector<T>::width);
        const auto count = static_cast<size_t>(pieces(n));
        memory_ =
            std::malloc(count * sizeof(Piece) + length * static_cast<size_t>(lists) * sizeof(T));
        piece_ = static_cast<Piece*>(memory_);
        if (memory_ == nullptr || lists == 0) return;
        first = reinterpret_cast<T*>(piece_ + count);
        second = first + length;
        row = second + length;
        share = row + length;
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { std::free(memory_); }

    explicit operator bool() const { return memory_ != nullptr; }

    // The partial result of each piece of a pass.
    struct Piece {
        double sums[3];
        int64_t first, second;
        bool nan;
    };
    Piece& piece(int64_t i) const { return piece_[i]; }

  private:
    void* memory_;
    Piece* piece_;
};

// body(begin, end, partial) for every piece of [0, n); the partials are then in `scratch`.
template <class T, class Body>
SOFTTOPK_INLINE void each_piece(int64_t n, int threads, const Scratch<T>& scratch, Body body) {
    if (n <= kPiece) return body(int64_t{0}, n, scratch.piece(0));
    each(pieces(n), threads,
         [&](int64_t i) { body(i * kPiece, std::min(n, (i + 1) * kPiece), scratch.piece(i)); });
}

// Move the lists that the pieces left at the beginning of their places together.
template <class T>
int64_t join(T* list, int64_t n, const Scratch<T>& scratch, int64_t Scratch<T>::Piece::* count) {
    int64_t total = scratch.piece(0).*count;
    for (int64_t i = 1; i < pieces(n); ++i) {
        const int64_t more = scratch.piece(i).*count;
        std::memmove(list + total, list + i * kPiece, static_cast<size_t>(more) * sizeof(T));
        total += more;
    }
    return total;
}

// How a list lies around a value: how many are above it, and the nearest element on the side on
// which the one of the given rank is (at or below the value if fewer than `rank` are above).
template <class T>
struct Split {
    int64_t above;
    T nearest;
};

template <class T>
SOFTTOPK_INLINE Split<T> split(const T* list, int64_t count, T value, int64_t rank) {
    using S = Vector<T>;
    const auto middle = S::all(value);
    auto lowest = S::all(kInf<T>), highest = S::all(-kInf<T>);
    int64_t above = 0;
    for (int64_t i = 0; i < count; i += S::width) {
        const auto v = load(list + i);
        const auto larger = v > middle;
        above += count_of(bits_of<T>(larger));
        const auto up = S::select(larger, v, S::all(kInf<T>));
        const auto down = S::select(larger, S::all(-kInf<T>), v);
        lowest = S::select(lowest < up, lowest, up);
        highest = S::select(highest > down, highest, down);
    }
    return {above, above >= rank ? smallest_lane<T>(lowest) : largest_lane<T>(highest)};
}

template <class T>
SOFTTOPK_INLINE int64_t count_above(const T* list, int64_t count, T value) {
    using S = Vector<T>;
    const auto middle = S::all(value);
    int64_t above = 0;
    for (int64_t i = 0; i < count; i += S::width)
        above += count_of(bits_of<T>(load(list + i) > middle));
    return above;
}

// The element of the given rank in a short list, padded with -inf, by a search for its value.
//
// Probes alternate between where the element would be if the list were uniform, and the middle of
// the bracket. The first ones count only. The later ones, for ties and strange distributions, move
// an end of the bracket to an element of the list, so that they cannot go on forever.
template <class T>
T search(const T* list, int64_t count, int64_t rank) {
    constexpr T largest = std::numeric_limits<T>::max();
    const Split<T> bottom = split(list, count, -kInf<T>, int64_t{0});
    if (rank > bottom.above) return -kInf<T>;
    T low = bottom.nearest, high = split(list, count, kInf<T>, count).nearest;
    int64_t from = 0, to = bottom.above;  // ranks from + 1 to `to` are within the bracket
    for (int probes = 0; low < high; ++probes) {
        const T place = (static_cast<T>(rank - from) - T(0.5)) / static_cast<T>(to - from);
        T value = high - (high - low) * (probes % 2 == 0 ? place : T(0.5));
        if (!(high - low <= largest)) value = high > largest ? largest : low / 2 + high / 2;
        if (!(value >= low && value < high)) value = low;
        const bool snap = probes > 8;
        const Split<T> found = snap ? split(list, count, value, rank)
                                    : Split<T>{count_above(list, count, value), value};
        if (found.above == rank || found.above == rank - 1) {
            return snap ? found.nearest : split(list, count, value, rank).nearest;
        }
        (found.above > rank ? low : high) = found.nearest;
        (found.above > rank ? to : from) = found.above;
    }
    return low;
}

// The element of the given rank (1 is the largest) in a list without NaN, which may be put in
// another order and has room for a whole vector at its end.
template <class T>
T select(T* list, int64_t count, int64_t rank) {
    if (count <= kShortList) {
        store(list + count, Vector<T>::all(-kInf<T>));
        return search(list, count, rank);
    }
    std::nth_element(list, list + (rank - 1), list + count, std::greater<T>());
    return list[rank - 1];
}

template <class T>
struct Bracket {
    T low, high;
};

// Where the element of the given rank is likely to be, and its successor too: three standard
// deviations around its place in a sample. `caution` widens the bracket after a miss.
template <class T>
Bracket<T> guess(const T* list, int64_t count, int64_t rank, int caution) {
    constexpr int kMostSamples = 1024;
    if (caution > 4) return {-kInf<T>, kInf<T>};
    T sample[kMostSamples + Vector<T>::width];
    const auto size = std::min<int64_t>(kMostSamples, 2 * static_cast<int64_t>(std::sqrt(count)));
    const int64_t stride = count / size;
    uint32_t random = 12345;  // one element out of every stretch, so that no pattern misleads
    for (int64_t i = 0; i < size; ++i) {
        random = random * 1664525u + 1013904223u;
        const T value = list[i * stride + (static_cast<int64_t>(random >> 8) * stride >> 24)];
        sample[i] = std::isnan(value) ? -kInf<T> : value;
    }
    const double share = static_cast<double>(rank) / static_cast<double>(count);
    const double place = share * static_cast<double>(size);
    const double margin = (3.0 * std::sqrt(place * (1.0 - share)) + 2.0) * (1 << caution);
    const auto low = static_cast<int64_t>(place + margin) + 1;
    const auto high = static_cast<int64_t>(place - margin);
    return {low > size ? -kInf<T> : select(sample, size, low),
            high < 1 ? kInf<T> : select(sample, size, high)};
}

// The element of a rank among its neighbours.
template <class T>
struct Order {
    T pivot;
    T next;  // the largest element below the pivot, -inf if there is none
    int64_t above, tied;
};

template <class T>
struct Collected {
    int64_t above, inside;
    bool nan;
};

// Copy the elements within the bracket to `to`, and count those above it.
template <class T>
Collected<T> collect(const T* list, int64_t count, Bracket<T> bracket, T* to, int threads,
                     const Scratch<T>& scratch) {
    using S = Vector<T>;
    const auto low = S::all(bracket.low), high = S::all(bracket.high);
    each_piece(count, threads, scratch, [=](int64_t begin, int64_t end, auto& partial) {
        T* out = to + begin;
        int64_t above = 0;
        typename S::M unordered{};
        const auto take = [&](typename S::V v) {
            // No branch: it would be mispredicted at every other element that is inside.
            unordered |= v != v;
            above += count_of(bits_of<T>(v > high));
            out += compress(out, v, bits_of<T>((v >= low) & (v <= high)));
        };
        int64_t i = begin;
        for (; i + S::width <= end; i += S::width) take(load(list + i));
        if (i < end) {
            take(load_part(list + i, end - i, -kInf<T>));
            if (bracket.low == -kInf<T>) out -= S::width - (end - i);  // the filling is inside
        }
        partial.first = out - (to + begin);
        partial.second = above;
        partial.nan = bits_of<T>(unordered) != 0;
    });
    Collected<T> all{0, 0, false};
    for (int64_t i = 0; i < pieces(count); ++i) {
        all.above += scratch.piece(i).second;
        all.nan |= scratch.piece(i).nan;
    }
    all.inside = join(to, count, scratch, &Scratch<T>::Piece::first);
    return all;
}

template <class T>
Order<T> around(T pivot, T* list, int64_t count, int64_t above) {
    using S = Vector<T>;
    const auto middle = S::all(pivot);
    auto next = S::all(-kInf<T>);
    int64_t tied = 0;
    store(list + count, S::all(-kInf<T>));
    for (int64_t i = 0; i < count; i += S::width) {
        const auto v = load(list + i);
        above += count_of(bits_of<T>(v > middle));
        tied += count_of(bits_of<T>(v == middle));
        next = S::select((v < middle) & (v > next), v, next);
    }
    return {pivot, largest_lane<T>(next), above, tied};
}

template <class T>
Order<T> order_of(const T* x, int64_t n, int64_t rank, int threads, const Scratch<T>& scratch) {
    const T* list = x;
    T* to = scratch.first;
    int64_t count = n, above = 0;
    for (int caution = 0; list == x || count > kShortList;) {
        const Bracket<T> bracket = count <= kShortList ? Bracket<T>{-kInf<T>, kInf<T>}
                                                       : guess(list, count, rank - above, caution);
        const Collected<T> found = collect(list, count, bracket, to, threads, scratch);
        if (found.nan) return {std::numeric_limits<T>::quiet_NaN(), 0, 0, 0};
        const int64_t place = rank - above - found.above;
        const bool open = bracket.low == -kInf<T>;
        if (place < 1 || place + (open ? 0 : 1) > found.inside) {
            ++caution;
            continue;
        }
        const bool slow = 2 * found.inside > count;
        list = to;
        to = to == scratch.first ? scratch.second : scratch.first;
        count = found.inside;
        above += found.above;
        caution = 0;
        if (slow) break;  // ties, or a strange distribution
    }
    T* rest = to == scratch.first ? scratch.second : scratch.first;
    const T pivot = select(rest, count, rank - above);
    return around(pivot, rest, count, above);
}

// In place: list -> exp((list - origin) * rate), which is at most 1, followed by zeros up to a
// whole vector. Returns the sum.
template <class T>
double exponentiate(T* list, int64_t count, T origin, T rate) {
    using S = Vector<T>;
    for (int64_t i = count; i % S::width != 0; ++i) list[i] = rate > 0 ? -kInf<T> : kInf<T>;
    double sum = 0.0;
    for (int64_t i = 0; i < count;) {
        const int64_t stop = std::min(count, i + 64 * S::width);
        auto total = S::all(0);
        for (; i < stop; i += S::width) {
            const auto v = exp_of_negative<T>((load(list + i) - origin) * rate);
            store(list + i, v);
            total += v;
        }
        sum += sum_of_lanes<T>(total);
    }
    return sum;
}

// The two tails of a row: e = exp(-distance) of the elements below and above the pivot. What comes
// from a piece of the row stays in its place in the scratch lists.
struct Tails {
    double rest, top;  // sums of e
};

// Collect the elements above the pivot, and those below it down to `cut`, and exponentiate their
// distances: from the pivot above, from `best`, the largest of the rest, below.
template <class T>
Tails gather(const T* x, int64_t n, T pivot, T best, T cut, T rate, int threads,
             const Scratch<T>& scratch) {
    using S = Vector<T>;
    each_piece(n, threads, scratch, [=, &scratch](int64_t begin, int64_t end, auto& partial) {
        const auto low = S::all(cut), middle = S::all(pivot);
        T *const rest = scratch.first + begin, *const top = scratch.second + begin;
        int64_t n_rest = 0, n_top = 0;
        const auto take = [&](typename S::V v) {
            const unsigned above = bits_of<T>(v > middle);
            n_rest += compress(rest + n_rest, v, bits_of<T>((v >= low) & (v < middle)));
            if (above != 0) n_top += compress(top + n_top, v, above);
        };
        int64_t i = begin;
        for (; i + S::width <= end; i += S::width) take(load(x + i));
        if (i < end) take(load_part(x + i, end - i, -kInf<T>));  // exp will make 0 of the filling
        partial.first = n_rest;
        partial.second = n_top;
        partial.sums[0] = exponentiate(rest, n_rest, best, rate);
        partial.sums[1] = exponentiate(top, n_top, pivot, -rate);
    });
    Tails tails{0.0, 0.0};
    for (int64_t i = 0; i < pieces(n); ++i) {
        tails.rest += scratch.piece(i).sums[0];
        tails.top += scratch.piece(i).sums[1];
    }
    return tails;
}

// Sums over a tail of r = e / (1 + c e), by which the leak is c times their sum.
struct Leak {
    double total;      // sum of r
    double saturated;  // c sum r^2 / sum r, the part of the leak that has saturated
    double bend;       // c^2 sum r^3 / sum r
};

template <class T>
Leak leak(const T* tail, int64_t Scratch<T>::Piece::* size, int64_t n, double tied, double log_c,
          int threads, const Scratch<T>& scratch) {
    using S = Vector<T>;
    const double c = std::exp(std::min(log_c, static_cast<double>(kHottest<T>)));
    const T factor = static_cast<T>(c);
    each_piece(n, threads, scratch, [=](int64_t begin, int64_t, auto& partial) {
        const T* e = tail + begin;
        double sums[3] = {0.0, 0.0, 0.0};
        for (int64_t i = 0; i < partial.*size;) {
            const int64_t stop = std::min(partial.*size, i + 64 * S::width);
            auto sum = S::all(0), square = S::all(0), cube = S::all(0);
            for (; i < stop; i += S::width) {
                const auto v = load(e + i);
                const auto r = v / (v * factor + T(1));
                sum += r;
                square += r * r;
                cube += r * r * r;
            }
            sums[0] += sum_of_lanes<T>(sum);
            sums[1] += sum_of_lanes<T>(square);
            sums[2] += sum_of_lanes<T>(cube);
        }
        std::copy(sums, sums + 3, partial.sums);
    });
    const double r = 1.0 / (1.0 + c);
    double sums[3] = {tied * r, tied * r * r, tied * r * r * r};
    for (int64_t i = 0; i < pieces(n); ++i) {
        for (int power = 0; power < 3; ++power) sums[power] += scratch.piece(i).sums[power];
    }
    sums[0] = std::max(sums[0], static_cast<double>(std::numeric_limits<T>::min()));
    return {sums[0], c * sums[1] / sums[0], c * (c * sums[2] / sums[0])};
}

template <class T>
struct Root {
    T pivot, offset;
};

// The threshold of a row is pivot + tau * offset. The pivot is -inf where everything that takes
// part is selected, +inf where nothing is or where infinite scores share the places, NaN where
// there is a NaN.
template <class T>
Root<T> solve(const T* x, int64_t n, double k, T tau, int threads, const Scratch<T>& scratch) {
    using Limits = std::numeric_limits<T>;
    const auto rank = k > 0.0 ? static_cast<int64_t>(std::min<double>(std::ceil(k), n)) : 1;
    const Order<T> order = order_of(x, n, rank, threads, scratch);
    const T pivot = order.pivot;
    const double tied_top = k - static_cast<double>(order.above);
    const double tied_rest = static_cast<double>(order.tied) - tied_top;
    if (std::isnan(pivot) || std::isnan(k) || std::isnan(tau)) {
        return {std::numeric_limits<T>::quiet_NaN(), 0};
    }
    if (k <= 0.0) return {kInf<T>, kInf<T>};
    if (pivot == -kInf<T> || (order.next == -kInf<T> && tied_rest <= 0.0)) {
        return {-kInf<T>, -kInf<T>};
    }
    if (pivot == kInf<T>) {
        return {pivot,
                static_cast<T>(tied_rest > 0.0 ? std::log(tied_rest / tied_top) : -kInfinity)};
    }

    const T rate = 1 / tau, nearest = tied_rest > 0.0 ? pivot : order.next;
    const double best = std::max((nearest - pivot) * rate, T(-0.125) * Limits::max());
    // The root lies at most log(2 n) below `best`, since n elements leak no more out of the top.
    // All elements that are further below than `reach` together leak less than a rounding.
    const T cut = nearest - static_cast<T>(scratch.reach) * tau;
    const Tails tails = gather(x, n, pivot, nearest, cut, rate, threads, scratch);
    using Piece = typename Scratch<T>::Piece;
    const auto leak_of = [&](const T* tail, int64_t Piece::* size, double tied, double log_c) {
        return leak(tail, size, n, tied, log_c, threads, scratch);
    };

    const double tiny = Limits::min();
    const double start_rest = std::max(tails.rest + tied_rest, tiny);
    const double start_top = std::max(tails.top + tied_top, tiny);
    double t = 0.5 * (best + std::log(start_rest / start_top));
    double low = -kInfinity, high = kInfinity;
    for (int step = 0; step < 12; ++step) {
        const Leak rest = leak_of(scratch.first, &Piece::first, tied_rest, best - t);
        const Leak top = leak_of(scratch.second, &Piece::second, tied_top, t);
        const double h = (best - t) - t + std::log(rest.total / top.total);
        const double slope = std::min(std::max(2.0 - rest.saturated - top.saturated, 1.0), 2.0);
        const double curvature = 2.0 * (rest.bend - top.bend) -
                                 rest.saturated * (1.0 + rest.saturated) +
                                 top.saturated * (1.0 + top.saturated);
        low = std::max(low, t + std::min(0.5 * h, h));
        high = std::min(high, t + std::max(0.5 * h, h));
        const double halley = t + 2.0 * h * slope / (2.0 * slope * slope - h * curvature);
        t = std::min(high, std::max(low, halley));
        // Convergence is cubic: a step from within the root of the precision reaches it. Far below
        // the pivot h is only known to the rounding of its own terms.
        if (!(std::abs(h) > kNear<T> - 4.0 * Limits::epsilon() * best)) break;
    }
    return {pivot, std::isnan(t) ? T(0) : static_cast<T>(t)};
}

// A of a row whose threshold is finite: sigmoid((x - pivot) / tau - offset).
template <class T>
void indicator(const T* x, int64_t n, Root<T> root, T tau, T* a, int threads,
               const Scratch<T>& scratch) {
    using S = Vector<T>;
    using V = typename S::V;
    const T rate = 1 / tau;
    each_piece(n, threads, scratch, [=](int64_t begin, int64_t end, auto&) {
        const auto sigmoid = [=](V v) {
            const V z = (v - root.pivot) * rate - root.offset;
            if (bits_of<T>(z >= S::all(ExpConstants<T>::lowest)) == 0) return S::all(0);
            const V e = exp_of_negative<T>(negative_of<T>(z));
            return S::select(z < S::all(0), e, S::all(1)) / (e + T(1));
        };
        int64_t i = begin;
        for (; i + S::width <= end; i += S::width) store(a + i, sigmoid(load(x + i)));
        if (i < end) store_part(a + i, end - i, sigmoid(load_part(x + i, end - i, T(0))));
    });
}

// A of a row whose threshold is infinite or NaN.
template <class T>
void decided(const T* x, int64_t n, Root<T> root, T* a) {
    const T shared = 1 / (1 + std::exp(root.offset));
    for (int64_t i = 0; i < n; ++i) {
        if (x[i] == -kInf<T>) {
            a[i] = 0;
        } else if (root.pivot == kInf<T>) {
            a[i] = x[i] == kInf<T> ? shared : T(0);
        } else {
            a[i] = std::isnan(root.pivot) ? root.pivot : T(1);
        }
    }
}

template <class T>
void write_indicator(const T* x, int64_t n, Root<T> root, T tau, T* a, int threads,
                     const Scratch<T>& scratch) {
    if (std::isfinite(root.pivot)) {
        indicator(x, n, root, tau, a, threads, scratch);
    } else {
        decided(x, n, root, a);
    }
}

// Whether infinite scores share places.
template <class T>
bool is_shared(Root<T> root) {
    return root.pivot == kInf<T> && std::isfinite(root.offset);
}

// The row as the solver wants it: largest selected, -inf where it takes no part.
template <class T>
const T* canonical(const ThresholdCall<T>& call, int64_t row, const Scratch<T>& scratch,
                   int threads) {
    const T* x = call.x + row * call.n;
    if (call.largest && call.mask == nullptr) return x;
    const uint8_t* mask = call.mask == nullptr ? nullptr : call.mask + row * call.n;
    const T sign = call.largest ? T(1) : T(-1);
    T* to = scratch.row;
    each_piece(call.n, threads, scratch, [=](int64_t begin, int64_t end, auto&) {
        for (int64_t i = begin; i < end; ++i) {
            to[i] = mask == nullptr || mask[i] != 0 ? sign * x[i] : -kInf<T>;
        }
    });
    return to;
}

template <class T>
Status threshold_of_row(const ThresholdCall<T>& call, int64_t row, int threads,
                        const Scratch<T>& scratch) {
    const T tau = static_cast<T>(call.tau[row]);
    const T* x = canonical(call, row, scratch, threads);
    const Root<T> root = solve(x, call.n, call.k[row], tau, threads, scratch);
    if (call.pivot != nullptr) call.pivot[row] = root.pivot;
    if (call.offset != nullptr) call.offset[row] = root.offset;
    if (call.a != nullptr) {
        write_indicator(x, call.n, root, tau, call.a + row * call.n, threads, scratch);
    }
    return is_shared(root) ? kShared : kDone;
}

// g_x = s (g - sum(s g) / sum(s)) / tau with s = A (1 - A).
template <class T>
Status gradient_of_row(const ThresholdGradientCall<T>& call, int64_t row, int threads,
                       const Scratch<T>& scratch) {
    using S = Vector<T>;
    using V = typename S::V;
    const T *a = call.a + row * call.n, *grad = call.grad + row * call.n;
    T* out = call.grad_x + row * call.n;
    each_piece(call.n, threads, scratch, [=](int64_t begin, int64_t end, auto& partial) {
        partial.sums[0] = partial.sums[1] = 0.0;
        for (int64_t i = begin; i < end;) {
            const int64_t stop = std::min(end, i + 64 * S::width);
            V slope = S::all(0), pull = S::all(0);
            for (; i + S::width <= stop; i += S::width) {
                const V v = load(a + i), s = v * (T(1) - v);
                slope += s;
                pull += s * load(grad + i);
            }
            if (i < stop) {
                const V v = load_part(a + i, stop - i, T(0)), s = v * (T(1) - v);
                slope += s;
                pull += s * load_part(grad + i, stop - i, T(0));
                i = stop;
            }
            partial.sums[0] += sum_of_lanes<T>(slope);
            partial.sums[1] += sum_of_lanes<T>(pull);
        }
    });
    double slope = 0.0, pull = 0.0;
    for (int64_t i = 0; i < pieces(call.n); ++i) {
        slope += scratch.piece(i).sums[0];
        pull += scratch.piece(i).sums[1];
    }
    const T mean = slope == 0.0 ? T(0) : static_cast<T>(pull / slope);
    const T rate = 1 / static_cast<T>(call.tau[row]);
    each_piece(call.n, threads, scratch, [=](int64_t begin, int64_t end, auto&) {
        const auto pass = [=](V v, V g) {
            const V s = v * (T(1) - v);
            // No derivative in a row with a NaN, and none of 0 times infinity elsewhere.
            return S::select(s > S::all(0), s * (g - mean) * rate, S::all(0));
        };
        int64_t i = begin;
        for (; i + S::width <= end; i += S::width)
            store(out + i, pass(load(a + i), load(grad + i)));
        if (i < end) {
            store_part(out + i, end - i,
                       pass(load_part(a + i, end - i, T(0)), load_part(grad + i, end - i, T(0))));
        }
    });
    return kDone;
}

// All threads or one: OpenMP ends those that a call does not ask for, and torch would have to start
// them again.
inline int threads_for(int64_t elements, int64_t grain, int all) {
    return elements >= 2 * grain ? all : 1;
}

// block(begin, end, threads) for blocks of rows: side by side when there are enough rows for all
// threads, else one block whose rows have all the threads in turn.
template <class Block>
void each_block(int64_t rows, int threads, Block block) {
    if (threads == 1 || rows < threads) return block(int64_t{0}, rows, threads);
    const int64_t size = std::max<int64_t>(1, rows / (threads * 8));
    each((rows + size - 1) / size, threads,
         [&](int64_t i) { block(i * size, std::min(rows, (i + 1) * size), 1); });
}

template <class T, class Body>
Status each_row(int64_t rows, int64_t n, int threads, int lists, Body body) {
    std::atomic<int32_t> status{kDone};
    each_block(rows, threads, [&](int64_t begin, int64_t end, int row_threads) {
        const Scratch<T> scratch(n, lists);
        if (!scratch) {
            status = kOutOfMemory;
            return;
        }
        for (int64_t row = begin; row < end; ++row) {
            const int32_t outcome = body(row, row_threads, scratch);
            int32_t expected = kDone;
            if (outcome != kDone) status.compare_exchange_strong(expected, outcome);
        }
    });
    return static_cast<Status>(status.load());
}

template <class T>
Status threshold(const ThresholdCall<T>& call) {
    const int lists = call.largest && call.mask == nullptr ? 2 : 3;
    const int threads = threads_for(call.rows * call.n, 16384, call.threads);
    return each_row<T>(call.rows, call.n, threads, lists,
                       [&](int64_t row, int row_threads, const Scratch<T>& scratch) {
                           return threshold_of_row(call, row, row_threads, scratch);
                       });
}

template <class T>
Status threshold_gradient(const ThresholdGradientCall<T>& call) {
    const int threads = threads_for(call.rows * call.n, 32768, call.threads);
    return each_row<T>(call.rows, call.n, threads, 0,
                       [&](int64_t row, int row_threads, const Scratch<T>& scratch) {
                           return gradient_of_row(call, row, row_threads, scratch);
                       });
}
