// The sorted operator: k thresholds per row, by Newton's method on the logarithms of ratios of leaks.
// functional/_ranking.py has the derivation. Included once in each instruction set's file, after
// threshold.hpp.
//
// Infinite scores are decided apart: p elements at +inf share the first p ranks, elements at -inf
// take no part. What is left is a problem of finite elements and K thresholds, K < their number; its
// last rank, "all the places after the last", is a rank of the result where a row has no more than
// k elements.
//
// The K + 1 best elements ("sorted") and all others ("outsiders") are treated differently. From the
// solved marginals follow two bounds: an outsider is at most 1.7 times as likely to have one of the
// K ranks as to have none, and the sorted element s at most n^2 times as likely to have any rank as
// to have rank s. So a plan can be built up as products, starting with 1 at these ranks, without
// logarithms and without overflow:
//
//   - of a sorted element, from exp(-gap / tau) of the gaps between neighbours, in double;
//   - of an outsider, from the powers of u = exp((x - best outsider) / tau), in vectors of T.
//
// One exp per element serves all steps. Outsiders come in blocks of vectors, whose plan is computed
// anew in each pass: keeping it would take n K numbers, and take longer to read than to compute.
//
// A tie between a sorted element and the next can be broken in any way, since the mass leaked out
// of *some* j + 1 elements equals the mass leaked into the others.

// What the thresholds of a row need beside its result, O(n + k^2).
template <class T>
class RankSpace {
  public:
    static constexpr int64_t kBlockBytes = 1 << 15, kLongestBlock = 32 * Vector<T>::width;

    T *u, *factor;  // outsiders; factor[d] u^(d + 1) is the plan of rank K - 1 - d beside that of K
    T *shift;                     // W of the gradient, in the order of `factor`
    T *upper_block, *lower_block;          // (K, block)
    T *g_block;                            // (K + 1, block)
    double *gap, *decay;                   // between neighbours of the sorted, and exp(-gap)
    double *t, *trial;                     // (threshold - pivot) / tau
    double *alpha, *beta;                  // exp(t) and exp(-gap - t)
    double *h, *top, *rest, *mass;
    double *plan;                          // of one sorted element
    double *upper, *lower;                 // (K + 1, K): M and N of the sorted elements
    double *matrix;                        // (K, K)
    int64_t block;                         // elements in a block, whole vectors

    RankSpace(int64_t n, int64_t k) {
        constexpr int64_t width = Vector<T>::width;
        const int64_t padded = (k / 8 + 2) * 8;
        block = kBlockBytes / static_cast<int64_t>(sizeof(T)) / (2 * k);
        block = std::min(std::max<int64_t>(block / width, 2) * width, kLongestBlock);
        const int64_t doubles = 12 * padded + 3 * (k + 1) * k;
        const int64_t others = n + kLongestBlock + 2 * padded + 3 * k * block;
        memory_ = std::malloc(static_cast<size_t>(doubles) * sizeof(double) +
                              static_cast<size_t>(others) * sizeof(T));
        double* at = static_cast<double*>(memory_);
        for (double** list : {&gap, &decay, &t, &trial, &alpha, &beta, &h, &top, &rest, &mass,
                              &plan}) {
            *list = at;
            at += padded;
        }
        upper = at;
        lower = upper + (k + 1) * k;
        matrix = lower + (k + 1) * k;
        factor = reinterpret_cast<T*>(matrix + (k + 1) * k);
        shift = factor + padded;
        upper_block = shift + padded;
        lower_block = upper_block + k * block;
        g_block = lower_block + k * block;
        u = g_block + k * block;
    }
    RankSpace(const RankSpace&) = delete;
    RankSpace& operator=(const RankSpace&) = delete;
    ~RankSpace() { std::free(memory_); }

    explicit operator bool() const { return memory_ != nullptr; }

  private:
    void* memory_;
};

// The finite part of a row.
template <class T>
struct Ranks {
    const T* pivot;    // (K + 1), descending, the last one the best outsider
    int64_t count;     // K
    int64_t infinite;  // p
    double tau;
    int64_t outsiders;  // in the list u: those that matter to rounding, ties with the best left out
    double tied;        // how many elements tie with the best outsider, itself included
};

template <class T>
void measure_gaps(const Ranks<T>& ranks, const RankSpace<T>& space) {
    constexpr double longest = 0.125 * std::numeric_limits<double>::max();
    for (int64_t j = 0; j < ranks.count; ++j) {
        const double gap = static_cast<double>(ranks.pivot[j]) - static_cast<double>(ranks.pivot[j + 1]);
        space.gap[j] = std::min(gap / ranks.tau, longest);
        space.decay[j] = std::exp(-space.gap[j]);
    }
}

// What all plans at the thresholds t are products of.
template <class T>
void place_thresholds(const Ranks<T>& ranks, const double* t, const RankSpace<T>& space) {
    double reach = 1.0, p = 1.0;
    for (int64_t j = ranks.count - 1; j >= 0; --j) {
        space.alpha[j] = std::exp(t[j]);
        space.beta[j] = std::exp(-space.gap[j] - t[j]);
        p *= reach * space.beta[j];
        space.factor[ranks.count - 1 - j] = static_cast<T>(p);
        reach *= space.decay[j];
    }
}

// Plan of the sorted element s over the ranks 0..K.
template <class T>
void sorted_plan(const Ranks<T>& ranks, int64_t s, const RankSpace<T>& space, double* plan) {
    double total = 1.0, reach = 1.0, p = 1.0;
    plan[s] = 1.0;
    for (int64_t j = s; j < ranks.count; ++j) {
        p *= reach * space.alpha[j];
        reach *= space.decay[j];
        plan[j + 1] = p;
        total += p;
    }
    reach = p = 1.0;
    for (int64_t j = s - 1; j >= 0; --j) {
        p *= reach * space.beta[j];
        reach *= space.decay[j];
        plan[j] = p;
        total += p;
    }
    const double scale = 1.0 / total;
    for (int64_t j = 0; j <= ranks.count; ++j) plan[j] *= scale;
}

// M and N, each a sum of positive terms: 1 - M would have lost a small N.
inline void tails_of(const double* plan, int64_t count, double* upper, double* lower) {
    double sum = 0.0;
    for (int64_t j = 0; j < count; ++j) upper[j] = sum += plan[j];
    sum = 0.0;
    for (int64_t j = count - 1; j >= 0; --j) lower[j] = sum += plan[j + 1];
}

// Plan of a block of outsiders: plan[d] for rank K - 1 - d, by vectors. Returns that of rank K.
template <class T>
SOFTTOPK_INLINE typename Vector<T>::V outsider_plan(typename Vector<T>::V u, const T* factor,
                                                    int64_t count, int64_t stride, T* plan) {
    using S = Vector<T>;
    auto power = S::all(1), total = S::all(1);
    for (int64_t d = 0; d < count; ++d) {
        power *= u;
        const auto p = power * factor[d];
        store(plan + d * stride, p);
        total += p;
    }
    const auto scale = T(1) / total;
    for (int64_t d = 0; d < count; ++d) store(plan + d * stride, load(plan + d * stride) * scale);
    return scale;
}

// The number of elements from `begin` that make up the next block, rounded up to whole vectors.
template <class T>
int64_t block_at(int64_t begin, int64_t end, const RankSpace<T>& space) {
    constexpr int64_t width = Vector<T>::width;
    return std::min(space.block, (end - begin + width - 1) / width * width);
}

template <class T>
double sum_of(const T* list, int64_t count) {
    auto sum = Vector<T>::all(0);
    for (int64_t i = 0; i < count; i += Vector<T>::width) sum += load(list + i);
    return sum_of_lanes<T>(sum);
}

// M and N of a vector of outsiders, from the plan of the ranks before K, in its place, and of K.
template <class T>
SOFTTOPK_INLINE void outsider_tails(typename Vector<T>::V rest, int64_t count, int64_t stride,
                                    T* upper, T* lower) {
    auto sum = rest;
    for (int64_t d = 0; d < count; ++d) {
        store(lower + d * stride, sum);
        sum += load(upper + d * stride);
    }
    sum = Vector<T>::all(0);
    for (int64_t d = count - 1; d >= 0; --d) {
        sum += load(upper + d * stride);
        store(upper + d * stride, sum);
    }
}

// Add sum_i M_ij N_il over a block to the upper triangle j <= l of the matrix.
template <class T>
void add_block(int64_t size, int64_t count, const RankSpace<T>& space) {
    using S = Vector<T>;
    const int64_t stride = space.block;
    for (int64_t d = 0; d < count; ++d) {
        const T* upper = space.upper_block + d * stride;
        double* row = space.matrix + (count - 1 - d) * count + (count - 1);
        int64_t e = 0;
        for (; e + 4 <= d + 1; e += 4) {
            const T* lower = space.lower_block + e * stride;
            auto a = S::all(0), b = a, c = a, f = a;
            for (int64_t i = 0; i < size; i += S::width) {
                const auto v = load(upper + i);
                a += v * load(lower + i);
                b += v * load(lower + stride + i);
                c += v * load(lower + 2 * stride + i);
                f += v * load(lower + 3 * stride + i);
            }
            row[-e] += sum_of_lanes<T>(a);
            row[-e - 1] += sum_of_lanes<T>(b);
            row[-e - 2] += sum_of_lanes<T>(c);
            row[-e - 3] += sum_of_lanes<T>(f);
        }
        for (; e <= d; ++e) {
            const T* lower = space.lower_block + e * stride;
            auto a = S::all(0);
            for (int64_t i = 0; i < size; i += S::width) a += load(upper + i) * load(lower + i);
            row[-e] += sum_of_lanes<T>(a);
        }
    }
}

// y += factor x
SOFTTOPK_INLINE void add_multiple(double* y, const double* x, double factor, int64_t count) {
    using S = Vector<double>;
    int64_t i = 0;
    for (; i + S::width <= count; i += S::width) store(y + i, load(y + i) + load(x + i) * factor);
    for (; i < count; ++i) y[i] += factor * x[i];
}

// h at the thresholds t, and the negative of its Jacobian in `matrix`. Returns the norm of h.
template <class T>
double residual(const Ranks<T>& ranks, const double* t, const RankSpace<T>& space) {
    // Outsiders underflow in T. Where both leaks are about that small a threshold is decided: any
    // place is right to rounding, and there is nothing to solve.
    constexpr double tiny = std::numeric_limits<double>::min();
    constexpr double decided = 1e8 * std::numeric_limits<T>::min();
    const int64_t count = ranks.count;
    double *const top = space.top, *const rest = space.rest, *const matrix = space.matrix;
    place_thresholds(ranks, t, space);
    std::fill_n(top, count, 0.0);
    std::fill_n(rest, count, 0.0);
    std::fill_n(matrix, count * count, 0.0);
    for (int64_t i = 0; i < ranks.outsiders; i += space.block) {
        const int64_t size = block_at(i, ranks.outsiders, space);
        for (int64_t v = 0; v < size; v += Vector<T>::width) {
            T *const upper = space.upper_block + v, *const lower = space.lower_block + v;
            const auto last =
                outsider_plan<T>(load(space.u + i + v), space.factor, count, space.block, upper);
            outsider_tails<T>(last, count, space.block, upper, lower);
        }
        add_block(size, count, space);
        for (int64_t d = 0; d < count; ++d) {
            rest[count - 1 - d] += sum_of(space.upper_block + d * space.block, size);
        }
    }
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
        const bool is_decided = rest[j] < decided && top[j] < decided;
        if (is_decided) rest[j] = top[j] = kInfinity;
        rest[j] = std::max(rest[j], tiny);
        top[j] = std::max(top[j], tiny);
        space.h[j] = is_decided ? 0.0 : std::log(rest[j]) - std::log(top[j]);
        norm = std::abs(space.h[j]) < kInfinity ? std::max(norm, std::abs(space.h[j])) : kInfinity;
        matrix[j * count + j] = is_decided ? 1.0 : matrix[j * count + j] / rest[j];
    }
    for (int64_t j = 0; j < count; ++j) {
        for (int64_t l = j + 1; l < count; ++l) {
            const double sum = matrix[j * count + l];
            matrix[j * count + l] = sum / rest[j];
            matrix[l * count + j] = sum / rest[l];
        }
    }
    // M falls with s, N rises. A Jacobian need not be exact: leave out what has become small.
    constexpr double negligible = 1e-10;
    for (int64_t j = 0; j < count; ++j) {
        double* row = matrix + j * count;
        const auto add = [&](int64_t s, double weight) {
            const double *upper = space.upper + s * count, *lower = space.lower + s * count;
            add_multiple(row, upper, weight * lower[j], j + 1);
            add_multiple(row + j + 1, lower + j + 1, weight * upper[j], count - 1 - j);
        };
        for (int64_t s = j; s >= 0 && space.lower[s * count + j] > negligible * top[j]; --s) {
            add(s, 1.0 / top[j]);
        }
        for (int64_t s = j + 1; s <= count && space.upper[s * count + j] > negligible * rest[j]; ++s) {
            add(s, (s == count ? ranks.tied : 1.0) / rest[j]);
        }
    }
    return norm;
}

// One Sinkhorn iteration in terms of thresholds: rows to one, then columns to their mass.
template <class T>
void sweep(const Ranks<T>& ranks, double* t, const RankSpace<T>& space) {
    const int64_t count = ranks.count;
    double* const mass = space.mass;
    place_thresholds(ranks, t, space);
    std::fill_n(mass, count + 1, 0.0);
    for (int64_t i = 0; i < ranks.outsiders; i += space.block) {
        const int64_t size = block_at(i, ranks.outsiders, space);
        auto last = Vector<T>::all(0);
        for (int64_t v = 0; v < size; v += Vector<T>::width) {
            last += outsider_plan<T>(load(space.u + i + v), space.factor, count, space.block,
                                     space.upper_block + v);
        }
        for (int64_t d = 0; d < count; ++d) {
            mass[count - 1 - d] += sum_of(space.upper_block + d * space.block, size);
        }
        // The filling of the last vector has rank K.
        mass[count] += sum_of_lanes<T>(last) - static_cast<double>(std::max<int64_t>(
                                                   0, i + size - ranks.outsiders));
    }
    for (int64_t s = 0; s <= count; ++s) {
        sorted_plan(ranks, s, space, space.plan);
        add_multiple(mass, space.plan, s == count ? ranks.tied : 1.0, count + 1);
    }
    const double column = static_cast<double>(ranks.outsiders) + ranks.tied;
    for (int64_t j = 0; j <= count; ++j) {
        const double excess = std::max<double>(mass[j], std::numeric_limits<T>::min());
        mass[j] = std::log(j == count ? excess / column : excess);
    }
    for (int64_t j = 0; j < count; ++j) t[j] -= mass[j + 1] - mass[j];
}

// Solve matrix * result = h in place of h, by elimination with row pivots. A row without a pivot
// belongs to a threshold that is decided: it stays where it is.
inline void eliminate(double* matrix, double* h, int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
        int64_t best = j;
        for (int64_t i = j + 1; i < count; ++i) {
            if (std::abs(matrix[i * count + j]) > std::abs(matrix[best * count + j])) best = i;
        }
        double* row = matrix + j * count;
        if (best != j) {
            std::swap_ranges(row + j, row + count, matrix + best * count + j);
            std::swap(h[j], h[best]);
        }
        if (row[j] == 0.0) {
            row[j] = 1.0;
            continue;
        }
        const double inverse = 1.0 / row[j];
        for (int64_t i = j + 1; i < count; ++i) {
            double* other = matrix + i * count;
            const double factor = other[j] * inverse;
            if (factor == 0.0) continue;
            add_multiple(other + j + 1, row + j + 1, -factor, count - 1 - j);
            h[i] -= factor * h[j];
        }
    }
    for (int64_t j = count - 1; j >= 0; --j) {
        const double* row = matrix + j * count;
        double sum = h[j];
        for (int64_t l = j + 1; l < count; ++l) sum -= row[l] * h[l];
        h[j] = sum / row[j];
    }
}

// The thresholds of a row, into space.t. Returns whether they have converged.
template <class T>
bool solve_ranks(const Ranks<T>& ranks, const RankSpace<T>& space) {
    constexpr double precision = std::numeric_limits<T>::epsilon(), far = 1.0;
    constexpr int kMaxSteps = 40;
    const double near = 0.25 * std::sqrt(precision);
    const int64_t count = ranks.count;
    double *const t = space.t, *const trial = space.trial;
    for (int64_t j = 0; j < count; ++j) t[j] = -0.5 * space.gap[j];
    sweep(ranks, t, space);
    double norm = residual(ranks, t, space);
    for (int step = 0; step < kMaxSteps; ++step) {
        if (norm <= precision) return true;
        eliminate(space.matrix, space.h, count);
        for (int64_t j = 0; j < count; ++j) trial[j] = t[j] + space.h[j];
        // Convergence is quadratic: a step from within the root of the precision reaches it.
        const bool last = norm <= near;
        if (!last) {
            if (norm > far) sweep(ranks, trial, space);
            const double trial_norm = residual(ranks, trial, space);
            if (!(trial_norm < norm)) {
                // Not seen in practice. A sweep by itself always makes progress.
                std::copy_n(t, count, trial);
                sweep(ranks, trial, space);
                norm = residual(ranks, trial, space);
            } else {
                norm = trial_norm;
            }
        }
        std::copy_n(trial, count, t);
        if (last) return true;
    }
    return false;
}

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

// The elements within [low, high], one after the other.
template <class T>
int64_t take_between(const T* list, int64_t count, T low, T high, T* to) {
    using S = Vector<T>;
    T* out = to;
    int64_t i = 0;
    const auto take = [&](typename S::V v) {
        const unsigned inside = bits_of<T>((v >= S::all(low)) & (v <= S::all(high)));
        if (inside != 0) out += compress(out, v, inside);
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
        const auto v = i + S::width <= count ? load(list + i) : load_part(list + i, count - i, -kInf<T>);
        store(list + i, exp_of_negative<T>((v - best) / tau));
    }
}

// How far below the best outsider, in units of tau, an element leaks less than 1/n of a rounding:
// see `without_negligible`.
template <class T>
double reach_of(int64_t n) {
    return 2.0 * std::log(2.0 * static_cast<double>(n)) - std::log(std::numeric_limits<T>::epsilon());
}

// How many ranks, counted from the last, an outsider can have at all without underflow.
template <class T>
int64_t ranks_reached(const Ranks<T>& ranks, T value) {
    const double below = static_cast<double>(ranks.pivot[ranks.count]) - static_cast<double>(value);
    const double steps = (1.0 - static_cast<double>(ExpConstants<T>::lowest)) * ranks.tau / below;
    return steps < static_cast<double>(ranks.count) ? static_cast<int64_t>(steps) : ranks.count;
}

template <class T>
int64_t place_of(const Ranks<T>& ranks, T value) {
    return std::lower_bound(ranks.pivot, ranks.pivot + ranks.count, value, std::greater<T>()) -
           ranks.pivot;
}

// The best elements in order to `pivot`, and the outsiders that matter to rounding to space.u.
template <class T>
Ranks<T> sort_out(const T* x, int64_t n, Census census, int64_t k, T tau, T* pivot, int threads,
                  const Scratch<T>& scratch, const RankSpace<T>& space) {
    using Limits = std::numeric_limits<T>;
    const int64_t last = std::min(k, census.infinite + census.finite - 1);
    Ranks<T> ranks{pivot, last - census.infinite, census.infinite, static_cast<double>(tau), 0, 0};
    const Order<T> order = order_of(x, n, last + 1, threads, scratch);
    const T best = order.pivot;
    const int64_t above = order.above - census.infinite;
    take_between(x, n, std::nextafter(best, kInf<T>), Limits::max(), scratch.first);
    std::sort(scratch.first, scratch.first + above, std::greater<T>());
    std::copy_n(scratch.first, above, pivot);
    std::fill(pivot + above, pivot + ranks.count + 1, best);
    ranks.tied = static_cast<double>(above + order.tied - ranks.count);

    const T cut = std::max(best - static_cast<T>(reach_of<T>(n)) * tau, Limits::lowest());
    ranks.outsiders = take_between(x, n, cut, std::nextafter(best, -kInf<T>), space.u);
    exponentiate_outsiders(space.u, ranks.outsiders, best, tau);
    return ranks;
}

// The plan of a row whose thresholds have been placed.
template <class T>
void write_plan(const T* x, int64_t n, int64_t k, const Ranks<T>& ranks, T* plan,
                const RankSpace<T>& space) {
    using S = Vector<T>;
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
        const auto below = v < S::all(best);
        T* to = plan + i * k;
        std::fill_n(to, width * k, T(0));
        const auto u = S::select(below, exp_of_negative<T>((v - best) / tau), S::all(0));
        if (bits_of<T>(u > S::all(0)) != 0) {
            const auto rest =
                outsider_plan<T>(u, space.factor, count, S::width, space.upper_block);
            T* column = to + first + count - 1;
            for (int64_t d = 0; d < count; ++d) {
                const T* from = space.upper_block + d * S::width;
                for (int64_t lane = 0; lane < width; ++lane) column[lane * k - d] = from[lane];
            }
            if (last_is_a_rank) {
                store(lanes, S::select(u > S::all(0), rest, S::all(0)));
                for (int64_t lane = 0; lane < width; ++lane) column[lane * k + 1] = lanes[lane];
            }
        }
        const unsigned at_top = bits_of<T>(v >= S::all(best));
        for (int64_t lane = 0; lane < width; ++lane) {
            if (at_top >> lane & 1) write_top(x[i + lane], to + lane * k);
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

// The row as the solver wants it: see `canonical`.
template <class T>
const T* canonical_scores(const T* x, const uint8_t* mask, bool largest, int64_t row, int64_t n,
                          int threads, const Scratch<T>& scratch) {
    ThresholdCall<T> call{};
    call.x = x;
    call.mask = mask;
    call.n = n;
    call.largest = largest;
    return canonical(call, row, scratch, threads);
}

template <class T>
void ranking_of_row(const RankingCall<T>& call, int64_t row, int threads, const Scratch<T>& scratch,
                    const RankSpace<T>& space) {
    const int64_t n = call.n, k = call.k;
    const T* x = canonical_scores(call.x, call.mask, call.largest, row, n, threads, scratch);
    T *plan = call.plan + row * n * k, *pivot = call.pivot + row * (k + 1);
    double* offset = call.offset + row * k;
    const Census census = census_of(x, n);
    std::fill_n(pivot, k + 1, -kInf<T>);
    std::fill_n(offset, k, 0.0);
    call.converged[row] = 1;
    if (census.nan || census.infinite >= k || census.finite <= 1) {
        return write_decided_plan(x, n, k, census, plan);
    }
    std::fill_n(pivot, census.infinite, kInf<T>);
    const Ranks<T> ranks = sort_out(x, n, census, k, static_cast<T>(call.tau[row]),
                                    pivot + census.infinite, threads, scratch, space);
    measure_gaps(ranks, space);
    call.converged[row] = solve_ranks(ranks, space);
    std::copy_n(space.t, ranks.count, offset + ranks.infinite);
    place_thresholds(ranks, space.t, space);
    write_plan(x, n, k, ranks, plan, space);
}

// H u = right in place of right, for the symmetric H whose upper triangle is in `matrix`.
//
// Scaled to a unit diagonal the matrix is well conditioned at every temperature: where a threshold
// is cold, its row and column vanish together. One that has all but vanished has no derivative.
inline void solve_covariance(double* matrix, double* right, double* scale, int64_t count) {
    const double vanished = std::sqrt(std::numeric_limits<double>::min());
    for (int64_t j = 0; j < count; ++j) {
        const double diagonal = matrix[j * count + j];
        scale[j] = diagonal > vanished ? 1.0 / std::sqrt(diagonal) : 0.0;
        matrix[j * count + j] = 1.0;
    }
    for (int64_t j = 0; j < count; ++j) {
        right[j] *= scale[j];
        for (int64_t l = j + 1; l < count; ++l) matrix[j * count + l] *= scale[j] * scale[l];
    }
    // Cholesky: matrix = R^T R with R in the upper triangle, by rows.
    for (int64_t j = 0; j < count; ++j) {
        double* row = matrix + j * count;
        // Rounding can leave nothing of the diagonal; that direction is then left alone.
        const double inverse = row[j] > 1e-14 ? 1.0 / std::sqrt(row[j]) : 0.0;
        for (int64_t l = j + 1; l < count; ++l) row[l] *= inverse;
        row[j] = inverse;
        right[j] *= inverse;
        for (int64_t i = j + 1; i < count; ++i) {
            if (row[i] == 0.0) continue;
            add_multiple(matrix + i * count + i, row + i, -row[i], count - i);
            right[i] -= row[i] * right[j];
        }
    }
    for (int64_t j = count - 1; j >= 0; --j) {
        const double* row = matrix + j * count;
        double sum = right[j];
        for (int64_t l = j + 1; l < count; ++l) sum -= row[l] * right[l];
        right[j] = sum * row[j];
    }
    for (int64_t j = 0; j < count; ++j) right[j] *= scale[j];
}

// The gradient of a row. All numbers of an element are measured from the rank that is its own: s for
// the sorted element s, K for an outsider. So what is multiplied with a plan near 1 is 0, and
// nothing cancels at low temperature.
//
// Summed over the thresholds, the derivative in _ranking.py is the covariance of Y_j = K - j and
// g_j - W_j under the plan of the element, with W_j = sum_{l >= j} u_l and H u = pull.
template <class T>
class RankGradient {
  public:
    RankGradient(const T* x, const T* grad, int64_t n, int64_t k, const Ranks<T>& ranks,
                 const RankSpace<T>& space)
        : x_(x), grad_(grad), n_(n), k_(k), count_(ranks.count), ranks_(ranks), space_(space),
          best_(ranks.pivot[ranks.count]), tau_(static_cast<T>(ranks.tau)),
          last_is_a_rank_(ranks.infinite + ranks.count < k) {}

    void write(T rate, T* out) {
        sum_up();
        double *const u = space_.h, *const shift = space_.rest;
        solve_covariance(space_.matrix, u, space_.top, count_);
        shift[count_] = 0.0;
        for (int64_t j = count_ - 1; j >= 0; --j) {
            shift[j] = shift[j + 1] + u[j];
            space_.shift[count_ - 1 - j] = static_cast<T>(shift[j]);
        }
        int64_t index[S::width];
        for (int64_t i = 0; i < n_; i += S::width) {
            const int64_t width = std::min<int64_t>(S::width, n_ - i);
            const V v = width == S::width ? load(x_ + i) : load_part(x_ + i, width, -kInf<T>);
            const V e = S::select(v <= S::all(best_), exp_of_negative<T>((v - best_) / tau_), S::all(0));
            if (bits_of<T>(e > S::all(0)) != 0) {
                for (int64_t lane = 0; lane < width; ++lane) index[lane] = i + lane;
                const int64_t reached = ranks_reached(ranks_, largest_lane<T>(S::select(
                                                                  v <= S::all(best_), v, S::all(-kInf<T>))));
                const V g = outsider_gradient(e, index, width, reached) * rate;
                store_part(out + i, width, S::select(e > S::all(0), g, S::all(0)));
            } else {
                std::fill_n(out + i, width, T(0));
            }
            unsigned above = bits_of<T>((v > S::all(best_)) & (v < S::all(kInf<T>)));
            for (int64_t lane = 0; above != 0; ++lane, above >>= 1) {
                if (above & 1) out[i + lane] = static_cast<T>(sorted_gradient(i + lane, shift)) * rate;
            }
        }
    }

  private:
    using S = Vector<T>;
    using V = typename S::V;

    // H in the upper triangle of `matrix`, and the pull on each threshold in `h`.
    void sum_up() {
        const double reach = reach_of<T>(n_);
        const T cut = std::max(best_ - static_cast<T>(reach) * tau_, std::numeric_limits<T>::lowest());
        int64_t index[RankSpace<T>::kLongestBlock], waiting = 0;
        std::fill_n(space_.matrix, count_ * count_, 0.0);
        std::fill_n(space_.h, count_, 0.0);
        for (int64_t i = 0; i < n_; i += S::width) {
            const V v = i + S::width <= n_ ? load(x_ + i) : load_part(x_ + i, n_ - i, -kInf<T>);
            unsigned active = bits_of<T>((v >= S::all(cut)) & (v < S::all(kInf<T>)));
            for (int64_t lane = 0; active != 0; ++lane, active >>= 1) {
                if ((active & 1) == 0) continue;
                if (x_[i + lane] > best_) {
                    add_sorted(i + lane);
                    continue;
                }
                space_.u[waiting] = x_[i + lane];
                index[waiting++] = i + lane;
                if (waiting == space_.block) {
                    add_outsiders(index, waiting);
                    waiting = 0;
                }
            }
        }
        if (waiting > 0) add_outsiders(index, waiting);
    }

    // The plan of a sorted element to space.plan, and its gradient to `g`.
    int64_t prepare_sorted(int64_t i, double* g) {
        const int64_t s = place_of(ranks_, x_[i]);
        sorted_plan(ranks_, s, space_, space_.plan);
        const T* from = grad_ + i * k_ + ranks_.infinite;
        const double base = static_cast<double>(from[s]);  // s < K: the best outsider is not sorted here
        for (int64_t j = 0; j < count_; ++j) g[j] = static_cast<double>(from[j]) - base;
        g[count_] = (last_is_a_rank_ ? static_cast<double>(from[count_]) : 0.0) - base;
        return s;
    }

    void add_sorted(int64_t i) {
        double *const g = space_.mass, *const pull = space_.h;
        const int64_t s = prepare_sorted(i, g);
        const double* plan = space_.plan;
        double mean = 0.0, sum = 0.0;
        for (int64_t j = 0; j <= count_; ++j) mean += plan[j] * g[j];
        for (int64_t j = 0; j < s; ++j) pull[j] += sum += plan[j] * (g[j] - mean);
        sum = 0.0;
        for (int64_t j = count_; j > s; --j) pull[j - 1] -= sum += plan[j] * (g[j] - mean);
        double *const upper = space_.upper, *const lower = space_.lower;
        tails_of(plan, count_, upper, lower);
        for (int64_t j = 0; j < count_ && lower[j] > 0.0; ++j) {
            if (upper[j] == 0.0) continue;
            add_multiple(space_.matrix + j * count_ + j, lower + j, upper[j], count_ - j);
        }
    }

    double sorted_gradient(int64_t i, const double* shift) {
        double* const g = space_.mass;
        const int64_t s = prepare_sorted(i, g);
        double product = 0.0, mean_y = 0.0, mean_g = 0.0;
        for (int64_t j = 0; j <= count_; ++j) {
            const double y = space_.plan[j] * static_cast<double>(s - j);
            const double free = g[j] - (shift[j] - shift[s]);
            product += y * free;
            mean_y += y;
            mean_g += space_.plan[j] * free;
        }
        return product - mean_y * mean_g;
    }

    // The gradients of outsiders to space.g_block, (reached, block).
    void gather(const int64_t* index, int64_t size, int64_t reached) {
        const int64_t last = ranks_.infinite + count_;
        for (int64_t i = 0; i < size; ++i) {
            const T* from = grad_ + index[i] * k_ + last;
            const T base = last_is_a_rank_ ? from[0] : T(0);
            T* to = space_.g_block + i;
            for (int64_t d = 0; d < reached; ++d) to[d * space_.block] = from[-1 - d] - base;
        }
        for (int64_t i = size; i % S::width != 0; ++i) {
            for (int64_t d = 0; d < reached; ++d) space_.g_block[d * space_.block + i] = 0;
        }
    }

    void add_outsiders(const int64_t* index, int64_t size) {
        const int64_t stride = space_.block;
        exponentiate_outsiders(space_.u, size, best_, tau_);
        gather(index, size, count_);
        for (int64_t i = 0; i < size; i += S::width) {
            T *const plan = space_.upper_block + i, *const g = space_.g_block + i;
            const V rest = outsider_plan<T>(load(space_.u + i), space_.factor, count_, stride, plan);
            V mean = S::all(0), sum = S::all(0);
            for (int64_t d = 0; d < count_; ++d) mean += load(plan + d * stride) * load(g + d * stride);
            for (int64_t d = count_ - 1; d >= 0; --d) {
                sum += load(plan + d * stride) * (load(g + d * stride) - mean);
                store(g + d * stride, sum);
            }
            outsider_tails<T>(rest, count_, stride, plan, space_.lower_block + i);
        }
        const int64_t padded = (size + S::width - 1) / S::width * S::width;
        add_block(padded, count_, space_);
        for (int64_t d = 0; d < count_; ++d) {
            space_.h[count_ - 1 - d] += sum_of(space_.g_block + d * stride, padded);
        }
    }

    V outsider_gradient(V u, const int64_t* index, int64_t width, int64_t reached) {
        const int64_t stride = space_.block;
        gather(index, width, reached);
        T* const plan = space_.upper_block;
        const V rest = outsider_plan<T>(u, space_.factor, reached, stride, plan);
        V mean_y = S::all(0), mean_g = S::all(0);
        for (int64_t d = 0; d < reached; ++d) {
            const V p = load(plan + d * stride);
            const V free = load(space_.g_block + d * stride) - space_.shift[d];
            store(space_.g_block + d * stride, free);
            mean_y += p * static_cast<T>(d + 1);
            mean_g += p * free;
        }
        V covariance = rest * mean_y * mean_g;
        for (int64_t d = 0; d < reached; ++d) {
            const V free = load(space_.g_block + d * stride) - mean_g;
            covariance += load(plan + d * stride) * (static_cast<T>(d + 1) - mean_y) * free;
        }
        return covariance;
    }

    const T *x_, *grad_;
    int64_t n_, k_, count_;
    const Ranks<T>& ranks_;
    const RankSpace<T>& space_;
    T best_, tau_;
    bool last_is_a_rank_;
};

template <class T>
void ranking_gradient_of_row(const RankingGradientCall<T>& call, int64_t row, int threads,
                             const Scratch<T>& scratch, const RankSpace<T>& space) {
    const int64_t n = call.n, k = call.k;
    const T* pivot = call.pivot + row * (k + 1);
    T* out = call.grad_x + row * n;
    Ranks<T> ranks{pivot, -1, 0, 0.0, 0, 0.0};
    while (ranks.infinite <= k && pivot[ranks.infinite] == kInf<T>) ++ranks.infinite;
    while (ranks.infinite + ranks.count < k &&
           pivot[ranks.infinite + ranks.count + 1] != -kInf<T>) {
        ++ranks.count;
    }
    if (ranks.count <= 0) {  // nothing was left to solve
        std::fill_n(out, n, T(0));
        return;
    }
    const T tau = static_cast<T>(call.tau[row]);
    ranks.pivot += ranks.infinite;
    ranks.tau = static_cast<double>(tau);
    measure_gaps(ranks, space);
    place_thresholds(ranks, call.offset + row * k + ranks.infinite, space);
    const T* x = canonical_scores(call.x, call.mask, call.largest, row, n, threads, scratch);
    RankGradient<T> gradient(x, call.grad + row * n * k, n, k, ranks, space);
    gradient.write((call.largest ? T(1) : T(-1)) / tau, out);
}

// Rows side by side; only the passes over a single long row share the threads.
template <class T, class Body>
Status each_ranking(int64_t rows, int64_t n, int64_t k, int threads, bool with_row, Body body) {
    constexpr int64_t kWorthAThread = 4096;
    threads = static_cast<int>(
        std::min<int64_t>(threads, std::max<int64_t>(1, rows * n * k / kWorthAThread)));
    std::atomic<int32_t> status{kDone};
    const auto block = [&](int64_t begin, int64_t end, int threads_per_row) {
        const Scratch<T> scratch(n, with_row);
        const RankSpace<T> space(n, k);
        if (!scratch || !space) {
            status = kOutOfMemory;
            return;
        }
        for (int64_t row = begin; row < end; ++row) body(row, threads_per_row, scratch, space);
    };
    if (threads == 1 || rows < threads) {
        block(0, rows, threads);
    } else {
        const int64_t size = std::max<int64_t>(1, rows / (threads * 8));
        each((rows + size - 1) / size, threads,
             [&](int64_t i) { block(i * size, std::min(rows, (i + 1) * size), 1); });
    }
    return static_cast<Status>(status.load());
}

template <class T>
Status ranking(const RankingCall<T>& call) {
    return each_ranking<T>(call.rows, call.n, call.k, call.threads,
                           !call.largest || call.mask != nullptr,
                           [&](int64_t row, int threads, const Scratch<T>& scratch,
                               const RankSpace<T>& space) {
                               ranking_of_row(call, row, threads, scratch, space);
                           });
}

template <class T>
Status ranking_gradient(const RankingGradientCall<T>& call) {
    return each_ranking<T>(call.rows, call.n, call.k, call.threads,
                           !call.largest || call.mask != nullptr,
                           [&](int64_t row, int threads, const Scratch<T>& scratch,
                               const RankSpace<T>& space) {
                               ranking_gradient_of_row(call, row, threads, scratch, space);
                           });
}
