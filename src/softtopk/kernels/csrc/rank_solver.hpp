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
    for (int64_t s = 0; s <= count; ++s) {
        const double weight = s == count ? ranks.tied : 1.0;
        sorted_plan(ranks, s, space, space.plan);
        add_rows(mass, space.plan, 0, &weight, 1, count + 1);
    }
    double column = ranks.tied;
    for (int b = 0; b < ranks.bands; ++b) {
        column += static_cast<double>(ranks.band[b].end - ranks.band[b].begin);
    }
    for (int64_t j = 0; j <= count; ++j) {
        const double excess = std::max<double>(mass[j], std::numeric_limits<T>::min());
        mass[j] = std::log(j == count ? excess / column : excess);
    }
    for (int64_t j = 0; j < count; ++j) t[j] -= mass[j + 1] - mass[j];
}

// h at the thresholds t, and its norm. Leaves the tails of the sorted elements for `jacobian`.
template <class T>
double balance(const Ranks<T>& ranks, const double* t, const RankSpace<T>& space) {
    // Outsiders underflow in T. Where both leaks are about that small a threshold is decided: any
    // place is right to rounding, and there is nothing to solve.
    constexpr double tiny = std::numeric_limits<double>::min();
    constexpr double decided = 1e8 * std::numeric_limits<T>::min();
    const int64_t count = ranks.count;
    double *const top = space.top, *const rest = space.rest;
    place_thresholds(ranks, t, space);
    std::fill_n(top, count, 0.0);
    std::fill_n(rest, count + 1, 0.0);
    add_outsider_mass(ranks, rest, space);
    for (int64_t j = 1; j < count; ++j) rest[j] += rest[j - 1];
    for (int64_t s = 0; s <= count; ++s) {
        double *const upper = space.upper + s * count, *const lower = space.lower + s * count;
        sorted_plan(ranks, s, space, space.plan);
        tails_of(space.plan, count, upper, lower);
        const double weight = s == count ? ranks.tied : 1.0;
        for (int64_t j = 0; j < s; ++j) rest[j] += weight * upper[j];
        for (int64_t j = s; j < count; ++j) top[j] += lower[j];
    }
    double norm = 0.0;
    for (int64_t j = 0; j < count; ++j) {
        if (rest[j] < decided && top[j] < decided) rest[j] = top[j] = kInfinity;
        rest[j] = std::max(rest[j], tiny);
        top[j] = std::max(top[j], tiny);
        space.h[j] = rest[j] == kInfinity ? 0.0 : std::log(rest[j] / top[j]);
        norm = std::abs(space.h[j]) < kInfinity ? std::max(norm, std::abs(space.h[j])) : kInfinity;
    }
    return norm;
}

// The negative of the Jacobian of h, to a precision of 1e-4, where `balance` has been called.
template <class T>
void jacobian(const Ranks<T>& ranks, const RankSpace<T>& space) {
    constexpr double precision = 1e-4, negligible = 1e-8;
    const int64_t count = ranks.count, stride = space.block;
    double *const top = space.top, *const rest = space.rest, *const matrix = space.matrix;
    std::fill_n(matrix, count * count, 0.0);
    each_outsider_block(ranks, precision, space, [&](int64_t first, int64_t size, int64_t reached) {
        for (int64_t i = 0; i < size; i += Vector<T>::width) {
            T *const plan = space.plan_block + i, *const lower = space.lower_block + i;
            const auto scale =
                outsider_plan<T>(load(space.u + first + i), space.factor, reached, stride, plan);
            outsider_tails<T>(scale, reached, stride, plan, lower);
        }
        add_block(size, reached, ranks, space);
    });
    for (int64_t j = 0; j < count; ++j) {
        matrix[j * count + j] /= rest[j];
        for (int64_t l = j + 1; l < count; ++l) {
            const double sum = matrix[j * count + l];
            matrix[j * count + l] = sum / rest[j];
            matrix[l * count + j] = sum / rest[l];
        }
    }
    double* const weight = space.step;
    for (int64_t j = 0; j < count; ++j) {
        double* const row = matrix + j * count;
        if (rest[j] == kInfinity) {
            row[j] = 1.0;
            continue;
        }
        // Away from j, sorted elements leak less and less over it.
        int64_t begin = j, end = j + 1;
        while (begin > 0 && space.lower[(begin - 1) * count + j] > negligible * top[j]) --begin;
        while (end <= count && space.upper[end * count + j] > negligible * rest[j]) ++end;
        const auto weights = [&](const double* tails) {
            for (int64_t s = begin; s < end; ++s) {
                weight[s - begin] = tails[s * count + j] / (s <= j ? top[j] : rest[j]);
            }
            if (end == count + 1) weight[count - begin] *= ranks.tied;
        };
        weights(space.lower);
        add_rows(row, space.upper + begin * count, count, weight, end - begin, j + 1);
        weights(space.upper);
        add_rows(row + j + 1, space.lower + begin * count + j + 1, count, weight, end - begin,
                 count - 1 - j);
    }
}

// The thresholds of a row, into space.t. Returns whether they have converged.
template <class T>
bool solve_ranks(const Ranks<T>& ranks, const RankSpace<T>& space) {
    constexpr double precision = std::numeric_limits<T>::epsilon(), far = 1.0, digit = 0.1;
    constexpr int kMaxSteps = 60;
    const int64_t count = ranks.count;
    double *const t = space.t, *const trial = space.trial;
    for (int64_t j = 0; j < count; ++j) t[j] = -0.5 * space.gap[j];
    sweep(ranks, t, space);
    double norm = balance(ranks, t, space), norm_of_matrix = kInfinity, last_norm = 0.0;
    for (int step = 0; step < kMaxSteps; ++step) {
        if (norm <= precision) return true;
        // A matrix that takes a digit off per step is good for another one.
        if (!(norm < digit * last_norm)) {
            jacobian(ranks, space);
            factorise(space.matrix, space.inverse, count);
            norm_of_matrix = norm;
        }
        std::copy_n(space.h, count, space.step);
        solve_factorised(space.matrix, space.inverse, space.step, count);
        for (int64_t j = 0; j < count; ++j) trial[j] = t[j] + space.step[j];
        // The error after a step is about that before it times that at which the matrix was made.
        const bool last = norm * (norm_of_matrix + 1e-4) <= 0.06 * precision;
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
