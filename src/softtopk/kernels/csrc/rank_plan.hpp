// Plans as products. The probabilities of the ranks of one element are built up from 1 at the rank
// that is its own, without logarithms and without overflow:
//
//   - of a sorted element, from exp(-gap / tau) of the gaps between neighbours, in double;
//   - of an outsider, from the powers of u = exp((x - best outsider) / tau), in vectors of T.
//
// One exp per element serves all steps. At the end are sums of plans over all outsiders.
//
// M_j is what an element has of the ranks up to j, N_j what it has of those after j.

// So many of the ranks before K have an outsider at this distance, if a plan below exp(-reach) is
// none.
template <class T>
int64_t ranks_reached(const Ranks<T>& ranks, double distance, double reach) {
    // No division by a distance of 0, or of -0 from one zero to the other.
    if (distance * static_cast<double>(ranks.count) <= reach) return ranks.count;
    return static_cast<int64_t>(reach / distance);
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
SOFTTOPK_INLINE void each_outsider_block(const Ranks<T>& ranks, double precision,
                                         const RankSpace<T>& space, Body body) {
    const double reach = reach_of(ranks.n, precision);
    for (int b = 0; b < ranks.bands; ++b) {
        const Band& band = ranks.band[b];
        const int64_t count = ranks_reached(ranks, band.distance, reach);
        if (count == 0) break;
        for (int64_t i = band.begin; i < band.end; i += space.block) {
            body(i, std::min(space.block, band.end - i + filling<T>(band.end - i)), count);
        }
    }
}

// The mass of every rank in the outsiders of the list, added to mass[0..K].
template <class T>
void add_outsider_mass(const Ranks<T>& ranks, double* mass, const RankSpace<T>& space) {
    using S = Vector<T>;
    const int64_t stride = space.block;
    each_outsider_block(
        ranks, std::numeric_limits<T>::epsilon(), space,
        [&](int64_t first, int64_t size, int64_t count) {
            T* const scale = space.lower_block;
            for (int64_t i = 0; i < size; i += S::width) {
                store(scale + i, outsider_plan<T>(load(space.u + first + i), space.factor, count,
                                                  stride, space.plan_block + i));
            }
            for (int64_t d = 0; d < count; ++d) {
                mass[ranks.count - 1 - d] += product_of(space.plan_block + d * stride, scale, size);
            }
            mass[ranks.count] += sum_of(scale, size);
        });
    // The filling of the last vector of a band has rank K.
    for (int b = 0; b < ranks.bands; ++b) {
        const int64_t size = ranks.band[b].end - ranks.band[b].begin;
        mass[ranks.count] -= static_cast<double>(filling<T>(size));
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
