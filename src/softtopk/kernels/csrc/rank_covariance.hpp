// The matrix H_jl = sum_i M_i,min(j,l) N_i,max(j,l), the derivative of the marginals in the
// thresholds: that of Newton's method, and of the derivative of the operator. Its upper triangle is
// in space.matrix.

// Add a block of `size` outsiders, whose first one is `first` in the list; M is in plan_block.
template <class T>
void add_block(int64_t first, int64_t size, const int64_t* extent, int64_t count,
               const RankSpace<T>& space) {
    using S = Vector<T>;
    const int64_t stride = space.block;
    for (int64_t d = 0; d < count && extent[d] > first; ++d) {
        const int64_t reaching = std::min(size, extent[d] - first);
        const T* const upper = space.plan_block + d * stride;
        double* const row = space.matrix + (count - 1 - d) * space.stride + count - 1;
        for (int64_t e = 0; e <= d; e += 4) {
            const T *const lower = space.lower_block + e * stride, *next[3];
            for (int64_t i = 0; i < 3; ++i) next[i] = lower + std::min(i + 1, d - e) * stride;
            auto a = S::all(0), b = a, c = a, f = a;
            for (int64_t i = 0; i < reaching; i += S::width) {
                const auto v = load(upper + i);
                a += v * load(lower + i);
                b += v * load(next[0] + i);
                c += v * load(next[1] + i);
                f += v * load(next[2] + i);
            }
            const auto sums = sums_of_lanes<T>(a, b, c, f);
            for (int64_t i = 0; i < std::min<int64_t>(4, d + 1 - e); ++i) {
                row[-e - i] += static_cast<double>(sums[static_cast<size_t>(i)]);
            }
        }
    }
}

template <class T>
void add_outsider_covariance(const int64_t* extent, int64_t count, const RankSpace<T>& space) {
    const int64_t block = space.block;
    for (int64_t first = 0; first < extent[0]; first += block) {
        const int64_t size = std::min(block, extent[0] - first);
        each_outsider<T>(extent, count, first, first + size, [&](int64_t i, int64_t reached) {
            T *const plan = space.plan_block + i - first, *const lower =
                                                              space.lower_block + i - first;
            outsider_tails<T>(load(space.u + i), space.factor, reached, block, plan, lower);
        });
        add_block(first, size, extent, count, space);
    }
}

// Add the first sorted elements, whose tails are known.
//
// Scaled to a unit diagonal, an element adds no more than the root of its shares in two entries of
// the diagonal. Its share falls off on both sides of its own rank: where it is below `negligible`,
// it is left out.
template <class T>
void add_sorted_covariance(const Ranks<T>& ranks, int64_t elements, double negligible,
                           const RankSpace<T>& space) {
    constexpr int64_t width = Vector<double>::width, few = 16;
    const int64_t count = ranks.count, stride = space.lanes;
    int64_t *const begin = space.begin, *const end = space.end;
    for (int64_t j = 0; j < count; ++j) {
        begin[j] = 0;
        end[j] = elements;
        if (elements <= few) continue;  // it would take longer than it saves
        const auto share = [&](int64_t s) {
            return space.upper[j * stride + s] * space.lower[j * stride + s];
        };
        begin[j] = std::min(j, elements);
        end[j] = std::min(j + 2, elements);
        double least = 0.0;
        for (int64_t s = begin[j]; s < end[j]; ++s) least += negligible * share(s);
        while (begin[j] > 0 && share(begin[j] - 1) > least) --begin[j];
        while (end[j] < elements && share(end[j]) > least) ++end[j];
        begin[j] = begin[j] / width * width;
    }
    for (int64_t j = 0, last = 0; j < count; ++j) {
        while (last < count && begin[last] < end[j]) ++last;
        const double* const upper = space.upper + j * stride;
        add_sums<double>(space.matrix + j * space.stride + j, 1, last - j, [&](int64_t l) {
            const double* const lower = space.lower + (j + l) * stride;
            return sum_of_sorted(begin[j + l], end[j],
                                 [&](int64_t s) { return load(upper + s) * load(lower + s); });
        });
    }
}

// Scaled to a unit diagonal the matrix is well conditioned at every temperature: where a threshold
// is cold, its row and column vanish together. One that has all but vanished has no derivative.
template <class T>
void factorise_covariance(const RankSpace<T>& space, int64_t count) {
    constexpr double vanished = std::numeric_limits<double>::min();
    double* const scale = space.unit;
    for (int64_t j = 0; j < count; ++j) {
        const double diagonal = space.matrix[j * space.stride + j];
        scale[j] = diagonal > vanished ? 1.0 / std::sqrt(diagonal) : 0.0;
    }
    for (int64_t j = 0; j < count; ++j) {
        double* const row = space.matrix + j * space.stride;
        for (int64_t l = j + 1; l < count; ++l) row[l] *= scale[j] * scale[l];
        row[j] = 1.0;
    }
    factorise(space.matrix, space.factors, space.inverse, space.stride, count);
}

// H u = right, in place of right.
template <class T>
void solve_covariance(const RankSpace<T>& space, double* right, int64_t count) {
    for (int64_t j = 0; j < count; ++j) right[j] *= space.unit[j];
    solve_factorised(space.matrix, space.factors, space.inverse, space.stride, right, count);
    for (int64_t j = 0; j < count; ++j) right[j] *= space.unit[j];
}
