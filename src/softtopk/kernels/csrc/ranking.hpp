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

// A block of outsiders as the result wants them, element after element: u and the plan of rank K.
template <class T>
struct OutsiderBlock {
    static constexpr int64_t kLength = RankSpace<T>::kLongestBlock;
    T u[kLength], scale[kLength];
};

// Write the plans of the outsiders of a block, (size, k). What is written after them, before `end`,
// is garbage.
//
// Column j is scale weight_j u^(last - j), where `last` is the column of rank K. Vectors of one
// column of several elements become vectors of several columns of one element, in squares.
template <class T>
void write_block(const OutsiderBlock<T>& block, int64_t size, const T* weight, int64_t last,
                 int64_t k, T* to, T* end) {
    using S = Vector<T>;
    using V = typename S::V;
    const FlushToZero flush;
    for (int64_t i = 0; i < size; i += S::width, to += S::width * k) {
        const int64_t width = std::min<int64_t>(S::width, size - i);
        const V u = load(block.u + i), u2 = u * u;
        if (bits_of<T>(u > S::all(0)) == 0) {
            std::fill_n(to, width * k, T(0));
            continue;
        }
        V power = load(block.scale + i), next = power * u;  // two chains of products
        // The last columns first: what they write of the next element is written over.
        for (int64_t column = (k - 1) / S::width * S::width; column >= 0; column -= S::width) {
            V square[S::width];
            for (int j = S::width - 1; j >= 0; --j) {
                if (j < last - column) {
                    const V after = power * u2;
                    power = next;
                    next = after;
                }
                square[j] = power * weight[column + j];
            }
            transpose<T>(square);
            T* at = to + column;
            if (width == S::width && at + (S::width - 1) * k + S::width <= end) {
                for (int lane = 0; lane < S::width; ++lane, at += k) store(at, square[lane]);
            } else {
                T rows[S::width * S::width];
                for (int lane = 0; lane < S::width; ++lane) {
                    store(rows + lane * S::width, square[lane]);
                }
                for (int64_t lane = 0; lane < width; ++lane, at += k) {
                    std::copy_n(rows + lane * S::width, std::min<int64_t>(S::width, end - at), at);
                }
            }
            if (column > 0 && bits_of<T>(next > S::all(0)) == 0) {
                for (int64_t lane = 0; lane < width; ++lane) {
                    T* const row = to + lane * k;
                    for (int64_t j = 0; j < column; j += S::width) store(row + j, S::all(0));
                }
                break;
            }
        }
    }
}

template <class T>
void write_outsiders(const T* x, int64_t k, const Ranks<T>& ranks, T* plan,
                     const RankSpace<T>& space) {
    using S = Vector<T>;
    const int64_t n = ranks.n, count = ranks.count, last = ranks.infinite + count;
    const T best = ranks.pivot[count], tau = static_cast<T>(ranks.tau);
    const auto lowest = S::all(vanishing_below(ranks));
    std::fill_n(space.weight, k + S::width, T(0));
    for (int64_t d = 0; d < count; ++d) space.weight[last - 1 - d] = space.factor[d];
    space.weight[last] = last < k ? T(1) : T(0);
    OutsiderBlock<T> block;
    for (int64_t begin = 0; begin < n; begin += block.kLength) {
        const int64_t end = std::min(n, begin + block.kLength);
        each_vector<T>(begin, end, [&](auto at) {
            const auto v = at.read(x, -kInf<T>), none = S::all(0);
            auto u = none, scale = none;
            if (bits_of<T>(v >= lowest) != 0) {
                u = exponential_below<T>(v, best, tau);
                scale = S::select(u > none, outsider_scale<T>(u, space.factor, count), none);
            }
            store(block.u + at.i - begin, u);
            store(block.scale + at.i - begin, scale);
        });
        write_block(block, end - begin, space.weight, last, k, plan + begin * k, plan + n * k);
    }
}

// The plan of a row whose thresholds have been placed.
template <class T>
void write_plan(const T* x, int64_t k, const Ranks<T>& ranks, T* plan, const RankSpace<T>& space) {
    const int64_t infinite = ranks.infinite, columns = std::min(ranks.count + 1, k - infinite);
    write_outsiders(x, k, ranks, plan, space);
    sorted_plans(ranks, ranks.count, space);
    each_above(x, ranks.n, ranks.pivot[ranks.count], [&](int64_t i) {
        T* const to = plan + i * k;
        std::fill_n(to, k, T(0));
        if (x[i] == kInf<T>) {
            std::fill_n(to, infinite, 1 / static_cast<T>(infinite));
            return;
        }
        const double* const from = space.plan + place_of(ranks, x[i]);
        for (int64_t j = 0; j < columns; ++j) {
            to[infinite + j] = static_cast<T>(from[j * space.lanes]);
        }
    });
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
    write_plan(x, k, ranks, plan, space);
    return kDone;
}

template <class T>
Status ranking(const RankingCall<T>& call) {
    return each_row(call, call.scores.size, rank_grain(call.k), ranking_of_row<T>, call.k,
                    lists_for(call.scores));
}
