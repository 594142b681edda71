// The sorted operator: k thresholds per row, by Newton's method on the logarithms of ratios of
// leaks. functional/_ranking.py has the derivation. Included once in each instruction set's file,
// after threshold.hpp.
//
// Infinite scores are decided apart: p elements at +inf share the first p ranks, elements at -inf
// take no part. What is left is a problem of finite elements and K thresholds, K < their number;
// its last rank, "all the places after the last", is a rank of the result where a row has no more
// than k elements.
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

// Outsiders at a like distance from the best one are listed together: the further below, the fewer
// of the ranks they can have to rounding.
struct Band {
    int64_t begin, end;  // in the list; begin at a whole vector
    double distance;     // of the nearest, in units of tau
};

constexpr int kMaxBands = 12;

// What the thresholds of a row need beside its result, O(n + k^2).
template <class T>
class RankSpace {
  public:
    static constexpr int64_t kBlockBytes = 1 << 15, kLongestBlock = 32 * Vector<T>::width;

    T* u;       // outsiders
    T* factor;  // factor[d] u^(d + 1) is the plan of rank K - 1 - d beside that of rank K
    T* shift;   // W of the gradient, in the order of `factor`
    T *plan_block, *lower_block, *g_block;  // (K, block)
    double *gap, *decay;                    // between neighbours of the sorted, and exp(-gap)
    double *t, *trial;                      // (threshold - pivot) / tau
    double *alpha, *beta;                   // exp(t) and exp(-gap - t)
    double *h, *step, *top, *rest, *mass, *inverse;
    double* plan;           // of one sorted element
    double *upper, *lower;  // (K + 1, K): M and N of the sorted elements
    double* matrix;         // (K, K)
    int64_t block;          // elements in a block, whole vectors

    RankSpace(int64_t n, int64_t k) {
        constexpr int64_t width = Vector<T>::width;
        const int64_t padded = k / 8 * 8 + 16;
        block = kBlockBytes / static_cast<int64_t>(sizeof(T)) / (2 * k);
        block = std::min(std::max<int64_t>(block / width, 2) * width, kLongestBlock);
        double** const lists[] = {&gap,  &decay, &t,    &trial, &alpha,   &beta, &h,
                                  &step, &top,   &rest, &mass,  &inverse, &plan};
        const int64_t doubles = 13 * padded + 3 * (k + 1) * k;
        const int64_t others = 2 * padded + 3 * k * block + n + kMaxBands * width + kLongestBlock;
        memory_ = std::malloc(static_cast<size_t>(doubles) * sizeof(double) +
                              static_cast<size_t>(others) * sizeof(T));
        if (memory_ == nullptr) return;
        double* at = static_cast<double*>(memory_);
        for (double** list : lists) {
            *list = at;
            at += padded;
        }
        upper = at;
        lower = upper + (k + 1) * k;
        matrix = lower + (k + 1) * k;
        factor = reinterpret_cast<T*>(matrix + (k + 1) * k);
        shift = factor + padded;
        plan_block = shift + padded;
        lower_block = plan_block + k * block;
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
    double tied;           // how many outsiders tie with the best, itself included
    int64_t n;             // of the row, for bounds
    Band band[kMaxBands];  // of the list u: those that matter to rounding, without these ties
    int bands;
};

// So many of the ranks before K have an outsider at this distance, if a plan below exp(-reach) is
// none.
template <class T>
int64_t ranks_reached(const Ranks<T>& ranks, double distance, double reach) {
    // No division by a distance of 0, or of -0 from one zero to the other.
    if (distance * static_cast<double>(ranks.count) <= reach) return ranks.count;
    return static_cast<int64_t>(reach / distance);
}

// How far below the best outsider an element leaks less than `precision` / n of what that one does:
// see `without_negligible`.
inline double reach_of(int64_t n, double precision) {
    return 2.0 * std::log(2.0 * static_cast<double>(n)) - std::log(precision);
}

template <class T>
void measure_gaps(const Ranks<T>& ranks, const RankSpace<T>& space) {
    constexpr double longest = 0.125 * std::numeric_limits<double>::max();
    for (int64_t j = 0; j < ranks.count; ++j) {
        const double gap =
            static_cast<double>(ranks.pivot[j]) - static_cast<double>(ranks.pivot[j + 1]);
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

// M and N, each a sum of positive terms: 1 - M would have lost a small N. Both sums in one loop, so
// that neither waits for the other.
inline void tails_of(const double* plan, int64_t count, double* upper, double* lower) {
    double above = 0.0, below = 0.0;
    for (int64_t j = 0; j < count; ++j) {
        above += plan[j];
        below += plan[count - j];
        upper[j] = above;
        lower[count - 1 - j] = below;
    }
}

// Plan of a vector of outsiders without its scale, which is returned: plan[d] for rank K - 1 - d.
// The plan of rank K without scale is 1.
template <class T>
SOFTTOPK_INLINE typename Vector<T>::V outsider_plan(typename Vector<T>::V u, const T* factor,
                                                    int64_t count, int64_t stride, T* plan) {
    using S = Vector<T>;
    auto power = u, total = S::all(0);
    for (int64_t d = 0; d < count; ++d) {
        const auto p = power * factor[d];
        store(plan + d * stride, p);
        total += p;
        power *= u;
    }
    return T(1) / (total + T(1));  // the 1 comes last, or every sum would round to its precision
}

// M in place of the plan, and N.
template <class T>
SOFTTOPK_INLINE void outsider_tails(typename Vector<T>::V scale, int64_t count, int64_t stride,
                                    T* plan, T* lower) {
    auto sum = scale;
    for (int64_t d = 0; d < count; ++d) {
        const auto p = load(plan + d * stride) * scale;
        store(plan + d * stride, p);
        store(lower + d * stride, sum);
        sum += p;
    }
    sum = Vector<T>::all(0);
    for (int64_t d = count - 1; d >= 0; --d) {
        sum += load(plan + d * stride);
        store(plan + d * stride, sum);
    }
}

template <class T>
double sum_of(const T* list, int64_t count) {
    auto sum = Vector<T>::all(0);
    for (int64_t i = 0; i < count; i += Vector<T>::width) sum += load(list + i);
    return sum_of_lanes<T>(sum);
}

template <class T>
double product_of(const T* a, const T* b, int64_t count) {
    auto sum = Vector<T>::all(0);
    for (int64_t i = 0; i < count; i += Vector<T>::width) sum += load(a + i) * load(b + i);
    return sum_of_lanes<T>(sum);
}

// body(first, size, ranks) for every block of the outsiders in the list; size is that of whole
// vectors.
template <class T, class Body>
SOFTTOPK_INLINE void each_block(const Ranks<T>& ranks, double precision, const RankSpace<T>& space,
                                Body body) {
    constexpr int64_t width = Vector<T>::width;
    const double reach = reach_of(ranks.n, precision);
    for (int b = 0; b < ranks.bands; ++b) {
        const Band& band = ranks.band[b];
        const int64_t count = ranks_reached(ranks, band.distance, reach);
        if (count == 0) break;
        for (int64_t i = band.begin; i < band.end; i += space.block) {
            body(i, std::min(space.block, (band.end - i + width - 1) / width * width), count);
        }
    }
}

// The mass of every rank in the outsiders of the list, added to mass[0..K].
template <class T>
void add_outsider_mass(const Ranks<T>& ranks, double* mass, const RankSpace<T>& space) {
    using S = Vector<T>;
    const int64_t stride = space.block;
    each_block(ranks, std::numeric_limits<T>::epsilon(), space,
               [&](int64_t first, int64_t size, int64_t count) {
                   T* const scale = space.lower_block;
                   for (int64_t i = 0; i < size; i += S::width) {
                       store(scale + i, outsider_plan<T>(load(space.u + first + i), space.factor,
                                                         count, stride, space.plan_block + i));
                   }
                   for (int64_t d = 0; d < count; ++d) {
                       mass[ranks.count - 1 - d] +=
                           product_of(space.plan_block + d * stride, scale, size);
                   }
                   mass[ranks.count] += sum_of(scale, size);
               });
    // The filling of the last vector of a band has rank K.
    for (int b = 0; b < ranks.bands; ++b) {
        const int64_t size = ranks.band[b].end - ranks.band[b].begin;
        mass[ranks.count] -= static_cast<double>((S::width - size % S::width) % S::width);
    }
}

// Add sum_i M_ij N_il over a block of `size` outsiders to the triangle j <= l of the matrix.
template <class T>
void add_block(int64_t size, int64_t count, const Ranks<T>& ranks, const RankSpace<T>& space) {
    using S = Vector<T>;
    const int64_t stride = space.block, last = ranks.count - 1;
    for (int64_t d = 0; d < count; ++d) {
        const T* upper = space.plan_block + d * stride;
        double* row = space.matrix + (last - d) * ranks.count + last;
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
        for (; e <= d; ++e) row[-e] += product_of(upper, space.lower_block + e * stride, size);
    }
}

// y += sum_i factor_i x_i, for the rows x_i of a matrix
SOFTTOPK_INLINE void add_rows(double* y, const double* x, int64_t stride, const double* factor,
                              int64_t rows, int64_t count) {
    using S = Vector<double>;
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4, x += 4 * stride) {
        const double a = factor[r], b = factor[r + 1], c = factor[r + 2], f = factor[r + 3];
        const double *x1 = x + stride, *x2 = x + 2 * stride, *x3 = x + 3 * stride;
        int64_t i = 0;
        for (; i + S::width <= count; i += S::width) {
            store(y + i, ((load(y + i) + load(x + i) * a) + load(x1 + i) * b) +
                             (load(x2 + i) * c + load(x3 + i) * f));
        }
        for (; i < count; ++i) y[i] += (a * x[i] + b * x1[i]) + (c * x2[i] + f * x3[i]);
    }
    for (; r < rows; ++r, x += stride) {
        int64_t i = 0;
        for (; i + S::width <= count; i += S::width) {
            store(y + i, load(y + i) + load(x + i) * factor[r]);
        }
        for (; i < count; ++i) y[i] += factor[r] * x[i];
    }
}

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
    each_block(ranks, precision, space, [&](int64_t first, int64_t size, int64_t reached) {
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

// LU factors of a matrix in its place, and the inverse diagonal of U.
//
// Both matrices of this file are sums of products M_min(j,l) N_max(j,l), whose diagonal is the
// largest entry: they do without pivots. Where rounding leaves nothing of the diagonal, the result
// is 0.
inline void factorise(double* matrix, double* inverse, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        double* const row = matrix + i * count;
        int64_t j = 0;
        while (j < i) {
            double factor[4];
            const int64_t size = std::min<int64_t>(4, i - j);
            for (int64_t a = 0; a < size; ++a) {
                double value = row[j + a];
                for (int64_t b = 0; b < a; ++b)
                    value += factor[b] * matrix[(j + b) * count + j + a];
                row[j + a] = value * inverse[j + a];
                factor[a] = -row[j + a];
            }
            add_rows(row + j + size, matrix + j * count + j + size, count, factor, size,
                     count - j - size);
            j += size;
        }
        inverse[i] = std::abs(row[i]) > 1e-14 ? 1.0 / row[i] : 0.0;
    }
}

// Vectors of two sums: one would wait for itself.
inline double dot(const double* a, const double* b, int64_t count) {
    using S = Vector<double>;
    auto first = S::all(0), second = S::all(0);
    int64_t i = 0;
    for (; i + 2 * S::width <= count; i += 2 * S::width) {
        first += load(a + i) * load(b + i);
        second += load(a + i + S::width) * load(b + i + S::width);
    }
    double sum = sum_of_lanes<double>(first + second);
    for (; i < count; ++i) sum += a[i] * b[i];
    return sum;
}

inline void solve_factorised(const double* matrix, const double* inverse, double* right,
                             int64_t count) {
    for (int64_t i = 1; i < count; ++i) right[i] -= dot(matrix + i * count, right, i);
    for (int64_t i = count - 1; i >= 0; --i) {
        const double* const row = matrix + i * count;
        right[i] = (right[i] - dot(row + i + 1, right + i + 1, count - 1 - i)) * inverse[i];
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
                  const Scratch<T>& scratch, const RankSpace<T>& space) {
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
    const Order<T> order = order_of(x, n, last + 1, threads, scratch);
    const T best = order.pivot;
    const int64_t above = order.above - census.infinite;
    const double reach = reach_of(n, Limits::epsilon());
    const T cut = std::max(best - static_cast<T>(reach) * tau, Limits::lowest());
    T* const list = scratch.first;
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
        begin += (size + width - 1) / width * width;
        left -= size;
        high = low;
    }
    return ranks;
}

template <class T>
SOFTTOPK_INLINE typename Vector<T>::V exponential_below(typename Vector<T>::V v, T best, T tau) {
    using S = Vector<T>;
    return exp_of_negative<T>((S::select(v > S::all(best), S::all(best), v) - best) / tau);
}

// The largest of those lanes of v that are not above `best`, as a distance from it.
template <class T>
SOFTTOPK_INLINE double nearest_of(const Ranks<T>& ranks, typename Vector<T>::V v, T best) {
    using S = Vector<T>;
    const T nearest = largest_lane<T>(S::select(v > S::all(best), S::all(-kInf<T>), v));
    return (static_cast<double>(best) - static_cast<double>(nearest)) / ranks.tau;
}

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
    Census census = census_of(x, n);
    census.nan |= std::isnan(call.tau[row]);
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
    touch_up(ranks, space);
    std::copy_n(space.t, ranks.count, offset + ranks.infinite);
    place_thresholds(ranks, space.t, space);
    write_plan(x, n, k, ranks, plan, space);
}

// H u = right in place of right, for the symmetric H whose upper triangle is in `matrix`.
//
// Scaled to a unit diagonal the matrix is well conditioned at every temperature: where a threshold
// is cold, its row and column vanish together. One that has all but vanished has no derivative.
inline void solve_covariance(double* matrix, double* right, double* scale, double* inverse,
                             int64_t count) {
    const double vanished = std::sqrt(std::numeric_limits<double>::min());
    for (int64_t j = 0; j < count; ++j) {
        const double diagonal = matrix[j * count + j];
        scale[j] = diagonal > vanished ? 1.0 / std::sqrt(diagonal) : 0.0;
        right[j] *= scale[j];
    }
    for (int64_t j = 0; j < count; ++j) {
        matrix[j * count + j] = 1.0;
        for (int64_t l = j + 1; l < count; ++l) {
            matrix[j * count + l] *= scale[j] * scale[l];
            matrix[l * count + j] = matrix[j * count + l];
        }
    }
    factorise(matrix, inverse, count);
    solve_factorised(matrix, inverse, right, count);
    for (int64_t j = 0; j < count; ++j) right[j] *= scale[j];
}

// The gradient of a row. All numbers of an element are measured from the rank that is its own: s
// for the sorted element s, K for an outsider. So what is multiplied with a plan near 1 is 0, and
// nothing cancels at low temperature.
//
// Summed over the thresholds, the derivative in _ranking.py is the covariance of Y_j = K - j and
// g_j - W_j under the plan of the element, with W_j = sum_{l >= j} u_l and H u = pull.
template <class T>
class RankGradient {
  public:
    RankGradient(const T* x, const T* grad, int64_t n, int64_t k, const Ranks<T>& ranks,
                 const RankSpace<T>& space)
        : x_(x),
          grad_(grad),
          n_(n),
          k_(k),
          count_(ranks.count),
          ranks_(ranks),
          space_(space),
          best_(ranks.pivot[ranks.count]),
          tau_(static_cast<T>(ranks.tau)),
          last_is_a_rank_(ranks.infinite + ranks.count < k) {}

    void write(T rate, T* out) {
        sum_up();
        double *const u = space_.h, *const shift = space_.rest;
        solve_covariance(space_.matrix, u, space_.top, space_.inverse, count_);
        shift[count_] = 0.0;
        for (int64_t j = count_ - 1; j >= 0; --j) {
            shift[j] = shift[j + 1] + u[j];
            space_.shift[count_ - 1 - j] = static_cast<T>(shift[j]);
        }
        // Further ranks are below the rounding of the first one reached.
        const double reach = reach_of(n_, std::numeric_limits<T>::epsilon()) +
                             2.0 * std::log(static_cast<double>(count_));
        int64_t index[S::width];
        for (int64_t i = 0; i < n_; i += S::width) {
            const int64_t width = std::min<int64_t>(S::width, n_ - i);
            const V v = width == S::width ? load(x_ + i) : load_part(x_ + i, width, -kInf<T>);
            const double nearest = nearest_of(ranks_, v, best_);
            if (nearest < -static_cast<double>(ExpConstants<T>::lowest)) {
                for (int64_t lane = 0; lane < width; ++lane) index[lane] = i + lane;
                const int64_t reached = std::min(count_, ranks_reached(ranks_, nearest, reach) + 1);
                const V e = exponential_below<T>(v, best_, tau_);
                const V g = outsider_gradient(e, index, width, reached);
                const auto moved = (e > S::all(0)) & (v <= S::all(best_));
                store_part(out + i, width, S::select(moved, g * rate, S::all(0)));
            } else {
                std::fill_n(out + i, width, T(0));
            }
            unsigned above = bits_of<T>((v > S::all(best_)) & (v < S::all(kInf<T>)));
            for (int64_t lane = 0; above != 0; ++lane, above >>= 1) {
                if (above & 1)
                    out[i + lane] = static_cast<T>(sorted_gradient(i + lane, shift)) * rate;
            }
        }
    }

  private:
    using S = Vector<T>;
    using V = typename S::V;

    // H in the upper triangle of `matrix`, and the pull on each threshold in `h`.
    void sum_up() {
        const double reach = reach_of(n_, std::numeric_limits<T>::epsilon());
        const T cut =
            std::max(best_ - static_cast<T>(reach) * tau_, std::numeric_limits<T>::lowest());
        int64_t index[RankSpace<T>::kLongestBlock], waiting = 0, sorted = 0;
        std::fill_n(space_.matrix, count_ * count_, 0.0);
        std::fill_n(space_.h, count_, 0.0);
        for (int64_t i = 0; i < n_; i += S::width) {
            const V v = i + S::width <= n_ ? load(x_ + i) : load_part(x_ + i, n_ - i, -kInf<T>);
            unsigned active = bits_of<T>((v >= S::all(cut)) & (v < S::all(kInf<T>)));
            for (int64_t lane = 0; active != 0; ++lane, active >>= 1) {
                if ((active & 1) == 0) continue;
                if (x_[i + lane] > best_) {
                    // More than K only if the scores have changed since the forward pass.
                    if (sorted < count_) add_sorted(i + lane, sorted++);
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
        for (int64_t j = 0; j < count_; ++j) {
            for (int64_t s = 0; s < sorted; ++s) space_.step[s] = space_.upper[s * count_ + j];
            add_rows(space_.matrix + j * count_ + j, space_.lower + j, count_, space_.step, sorted,
                     count_ - j);
        }
    }

    // The plan of a sorted element to space.plan, and its gradient to `g`.
    int64_t prepare_sorted(int64_t i, double* g) {
        const int64_t s = std::min(place_of(ranks_, x_[i]), count_ - 1);
        sorted_plan(ranks_, s, space_, space_.plan);
        const T* from = grad_ + i * k_ + ranks_.infinite;
        const double base = static_cast<double>(from[s]);
        for (int64_t j = 0; j < count_; ++j) g[j] = static_cast<double>(from[j]) - base;
        g[count_] = (last_is_a_rank_ ? static_cast<double>(from[count_]) : 0.0) - base;
        return s;
    }

    void add_sorted(int64_t i, int64_t place) {
        double *const g = space_.mass, *const pull = space_.h;
        const int64_t s = prepare_sorted(i, g);
        const double* plan = space_.plan;
        double mean = 0.0, sum = 0.0;
        for (int64_t j = 0; j <= count_; ++j) mean += plan[j] * g[j];
        for (int64_t j = 0; j < s; ++j) pull[j] += sum += plan[j] * (g[j] - mean);
        sum = 0.0;
        for (int64_t j = count_; j > s; --j) pull[j - 1] -= sum += plan[j] * (g[j] - mean);
        tails_of(plan, count_, space_.upper + place * count_, space_.lower + place * count_);
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
            T *const plan = space_.plan_block + i, *const g = space_.g_block + i;
            const V scale =
                outsider_plan<T>(load(space_.u + i), space_.factor, count_, stride, plan);
            V mean = S::all(0), sum = S::all(0);
            for (int64_t d = 0; d < count_; ++d)
                mean += load(plan + d * stride) * load(g + d * stride);
            mean *= scale;
            for (int64_t d = count_ - 1; d >= 0; --d) {
                sum += load(plan + d * stride) * scale * (load(g + d * stride) - mean);
                store(g + d * stride, sum);
            }
            outsider_tails<T>(scale, count_, stride, plan, space_.lower_block + i);
        }
        const int64_t padded = (size + S::width - 1) / S::width * S::width;
        add_block(padded, count_, ranks_, space_);
        for (int64_t d = 0; d < count_; ++d) {
            space_.h[count_ - 1 - d] += sum_of(space_.g_block + d * stride, padded);
        }
    }

    V outsider_gradient(V u, const int64_t* index, int64_t width, int64_t reached) {
        const int64_t stride = space_.block;
        gather(index, width, reached);
        T* const plan = space_.plan_block;
        const V scale = outsider_plan<T>(u, space_.factor, reached, stride, plan);
        V mean_y = S::all(0), mean_g = S::all(0);
        for (int64_t d = 0; d < reached; ++d) {
            const V p = load(plan + d * stride) * scale;
            const V free = load(space_.g_block + d * stride) - space_.shift[d];
            store(space_.g_block + d * stride, free);
            mean_y += p * static_cast<T>(d + 1);
            mean_g += p * free;
        }
        V covariance = mean_y * mean_g;
        for (int64_t d = 0; d < reached; ++d) {
            const V free = load(space_.g_block + d * stride) - mean_g;
            covariance += load(plan + d * stride) * (static_cast<T>(d + 1) - mean_y) * free;
        }
        return covariance * scale;
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
    Ranks<T> ranks{};
    ranks.count = -1;
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
    ranks.pivot = pivot + ranks.infinite;
    ranks.n = n;
    ranks.tau = static_cast<double>(tau);
    measure_gaps(ranks, space);
    place_thresholds(ranks, call.offset + row * k + ranks.infinite, space);
    const T* x = canonical_scores(call.x, call.mask, call.largest, row, n, threads, scratch);
    RankGradient<T> gradient(x, call.grad + row * n * k, n, k, ranks, space);
    gradient.write((call.largest ? T(1) : T(-1)) / tau, out);
}

// Only the passes over a single long row share the threads.
template <class T, class Call, class Body>
Status each_ranking(const Call& call, Body body) {
    const int lists = call.largest && call.mask == nullptr ? 2 : 3;
    const int threads = threads_for(call.rows * call.n * call.k, 4096, call.threads);
    std::atomic<int32_t> status{kDone};
    each_block(call.rows, threads, [&](int64_t begin, int64_t end, int row_threads) {
        const Scratch<T> scratch(call.n, lists);
        const RankSpace<T> space(call.n, call.k);
        if (!scratch || !space) {
            status = kOutOfMemory;
            return;
        }
        for (int64_t row = begin; row < end; ++row) body(call, row, row_threads, scratch, space);
    });
    return static_cast<Status>(status.load());
}

template <class T>
Status ranking(const RankingCall<T>& call) {
    return each_ranking<T>(call, ranking_of_row<T>);
}

template <class T>
Status ranking_gradient(const RankingGradientCall<T>& call) {
    return each_ranking<T>(call, ranking_gradient_of_row<T>);
}
