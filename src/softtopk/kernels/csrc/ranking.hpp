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
    constexpr double reach = 1.0 - static_cast<double>(ExpConstants<T>::lowest);
    const int64_t first = ranks.infinite, count = ranks.count;
    const T best = ranks.pivot[count], tau = static_cast<T>(ranks.tau);
    const bool last_is_a_rank = first + count < k;
    const auto write_top = [&](T value, T* to) {
        if (value == kInf<T>) {
            std::fill_n(to, first, 1 / static_cast<T>(first));
            return;
        }
        sorted_plan(ranks, place_of(ranks, value), space, space.plan);
        const int64_t columns = count + (last_is_a_rank ? 1 : 0);
        for (int64_t j = 0; j < columns; ++j) to[first + j] = static_cast<T>(space.plan[j]);
    };
    T lanes[S::width];
    for (int64_t i = 0; i < n; i += S::width) {
        const int64_t width = std::min<int64_t>(S::width, n - i);
        const auto v = width == S::width ? load(x + i) : load_part(x + i, width, -kInf<T>);
        const double nearest = nearest_of(ranks, v, best);
        T* const to = plan + i * k;
        std::fill_n(to, width * k, T(0));
        if (nearest < reach) {
            const int64_t reached = ranks_reached(ranks, nearest, reach);
            const auto u = exponential_below<T>(v, best, tau);
            const auto scale =
                outsider_plan<T>(u, space.factor, reached, S::width, space.plan_block);
            T* const column = to + first + count - 1;
            for (int64_t d = 0; d < reached; ++d) {
                store(lanes, load(space.plan_block + d * S::width) * scale);
                for (int64_t lane = 0; lane < width; ++lane) column[lane * k - d] = lanes[lane];
            }
            if (last_is_a_rank) {
                store(lanes, S::select(u > S::all(0), scale, S::all(0)));
                for (int64_t lane = 0; lane < width; ++lane) column[lane * k + 1] = lanes[lane];
            }
        }
        unsigned above = bits_of<T>(v > S::all(best));
        for (int64_t lane = 0; above != 0; ++lane, above >>= 1) {
            if ((above & 1) == 0) continue;
            std::fill_n(to + lane * k, k, T(0));
            write_top(x[i + lane], to + lane * k);
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
