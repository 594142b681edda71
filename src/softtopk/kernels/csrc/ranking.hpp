// The sorted operator: k thresholds per row, by Newton's method on the logarithms of ratios of
// leaks. functional/_sorted.py has the derivation.
//
// Infinite scores are decided apart: p elements at +inf share the first p ranks, elements at -inf
// take no part. What is left is a problem of finite elements and K thresholds, K < their number;
// its last rank, "all the places after the last", is a rank of the result where a row has no more
// than k elements.
//
// The K + 1 best elements ("sorted") and all others ("outsiders") are treated differently. From the
// solved marginals follow two bounds: an outsider is at most 1.7 times as likely to have one of the
// K ranks as to have none, and the sorted element s at most n^2 times as likely to have any rank as
// to have rank s. So a plan can be built up as products that start with 1 at these ranks:
// rank_plan.hpp.
//
// A tie between a sorted element and the next can be broken in any way, since the mass leaked out
// of *some* j + 1 elements equals the mass leaked into the others.

// The plan of a row whose thresholds have been placed.
template <class T>
void write_plan(const T* x, int64_t n, int64_t k, const Ranks<T>& ranks, T* plan,
                const RankSpace<T>& space) {
    using S = Vector<T>;
    const int64_t first = ranks.infinite, count = ranks.count;
    const T best = ranks.pivot[count], tau = static_cast<T>(ranks.tau);
    const bool last_is_a_rank = first + count < k;
    const auto write_top = [&](T value, T* to) {
        std::fill_n(to, k, T(0));
        if (value == kInf<T>) {
            std::fill_n(to, first, 1 / static_cast<T>(first));
            return;
        }
        const double* const from = space.plan + place_of(ranks, value);
        const int64_t columns = count + (last_is_a_rank ? 1 : 0);
        for (int64_t j = 0; j < columns; ++j) to[first + j] = static_cast<T>(from[j * space.lanes]);
    };
    sorted_plans(ranks, count, space);
    const OutsiderColumns<T> outsiders(k, ranks, space);
    constexpr int64_t block = RankSpace<T>::kLongestBlock;
    for (int64_t begin = 0; begin < n; begin += block) {
        const int64_t end = std::min(n, begin + block);
        T u[block], scale[block];
        each_vector<T>(begin, end, [&](auto at) {
            const auto v = exponential_below<T>(at.read(x, -kInf<T>), best, tau);
            store(u + at.i - begin, v);
            store(scale + at.i - begin, outsider_scale<T>(v, space.factor, count));
        });
        outsiders.write(u, scale, end - begin, plan + begin * k, plan + n * k);
    }
    for (int64_t i = 0; i < n; i += S::width) {
        const int64_t width = std::min<int64_t>(S::width, n - i);
        const auto v = width == S::width ? load(x + i) : load_part(x + i, width, -kInf<T>);
        for (unsigned above = bits_of<T>(v > S::all(best)); above != 0; above &= above - 1) {
            const int lane = lowest_of(above);
            write_top(x[i + lane], plan + (i + lane) * k);
        }
    }
}

// The plan of a row in which nothing is left to solve: a NaN, no rank left for the finite elements,
// or no more than one of them.
template <class T>
void write_decided_plan(const T* x, int64_t n, int64_t k, Census census, T* plan) {
    const int64_t shared = std::min(census.infinite, k);
    for (int64_t i = 0; i < n; ++i, plan += k) {
        const bool alone = census.infinite < k && census.finite == 1;
        std::fill_n(plan, k, T(0));
        if (x[i] == -kInf<T>) continue;
        if (census.nan) {
            std::fill_n(plan, k, std::numeric_limits<T>::quiet_NaN());
        } else if (x[i] == kInf<T>) {
            std::fill_n(plan, shared, 1 / static_cast<T>(census.infinite));
        } else if (alone) {
            plan[census.infinite] = 1;
        }
    }
}

template <class T>
Status ranking_of_row(const RankingCall<T>& call, int64_t row, int threads,
                      const RankSpace<T>& space) {
    const int64_t n = call.scores.size.n, k = call.k;
    const T* x = canonical(call.scores, row, threads, space.scratch);
    T *plan = call.plan + row * n * k, *pivot = call.pivot + row * (k + 1);
    double* offset = call.offset + row * k;
    Census census = census_of(x, n);
    census.nan |= std::isnan(call.tau[row]);
    std::fill_n(pivot, k + 1, -kInf<T>);
    std::fill_n(offset, k, 0.0);
    call.converged[row] = 1;
    if (census.nan || census.infinite >= k || census.finite <= 1) {
        write_decided_plan(x, n, k, census, plan);
        return kDone;
    }
    std::fill_n(pivot, census.infinite, kInf<T>);
    const Ranks<T> ranks = sort_out(x, n, census, k, static_cast<T>(call.tau[row]),
                                    pivot + census.infinite, threads, space);
    measure_gaps(ranks, space);
    call.converged[row] = solve_ranks(ranks, space);
    touch_up(ranks, space);
    std::copy_n(space.t, ranks.count, offset + ranks.infinite);
    place_thresholds(ranks, space.t, space);
    write_plan(x, n, k, ranks, plan, space);
    return kDone;
}

template <class T>
Status ranking(const RankingCall<T>& call) {
    return each_row(call, call.scores.size, rank_grain(call.k), ranking_of_row<T>, call.k,
                    lists_for(call.scores));
}
