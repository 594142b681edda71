// What the solver of the sorted operator gets of a row: how many elements are infinite, the best of
// the others in order, and the outsiders that matter to rounding, in bands by their distance.

struct Census {
    int64_t finite, infinite;
    bool nan;
};

template <class T>
Census census_of(const T* x, int64_t n) {
    using S = Vector<T>;
    Census census{n, 0, false};
    for (int64_t i = 0; i < n; i += S::width) {
        const auto v = i + S::width <= n ? load(x + i) : load_part(x + i, n - i, T(0));
        if (bits_of<T>(v - v == S::all(0)) == (1u << (S::width - 1)) * 2 - 1) continue;
        const int above = count_of(bits_of<T>(v == S::all(kInf<T>)));
        census.infinite += above;
        census.finite -= above + count_of(bits_of<T>(v == S::all(-kInf<T>)));
        census.nan |= bits_of<T>(v != v) != 0;
    }
    return census;
}

// The elements that are `inside`, one after the other.
template <class T, class Inside>
int64_t take_if(const T* list, int64_t count, T* to, Inside inside) {
    using S = Vector<T>;
    T* out = to;
    int64_t i = 0;
    const auto take = [&](typename S::V v) {
        const unsigned bits = bits_of<T>(inside(v));
        if (bits != 0) out += compress(out, v, bits);
    };
    for (; i + S::width <= count; i += S::width) take(load(list + i));
    if (i < count) take(load_part(list + i, count - i, std::numeric_limits<T>::quiet_NaN()));
    return out - to;
}

// In place: list -> exp((list - best) / tau), followed by zeros up to a whole vector.
template <class T>
void exponentiate_outsiders(T* list, int64_t count, T best, T tau) {
    using S = Vector<T>;
    for (int64_t i = 0; i < count; i += S::width) {
        const auto v =
            i + S::width <= count ? load(list + i) : load_part(list + i, count - i, -kInf<T>);
        store(list + i, exp_of_negative<T>((v - best) / tau));
    }
}

template <class T>
int64_t place_of(const Ranks<T>& ranks, T value) {
    return std::lower_bound(ranks.pivot, ranks.pivot + ranks.count, value, std::greater<T>()) -
           ranks.pivot;
}

// The best elements in order to `pivot`, and the outsiders that matter to rounding to space.u.
template <class T>
Ranks<T> sort_out(const T* x, int64_t n, Census census, int64_t k, T tau, T* pivot, int threads,
                  const RankSpace<T>& space) {
    using S = Vector<T>;
    using V = typename S::V;
    using Limits = std::numeric_limits<T>;
    constexpr int64_t width = Vector<T>::width;
    const int64_t last = std::min(k, census.infinite + census.finite - 1);
    Ranks<T> ranks{};
    ranks.pivot = pivot;
    ranks.count = last - census.infinite;
    ranks.infinite = census.infinite;
    ranks.tau = static_cast<double>(tau);
    ranks.n = n;
    const Order<T> order = order_of(x, n, last + 1, threads, space.scratch);
    const T best = order.pivot;
    const int64_t above = order.above - census.infinite;
    const double reach = reach_of(n, Limits::epsilon());
    const T cut = std::max(best - static_cast<T>(reach) * tau, Limits::lowest());
    T* const list = space.scratch.first;
    const int64_t active =
        take_if(x, n, list, [=](V v) { return (v >= S::all(cut)) & (v < S::all(kInf<T>)); });
    take_if(list, active, space.u, [=](V v) { return v > S::all(best); });
    std::sort(space.u, space.u + above, std::greater<T>());
    std::copy_n(space.u, above, pivot);
    std::fill(pivot + above, pivot + ranks.count + 1, best);
    ranks.tied = static_cast<double>(above + order.tied - ranks.count);

    int64_t left = active - above - order.tied, begin = 0;
    double distance = reach / static_cast<double>(ranks.count + 1);
    T high = best;
    for (bool all = false; left > 0 && !all; distance *= 2.0) {
        all = ranks.bands == kMaxBands - 1 || distance > 0.5 * reach || left <= 4 * width;
        const T low = all ? cut : std::max(best - static_cast<T>(distance) * tau, cut);
        const int64_t size = take_if(list, active, space.u + begin,
                                     [=](V v) { return (v >= S::all(low)) & (v < S::all(high)); });
        if (size > 0) {
            const double nearest =
                (static_cast<double>(best) - static_cast<double>(high)) / ranks.tau;
            ranks.band[ranks.bands++] = {begin, begin + size, nearest};
            exponentiate_outsiders(space.u + begin, size, best, tau);
        }
        begin += size + filling<T>(size);
        left -= size;
        high = low;
    }
    return ranks;
}
