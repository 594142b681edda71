// Plans as products. The probabilities of the ranks of one element are built up from 1 at the rank
// that is its own, without logarithms and without overflow:
//
//   - of a sorted element, from exp(-gap / tau) of the gaps between neighbours, in double;
//   - of an outsider, from the powers of u = exp((x - best outsider) / tau), in T.
//
// One exp per element serves all steps. Vectors hold one rank of several elements. At the end are
// sums of plans over elements.
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

// How many outsiders of the list, in whole vectors, have each of the ranks, nearest to K first,
// with so many `more` ranks for each outsider.
template <class T>
void measure_extents(const Ranks<T>& ranks, double reach, int64_t more, int64_t* extent) {
    std::fill_n(extent, ranks.count, int64_t{0});
    for (int b = 0; b < ranks.bands; ++b) {
        const int64_t end = ranks.band[b].end;
        const int64_t reached = ranks_reached(ranks, ranks.band[b].distance, reach) + more;
        std::fill_n(extent, std::min(ranks.count, reached), end + filling<T>(end));
    }
}

template <class T>
void measure_gaps(const Ranks<T>& ranks, const RankSpace<T>& space) {
    using D = Vector<double>;
    constexpr double longest = 0.125 * std::numeric_limits<double>::max();
    for (int64_t j = 0; j < ranks.count; ++j) {
        const double gap =
            static_cast<double>(ranks.pivot[j]) - static_cast<double>(ranks.pivot[j + 1]);
        space.gap[j] = std::min(gap / ranks.tau, longest);
    }
    for (int64_t j = 0; j < ranks.count; j += D::width) {
        store(space.decay + j, exp_of_negative<double>(-load(space.gap + j)));
    }
}

// What all plans at the thresholds t are products of.
template <class T>
void place_thresholds(const Ranks<T>& ranks, const double* t, const RankSpace<T>& space) {
    using D = Vector<double>;
    for (int64_t j = 0; j < ranks.count; j += D::width) {
        store(space.alpha + j, exp_of<double>(load(t + j)));
        store(space.beta + j, exp_of<double>(-load(space.gap + j) - load(t + j)));
    }
    double reach = 1.0, p = 1.0;
    for (int64_t j = ranks.count - 1; j >= 0; --j) {
        p *= reach * space.beta[j];
        space.factor[ranks.count - 1 - j] = static_cast<T>(p);
        reach *= space.decay[j];
    }
}

// The plans of the first sorted elements, (K + 1, lanes), and 0 in the lanes after them.
template <class T>
void sorted_plans(const Ranks<T>& ranks, int64_t elements, const RankSpace<T>& space) {
    using D = Vector<double>;
    using V = typename D::V;
    const int64_t count = ranks.count, stride = space.lanes;
    const V none = D::all(0), one = D::all(1);
    for (int64_t first = 0; first < elements; first += D::width) {
        const auto lane = lane_numbers<double>() + first;
        double* const plan = space.plan + first;
        V total = none, p = none, reach = none;
        for (int64_t j = first; j <= count; ++j) {
            if (j > first) {
                p *= reach * space.alpha[j - 1];
                reach *= space.decay[j - 1];
            }
            const auto own = lane == D::all_bits(j);
            p = D::select(own, one, p);
            reach = D::select(own, one, reach);
            store(plan + j * stride, p);
            total += p;
        }
        p = reach = none;
        for (int64_t j = std::min(count, first + D::width - 1); j >= 0; --j) {
            if (j < count) {
                p *= reach * space.beta[j];
                reach *= space.decay[j];
            }
            const auto above = lane > D::all_bits(j), own = lane == D::all_bits(j);
            const V q = D::select(above, p, none);
            total += q;
            store(plan + j * stride, j < first ? q : D::select(above, q, load(plan + j * stride)));
            p = D::select(own, one, p);
            reach = D::select(own, one, reach);
        }
        const V scale = D::select(lane < D::all_bits(elements), 1.0 / total, none);
        for (int64_t j = 0; j <= count; ++j) {
            store(plan + j * stride, load(plan + j * stride) * scale);
        }
    }
}

// M of these elements, times how often each occurs, and N. Both are sums of positive terms: a
// difference from 1 would have lost a small N.
template <class T>
void sorted_tails(const Ranks<T>& ranks, int64_t elements, const RankSpace<T>& space) {
    using D = Vector<double>;
    const int64_t count = ranks.count, stride = space.lanes;
    for (int64_t first = 0; first < elements; first += D::width) {
        const double* const plan = space.plan + first;
        const auto multiple = load(space.multiple + first);
        auto above = D::all(0), below = D::all(0);
        for (int64_t j = 0; j < count; ++j) {
            above += load(plan + j * stride) * multiple;
            below += load(plan + (count - j) * stride);
            store(space.upper + j * stride + first, above);
            store(space.lower + (count - 1 - j) * stride + first, below);
        }
    }
}

// The sum of of(s) over vectors of sorted elements.
template <class Of>
SOFTTOPK_INLINE typename Vector<double>::V sum_of_sorted(int64_t begin, int64_t end, Of of) {
    auto sum = Vector<double>::all(0);
    for (int64_t s = begin; s < end; s += Vector<double>::width) sum += of(s);
    return sum;
}

// For a vector of the sorted elements s, s + 1, ...: `upper` in the lanes up to j, then `lower`.
SOFTTOPK_INLINE typename Vector<double>::V choose(int64_t s, int64_t j,
                                                  typename Vector<double>::V upper,
                                                  typename Vector<double>::V lower) {
    using D = Vector<double>;
    return D::select(lane_numbers<double>() + s > D::all_bits(j), lower, upper);
}

// to[j * step] += the sum of the lanes of vector_of(j), j < count
template <class T, class VectorOf>
SOFTTOPK_INLINE void add_sums(double* to, int64_t step, int64_t count, VectorOf vector_of) {
    for (int64_t j = 0; j < count; j += 4) {
        const int64_t last = count - 1;
        const auto sums =
            sums_of_lanes<T>(vector_of(j), vector_of(std::min(j + 1, last)),
                             vector_of(std::min(j + 2, last)), vector_of(std::min(j + 3, last)));
        const int64_t size = std::min<int64_t>(4, count - j);
        for (int64_t i = 0; i < size; ++i) {
            to[(j + i) * step] += static_cast<double>(sums[static_cast<size_t>(i)]);
        }
    }
}

// The plan of outsiders is scale factor_d u^(d + 1) for rank K - 1 - d, and the scale for rank K.
template <class T>
SOFTTOPK_INLINE typename Vector<T>::V outsider_scale(typename Vector<T>::V u, const T* factor,
                                                     int64_t count) {
    auto total = Vector<T>::all(0);
    for (int64_t d = count - 1; d >= 0; --d) total = total * u + factor[d];
    return T(1) / (total * u + T(1));  // the 1 comes last, or the sum would round to its precision
}

// Plan of a vector of outsiders, plan[d] for rank K - 1 - d. Returns that of rank K.
template <class T>
SOFTTOPK_INLINE typename Vector<T>::V outsider_plan(typename Vector<T>::V u, const T* factor,
                                                    int64_t count, int64_t stride, T* plan) {
    const auto scale = outsider_scale<T>(u, factor, count);
    auto power = scale;
    for (int64_t d = 0; d < count; ++d) {
        power *= u;
        store(plan + d * stride, power * factor[d]);
    }
    return scale;
}

// M and N of a vector of outsiders.
template <class T>
SOFTTOPK_INLINE void outsider_tails(typename Vector<T>::V u, const T* factor, int64_t count,
                                    int64_t stride, T* upper, T* lower) {
    auto power = outsider_scale<T>(u, factor, count), sum = power;
    for (int64_t d = 0; d < count; ++d) {
        power *= u;
        const auto p = power * factor[d];
        store(upper + d * stride, p);
        store(lower + d * stride, sum);
        sum += p;
    }
    sum = Vector<T>::all(0);
    for (int64_t d = count - 1; d >= 0; --d) {
        sum += load(upper + d * stride);
        store(upper + d * stride, sum);
    }
}

// Outsiders below this have a plan of 0 for each of the K ranks.
template <class T>
T vanishing_below(const Ranks<T>& ranks) {
    return ranks.pivot[ranks.count] + (ExpConstants<T>::lowest - 1) * static_cast<T>(ranks.tau);
}

template <class T>
SOFTTOPK_INLINE typename Vector<T>::V exponential_below(typename Vector<T>::V v, T best, T tau) {
    using S = Vector<T>;
    return exp_of_negative<T>((S::select(v > S::all(best), S::all(best), v) - best) / tau);
}

// body(i, ranks) for the vectors of outsiders from `begin` to `end` in the list, with the number of
// ranks that they have.
template <class T, class Body>
SOFTTOPK_INLINE void each_outsider(const int64_t* extent, int64_t count, int64_t begin, int64_t end,
                                   Body body) {
    for (int64_t i = begin; i < end; i += Vector<T>::width) {
        while (extent[count - 1] <= i) --count;
        body(i, count);
    }
}

// The mass of every rank in the outsiders of the list, added to mass[0..K].
template <class T>
void add_outsider_mass(const Ranks<T>& ranks, double* mass, const RankSpace<T>& space) {
    using S = Vector<T>;
    constexpr int64_t block = RankSpace<T>::kLongestBlock;
    const int64_t count = ranks.count, end = space.extent[0];
    T* const sum = space.sums;
    for (int64_t first = 0; first < end; first += block) {
        auto last = S::all(0);
        std::fill_n(sum, count * S::width, T(0));
        each_outsider<T>(space.extent, count, first, std::min(end, first + block),
                         [&](int64_t i, int64_t reached) {
                             const auto u = load(space.u + i);
                             auto power = outsider_scale<T>(u, space.factor, reached);
                             last += power;
                             for (int64_t d = 0; d < reached; ++d) {
                                 power *= u;
                                 store(sum + d * S::width, load(sum + d * S::width) + power);
                             }
                         });
        add_sums<T>(mass + count - 1, -1, count,
                    [&](int64_t d) { return load(sum + d * S::width) * space.factor[d]; });
        mass[count] += sum_of_lanes<T>(last);
    }
    mass[count] -= static_cast<double>(filling<T>(ranks.listed));  // which has rank K
}
