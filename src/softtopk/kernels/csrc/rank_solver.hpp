// The thresholds of the sorted operator, by Newton's method on h_j = log(leak into the first j + 1
// ranks / leak out of them): h = 0 is the solution, and h is nearly linear in the thresholds.
//
// The start is the middle of each gap, and one Sinkhorn iteration (`sweep`). Far from the root each
// step is followed by another: Newton's method alone may leave a rank without any element.

// One Sinkhorn iteration in terms of thresholds: rows to one, then columns to their mass.
template <class T>
void sweep(const Ranks<T>& ranks, double* t, const RankSpace<T>& space) {
    const int64_t count = ranks.count;
    double* const mass = space.mass;
    place_thresholds(ranks, t, space);
    std::fill_n(mass, count + 1, 0.0);
    add_outsider_mass(ranks, mass, space);
    sorted_plans(ranks, count + 1, space);
    add_sums<double>(mass, 1, count + 1, [&](int64_t j) {
        const double* const plan = space.plan + j * space.lanes;
        return sum_of_sorted(0, count + 1,
                             [&](int64_t s) { return load(plan + s) * load(space.multiple + s); });
    });
    const double column = ranks.tied + static_cast<double>(ranks.listed);
    for (int64_t j = 0; j <= count; ++j) {
        const double excess = std::max<double>(mass[j], std::numeric_limits<T>::min());
        mass[j] = std::log(j == count ? excess / column : excess);
    }
    for (int64_t j = 0; j < count; ++j) t[j] -= mass[j + 1] - mass[j];
}

// log(a / b). Near 1 the first two terms of its series will do: the error is below 1e-5 of it, and
// vanishes at the root.
inline double log_ratio(double a, double b) {
    const double d = 2.0 * (a - b) / (a + b);
    return std::abs(d) < 0.2 ? d * (1.0 + d * d / 12.0) : std::log(a / b);
}

// h at the thresholds t, and its norm. Leaves the tails of the sorted elements for `linearise`.
template <class T>
double balance(const Ranks<T>& ranks, const double* t, const RankSpace<T>& space) {
    // Outsiders underflow in T. Where both leaks are about that small a threshold is decided: any
    // place is right to rounding, and there is nothing to solve.
    constexpr double tiny = std::numeric_limits<double>::min();
    constexpr double decided = 1e8 * std::numeric_limits<T>::min();
    const int64_t count = ranks.count;
    double *const top = space.top, *const rest = space.rest;
    const auto none = Vector<double>::all(0);
    place_thresholds(ranks, t, space);
    std::fill_n(top, count, 0.0);
    std::fill_n(rest, count + 1, 0.0);
    add_outsider_mass(ranks, rest, space);
    for (int64_t j = 1; j < count; ++j) rest[j] += rest[j - 1];
    sorted_plans(ranks, count + 1, space);
    sorted_tails(ranks, count + 1, space);
    add_sums<double>(top, 1, count, [&](int64_t j) {
        const double* const lower = space.lower + j * space.lanes;
        return sum_of_sorted(0, j + 1,
                             [&](int64_t s) { return choose(s, j, load(lower + s), none); });
    });
    add_sums<double>(rest, 1, count, [&](int64_t j) {
        const double* const upper = space.upper + j * space.lanes;
        const int64_t first = j / Vector<double>::width * Vector<double>::width;
        return sum_of_sorted(first, count + 1,
                             [&](int64_t s) { return choose(s, j, none, load(upper + s)); });
    });
    double norm = 0.0;
    for (int64_t j = 0; j < count; ++j) {
        if (rest[j] < decided && top[j] < decided) rest[j] = top[j] = kInfinity;
        rest[j] = std::max(rest[j], tiny);
        top[j] = std::max(top[j], tiny);
        space.h[j] = rest[j] == kInfinity ? 0.0 : log_ratio(rest[j], top[j]);
        norm = std::abs(space.h[j]) < kInfinity ? std::max(norm, std::abs(space.h[j])) : kInfinity;
    }
    return norm;
}

// The system of a Newton step where `balance` has been called: H step = mean h, to a precision of
// 1e-4.
//
// The derivative of h_j in threshold l is minus the sum H_jl, in which the terms of elements in
// top_j are divided by the leak out of top_j, and the others by the leak into it. At the root the
// two leaks are the same. So we divide all terms of row j by one mean of them, the one that is
// right for l = j. The other entries are then wrong by the order of h, which costs Newton's method
// nothing that we could measure, and the matrix is symmetric.
template <class T>
void linearise(const Ranks<T>& ranks, const RankSpace<T>& space) {
    const int64_t count = ranks.count;
    double* const of_top = space.mass;  // the terms of H_jj in top_j
    const auto none = Vector<double>::all(0);
    std::fill_n(of_top, count, 0.0);
    add_sums<double>(of_top, 1, count, [&](int64_t j) {
        const double *const upper = space.upper + j * space.lanes, *const lower = space.lower +
                                                                                  j * space.lanes;
        return sum_of_sorted(0, j + 1, [&](int64_t s) {
            return choose(s, j, load(upper + s) * load(lower + s), none);
        });
    });
    std::fill_n(space.matrix, count * space.stride, 0.0);
    add_outsider_covariance(space.near_extent, count, space);
    add_sorted_covariance(ranks, count + 1, 1e-8, space);
    for (int64_t j = 0; j < count; ++j) {
        const double all = space.matrix[j * space.stride + j];
        const double slope = of_top[j] / space.top[j] + (all - of_top[j]) / space.rest[j];
        space.mean[j] = slope > 0.0 ? all / slope : 0.0;  // 0 where nothing is left to solve
    }
    factorise_covariance(space, count);
}

// The thresholds of a row, into space.t. Returns whether they have converged.
template <class T>
bool solve_ranks(const Ranks<T>& ranks, const RankSpace<T>& space) {
    constexpr double precision = std::numeric_limits<T>::epsilon(), far = 1.0, good = 0.04;
    constexpr int kMaxSteps = 60;
    const int64_t count = ranks.count;
    double *const t = space.t, *const trial = space.trial;
    measure_extents(ranks, reach_of(ranks.n, precision), 0, space.extent);
    measure_extents(ranks, reach_of(ranks.n, 1e-4), 0, space.near_extent);
    std::fill_n(space.multiple, space.lanes, 0.0);
    std::fill_n(space.multiple, count, 1.0);
    space.multiple[count] = ranks.tied;
    for (int64_t j = 0; j < count; ++j) t[j] = -0.5 * space.gap[j];
    sweep(ranks, t, space);
    double norm = balance(ranks, t, space), norm_of_matrix = kInfinity, last_norm = 0.0;
    for (int step = 0; step < kMaxSteps; ++step) {
        if (norm <= precision) return true;
        // A matrix that has left so little of h is good for another step.
        const double rate = norm / last_norm;
        const bool again = rate < good;
        if (!again) {
            linearise(ranks, space);
            norm_of_matrix = norm;
        }
        for (int64_t j = 0; j < count; ++j) space.step[j] = space.mean[j] * space.h[j];
        solve_covariance(space, space.step, count);
        for (int64_t j = 0; j < count; ++j) trial[j] = t[j] + space.step[j];
        // The error after a step is about that before it times that at which the matrix was made. A
        // matrix that is used again takes as much off as the last time.
        const bool last = norm * (norm_of_matrix + 1e-4) <= 0.06 * precision ||
                          (again && norm * rate <= 0.5 * precision);
        if (!last) {
            if (norm > far) sweep(ranks, trial, space);
            last_norm = norm;
            norm = balance(ranks, trial, space);
            if (!(norm < last_norm)) {
                // Not seen in practice. A sweep by itself always makes progress.
                std::copy_n(t, count, trial);
                sweep(ranks, trial, space);
                norm = balance(ranks, trial, space);
                last_norm = 0.0;
            }
        }
        std::copy_n(trial, count, t);
        if (last) return true;
    }
    return false;
}

// A last iteration for the last digits: a leak of many elements is known to its own rounding, and
// the columns of the plan show it.
template <class T>
void touch_up(const Ranks<T>& ranks, const RankSpace<T>& space) {
    double largest = 0.0;
    for (int64_t j = 0; j < ranks.count; ++j) {
        if (space.rest[j] < kInfinity) largest = std::max(largest, space.rest[j]);
    }
    if (largest > 1.0) sweep(ranks, space.t, space);
}
