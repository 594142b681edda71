// The unsorted operator: one threshold per row, by Newton's method on the logarithm of a ratio of
// leaks. functional/_unsorted.py has the derivation.
//
// The work of a row, in passes over it:
//   1. select the pivot (`order_of`)
//   2. collect the elements that matter to rounding (`gather`); Newton's steps see only those
//   3. write A (indicator.hpp)

// Beyond it the exponential overflows.
template <class T>
constexpr T kHottest = sizeof(T) == 4 ? T(87) : T(708);

// Half the cube root of the precision.
template <class T>
constexpr double kNear = sizeof(T) == 4 ? 2.4e-3 : 3.0e-6;

// In place: list -> exp((list - origin) * rate), which is at most 1, followed by zeros up to a
// whole vector. Returns the sum.
template <class T>
double exponentiate(T* list, int64_t count, T origin, T rate) {
    using S = Vector<T>;
    for (int64_t i = count; i % S::width != 0; ++i) list[i] = rate > 0 ? -kInf<T> : kInf<T>;
    double sum = 0.0;
    each_run<T>(0, count, [&](int64_t i, int64_t stop) {
        auto total = S::all(0);
        for (; i < stop; i += S::width) {
            const auto v = exp_of_negative<T>((load(list + i) - origin) * rate);
            store(list + i, v);
            total += v;
        }
        sum += sum_of_lanes<T>(total);
    });
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
    const auto part = [=, &scratch](int64_t begin, int64_t end, auto& partial) -> Sums {
        const auto low = S::all(cut), middle = S::all(pivot);
        T *const rest = scratch.first + begin, *const top = scratch.second + begin;
        int64_t n_rest = 0, n_top = 0;
        const auto take = [&](typename S::V v) {
            const unsigned above = bits_of<T>(v > middle);
            n_rest += compress(rest + n_rest, v, bits_of<T>((v >= low) & (v < middle)));
            if (above != 0) n_top += compress(top + n_top, v, above);
        };
        // exp will make 0 of the filling
        each_vector<T>(begin, end, [&](auto at) { take(at.read(x, -kInf<T>)); });
        partial.first = n_rest;
        partial.second = n_top;
        return {exponentiate(rest, n_rest, best, rate), exponentiate(top, n_top, pivot, -rate)};
    };
    const Sums sums = sum_pieces(n, threads, scratch, part);
    return {sums[0], sums[1]};
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
    const auto part = [=](int64_t begin, int64_t, auto& partial) {
        const T* e = tail + begin;
        Sums sums{};
        each_run<T>(0, partial.*size, [&](int64_t i, int64_t stop) {
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
        });
        return sums;
    };
    const Sums sums = sum_pieces(n, threads, scratch, part);
    const double r = 1.0 / (1.0 + c);
    const double total = std::max<double>(sums[0] + tied * r, std::numeric_limits<T>::min());
    return {total, c * (sums[1] + tied * r * r) / total,
            c * (c * (sums[2] + tied * r * r * r) / total)};
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
    const double last = std::max(std::min<double>(std::ceil(k), n), 1.0);  // a row may be empty
    const auto rank = k > 0.0 ? static_cast<int64_t>(last) : 1;
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
    const T cut = nearest - static_cast<T>(scratch.reach(n)) * tau;
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
