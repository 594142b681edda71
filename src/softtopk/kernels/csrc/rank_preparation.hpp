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

// body(i) for every element above `value`.
template <class T, class Body>
SOFTTOPK_INLINE void each_above(const T* x, int64_t n, T value, Body body) {
    each_vector<T>(0, n, [&](auto at) {
        unsigned above = bits_of<T>(at.read(x, -kInf<T>) > Vector<T>::all(value));
        for (; above != 0; above &= above - 1) body(at.i + lowest_of(above));
    });
}

template <class T>
int64_t place_of(const Ranks<T>& ranks, T value) {
    return std::lower_bound(ranks.pivot, ranks.pivot + ranks.count, value, std::greater<T>()) -
           ranks.pivot;
}

// Elements of a row and where they are in it, as the bits of an integer; `place` is null if they
// are all of the row.
template <class T>
struct List {
    T *value, *place;
};

// The elements that are `inside`, one after the other.
template <class T, class Inside>
int64_t take_if(List<const T> list, int64_t count, List<T> to, Inside inside) {
    using S = Vector<T>;
    using V = typename S::V;
    int64_t taken = 0;
    const auto take = [&](V v, int64_t i) {
        const unsigned bits = bits_of<T>(inside(v));
        if (bits == 0) return;
        const V place =
            list.place == nullptr
                ? bit_cast<V>(lane_numbers<T>() + static_cast<typename Integer<T>::type>(i))
                : load(list.place + i);
        compress(to.place + taken, place, bits);
        taken += compress(to.value + taken, v, bits);
    };
    int64_t i = 0;
    for (; i + S::width <= count; i += S::width) take(load(list.value + i), i);
    if (i < count) {
        take(load_part(list.value + i, count - i, std::numeric_limits<T>::quiet_NaN()), i);
    }
    return taken;
}

// List the outsiders below `bound` that are no further than `reach` from the best one: u =
// exp((x - best) / tau), followed by zeros up to a whole vector.
template <class T>
void list_outsiders(const T* x, Ranks<T>& ranks, T bound, double reach, const RankSpace<T>& space) {
    using S = Vector<T>;
    using V = typename S::V;
    const T best = ranks.pivot[ranks.count], tau = static_cast<T>(ranks.tau);
    const T cut = std::max(best - static_cast<T>(reach) * tau, std::numeric_limits<T>::lowest());
    const List<T> all{space.scratch.first, space.scratch.second};
    const int64_t active = take_if<T>(
        {x, nullptr}, ranks.n, all, [=](V v) { return (v >= S::all(cut)) & (v < S::all(bound)); });
    double distance = reach / static_cast<double>(ranks.count + 1);
    for (T high = bound; ranks.listed < active; distance *= 2.0) {
        const bool rest = ranks.bands == kMaxBands - 1 || distance > 0.5 * reach ||
                          active - ranks.listed <= 4 * S::width;
        const T low = rest ? cut : std::max(best - static_cast<T>(distance) * tau, cut);
        const int64_t size = take_if<T>(
            {all.value, all.place}, active, {space.u + ranks.listed, space.place + ranks.listed},
            [=](V v) { return (v >= S::all(low)) & (v < S::all(high)); });
        if (size > 0) {
            const double nearest =
                (static_cast<double>(best) - static_cast<double>(std::min(best, high))) / ranks.tau;
            ranks.listed += size;
            ranks.band[ranks.bands++] = {ranks.listed, nearest};
        }
        high = low;
    }
    store(space.u + ranks.listed, S::all(-kInf<T>));
    if (ranks.listed > 0) {  // a place that can be read
        std::fill_n(space.place + ranks.listed, S::width, space.place[ranks.listed - 1]);
    }
    for (int64_t i = 0; i < ranks.listed; i += S::width) {
        store(space.u + i, exp_of_negative<T>((load(space.u + i) - best) / tau));
    }
}

// The best elements in order to `pivot`, and the outsiders that matter to rounding to space.u.
template <class T>
Ranks<T> sort_out(const T* x, int64_t n, Census census, int64_t k, T tau, T* pivot, int threads,
                  const RankSpace<T>& space) {
    using S = Vector<T>;
    using V = typename S::V;
    const int64_t last = std::min(k, census.infinite + census.finite - 1);
    Ranks<T> ranks{};
    ranks.pivot = pivot;
    ranks.count = last - census.infinite;
    ranks.infinite = census.infinite;
    ranks.tau = static_cast<double>(tau);
    ranks.n = n;
    const Order<T> order = order_of(x, n, last + 1, threads, space.scratch);
    const T best = order.pivot;
    const int64_t above = take_if<T>({x, nullptr}, n, {space.u, space.place}, [=](V v) {
        return (v > S::all(best)) & (v < S::all(kInf<T>));
    });
    std::sort(space.u, space.u + above, std::greater<T>());
    std::copy_n(space.u, above, pivot);
    std::fill(pivot + above, pivot + ranks.count + 1, best);
    ranks.tied = static_cast<double>(above + order.tied - ranks.count);
    list_outsiders(x, ranks, best, reach_of(n, std::numeric_limits<T>::epsilon()), space);
    return ranks;
}
