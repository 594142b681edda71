// The element of a given rank in a row, and how its neighbours lie around it.
//
// A bracket of its value is guessed from a sample, one pass collects what is inside and counts what
// is above, and the selection happens among those few. A wrong guess costs another pass.

// The element of a rank among its neighbours.
template <class T>
struct Order {
    T pivot;
    T next;  // the largest element below the pivot, -inf if there is none
    int64_t above, tied;
};

// Lists up to this length are searched as they are.
constexpr int64_t kShortList = 256;

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
    typename S::M above{};
    for (int64_t i = 0; i < count; i += S::width) {
        const auto v = load(list + i);
        const auto larger = v > middle;
        above = S::count(above, larger);
        const auto up = S::select(larger, v, S::all(kInf<T>));
        const auto down = S::select(larger, S::all(-kInf<T>), v);
        lowest = S::select(lowest < up, lowest, up);
        highest = S::select(highest > down, highest, down);
    }
    const int64_t total = sum_of_counts<T>(above);
    return {total, total >= rank ? smallest_lane<T>(lowest) : largest_lane<T>(highest)};
}

template <class T>
SOFTTOPK_INLINE int64_t count_above(const T* list, int64_t count, T value) {
    using S = Vector<T>;
    const auto middle = S::all(value);
    typename S::M above{};
    for (int64_t i = 0; i < count; i += S::width) above = S::count(above, load(list + i) > middle);
    return sum_of_counts<T>(above);
}

// What a search starts with, of the elements above -inf.
template <class T>
struct Range {
    T low, high;
    int64_t count;
    T mean, deviation;  // not finite if the sums overflow
};

template <class T>
Range<T> range_of(const T* list, int64_t count) {
    using S = Vector<T>;
    const auto none = S::all(-kInf<T>);
    auto low = S::all(kInf<T>), high = none, sum = S::all(0), square = S::all(0);
    typename S::M counts{};
    for (int64_t i = 0; i < count; i += S::width) {
        const auto v = load(list + i);
        const auto present = v > none;
        const auto up = S::select(present, v, S::all(kInf<T>)),
                   part = S::select(present, v, S::all(0));
        counts = S::count(counts, present);
        low = S::select(low < up, low, up);
        high = S::select(high > v, high, v);
        sum += part;
        square += part * part;
    }
    const int64_t total = sum_of_counts<T>(counts);
    const T share = T(1) / static_cast<T>(total), mean = sum_of_lanes<T>(sum) * share;
    const T variance = sum_of_lanes<T>(square) * share - mean * mean;
    return {smallest_lane<T>(low), largest_lane<T>(high), total, mean, std::sqrt(variance)};
}

// The element of the given rank in a short list, padded with -inf, by a search for its value.
//
// The first probe is where the element would be if the list were logistic, the others alternate
// between where it would be if the bracket were uniform, and the middle of the bracket. The first
// ones count only. The later ones, for ties and strange distributions, move an end of the bracket
// to an element of the list, so that they cannot go on forever.
template <class T>
T search(const T* list, int64_t count, int64_t rank) {
    constexpr T largest = std::numeric_limits<T>::max();
    const Range<T> range = range_of(list, count);
    if (rank > range.count) return -kInf<T>;
    T low = range.low, high = range.high;
    int64_t from = 0, to = range.count;  // ranks from + 1 to `to` are within the bracket
    for (int probes = 0; low < high; ++probes) {
        const T place = (static_cast<T>(rank - from) - T(0.5)) / static_cast<T>(to - from);
        T value = high - (high - low) * (probes % 2 == 0 ? T(0.5) : place);
        if (!(high - low <= largest)) value = high > largest ? largest : low / 2 + high / 2;
        if (probes == 0) {
            const T likely = range.mean + T(0.55) * range.deviation * std::log(1 / place - 1);
            if (likely >= low && likely < high) value = likely;
        }
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
        typename S::M above{}, unordered{};
        const auto take = [&](typename S::V v) {
            // No branch: it would be mispredicted at every other element that is inside.
            unordered |= v != v;
            above = S::count(above, v > high);
            out += compress(out, v, bits_of<T>((v >= low) & (v <= high)));
        };
        each_vector<T>(begin, end, [&](auto at) { take(at.read(list, -kInf<T>)); });
        if (bracket.low == -kInf<T>) out -= filling<T>(end - begin);  // the filling is inside
        partial.first = out - (to + begin);
        partial.second = sum_of_counts<T>(above);
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
    typename S::M larger{}, tied{};
    store(list + count, S::all(-kInf<T>));
    for (int64_t i = 0; i < count; i += S::width) {
        const auto v = load(list + i);
        larger = S::count(larger, v > middle);
        tied = S::count(tied, v == middle);
        next = S::select((v < middle) & (v > next), v, next);
    }
    return {pivot, largest_lane<T>(next), above + sum_of_counts<T>(larger), sum_of_counts<T>(tied)};
}

// Returns false if there is a NaN.
template <class T>
bool copy_without_nan(const T* x, int64_t n, T* to) {
    typename Vector<T>::M unordered{};
    each_vector<T>(0, n, [&](auto at) {
        const auto v = at.read(x, -kInf<T>);
        store(to + at.i, v);
        unordered |= v != v;
    });
    return bits_of<T>(unordered) == 0;
}

// Of a row with a NaN.
template <class T>
constexpr Order<T> kUnordered{std::numeric_limits<T>::quiet_NaN(), 0, 0, 0};

template <class T>
Order<T> order_of(const T* x, int64_t n, int64_t rank, int threads, const Scratch<T>& scratch) {
    if (n <= kShortList) {
        if (!copy_without_nan(x, n, scratch.first)) return kUnordered<T>;
        return around(select(scratch.first, n, rank), scratch.first, n, int64_t{0});
    }
    const T* list = x;
    T* to = scratch.first;
    int64_t count = n, above = 0;
    for (int caution = 0; count > kShortList;) {
        const Bracket<T> bracket = guess(list, count, rank - above, caution);
        const Collected<T> found = collect(list, count, bracket, to, threads, scratch);
        if (found.nan) return kUnordered<T>;
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
