// The derivative of the sorted operator, from the thresholds of the forward pass.
//
// All numbers of an element are measured from the rank that is its own: s for the sorted element s,
// K for an outsider. So what is multiplied with a plan near 1 is 0, and nothing cancels at low
// temperature.
//
// Summed over the thresholds, the derivative in functional/_sorted.py is the covariance of Y_j = K
// - j and g_j - W_j under the plan of the element, with W_j = sum_{l >= j} u_l and H u = pull.

template <class T>
class RankGradient {
  public:
    RankGradient(const T* x, const T* grad, int64_t k, Ranks<T>& ranks, const RankSpace<T>& space)
        : x_(x),
          grad_(grad),
          k_(k),
          count_(ranks.count),
          last_(ranks.infinite + ranks.count),
          sorted_(place_of(ranks, ranks.pivot[ranks.count])),
          ranks_(ranks),
          space_(space),
          best_(ranks.pivot[ranks.count]),
          tau_(static_cast<T>(ranks.tau)) {
        // Further ranks are below the rounding of the first one reached.
        const double reach = reach_of(ranks.n, std::numeric_limits<T>::epsilon()) +
                             2.0 * std::log(static_cast<double>(count_));
        list_outsiders(x, ranks, std::nextafter(best_, kInf<T>), reach, space);
        measure_extents(ranks, reach, 1, space.extent);
    }

    void write(T rate, T* out) {
        read_last(out);
        std::fill_n(space_.matrix, count_ * space_.stride, 0.0);
        std::fill_n(space_.h, count_, 0.0);
        add_outsiders();
        read_sorted();
        add_sorted();
        double *const u = space_.h, *const shift = space_.rest;
        factorise_covariance(space_, count_);
        solve_covariance(space_, u, count_);
        shift[count_] = 0.0;
        for (int64_t j = count_ - 1; j >= 0; --j) {
            shift[j] = shift[j + 1] + u[j];
            space_.shift[count_ - 1 - j] = static_cast<T>(shift[j]);
        }
        write_far(rate, out);
        write_outsiders(rate, out);
        write_sorted(rate, out);
    }

  private:
    using S = Vector<T>;
    using V = typename S::V;
    using D = Vector<double>;

    // The gradients of rank K - 1, measured from that of rank K, to `out`. Outsiders that are not
    // in the list need no others, and the whole gradient is in the cache from here on.
    void read_last(T* out) const {
        const V lowest = S::all(vanishing_below(ranks_));
        each_vector<T>(0, ranks_.n, [&](auto at) {
            if (bits_of<T>(at.read(x_, -kInf<T>) >= lowest) == 0) return;
            const T* const from = grad_ + at.i * k_ + last_;
            T lanes[S::width] = {};
            for (int lane = 0; lane < at.size(); ++lane) lanes[lane] = from[lane * k_ - 1];
            if (last_ < k_) {
                for (int lane = 0; lane < at.size(); ++lane) lanes[lane] -= from[lane * k_];
            }
            at.write(out, load(lanes));
        });
    }

    // The outsiders that are not in the list.
    void write_far(T rate, T* out) const {
        const T factor = space_.factor[0], shift = space_.shift[0];
        each_vector<T>(0, ranks_.n, [&](auto at) {
            const V v = at.read(x_, -kInf<T>), u = exponential_below<T>(v, best_, tau_);
            const V g = u * factor * (at.read(out, 0) - shift) * rate;
            const auto moved = (u > S::all(0)) & (v <= S::all(best_));
            at.write(out, S::select(moved, g, S::all(0)));
        });
    }

    int64_t place(int64_t i) const {
        return static_cast<int64_t>(bit_cast<typename Integer<T>::bits>(space_.place[i]));
    }

    // body(i, at, ranks) for the vectors of outsiders in the list, i, whose gradients are at `at`
    // in space.g_block, (K, block), and finish(first, size) after each block.
    template <class Body, class Finish>
    void each_block(Body body, Finish finish) {
        const int64_t end = space_.extent[0];
        for (int64_t first = 0; first < end; first += space_.block) {
            const int64_t size = std::min(space_.block, end - first);
            if (loaded_ != first) {
                each_outsider<T>(space_.extent, count_, first, first + size,
                                 [&](int64_t i, int64_t reached) { gather(i, first, reached); });
                loaded_ = first;
            }
            each_outsider<T>(space_.extent, count_, first, first + size,
                             [&](int64_t i, int64_t reached) { body(i, i - first, reached); });
            finish(first, size);
        }
    }

    void gather(int64_t i, int64_t first, int64_t reached) const {
        T* const to = space_.g_block + i - first;
        const int64_t stride = space_.block;
        if (reached <= 4) {  // few columns are not worth a square
            for (int64_t lane = 0; lane < S::width; ++lane) {
                const T* const from = grad_ + place(i + lane) * k_ + last_ - 1;
                for (int64_t d = 0; d < reached; ++d) to[d * stride + lane] = from[-d];
            }
        } else {
            for (int64_t d = 0; d < reached; d += S::width) gather_square(i, d, reached, to);
        }
        if (last_ == k_) return;
        T base[S::width];
        for (int64_t lane = 0; lane < S::width; ++lane)
            base[lane] = grad_[place(i + lane) * k_ + last_];
        for (int64_t d = 0; d < reached; ++d) {
            store(to + d * stride, load(to + d * stride) - load(base));
        }
    }

    // The ranks from d on, before `reached`, as many as fit into a vector.
    void gather_square(int64_t i, int64_t d, int64_t reached, T* to) const {
        const T* const end = grad_ + ranks_.n * k_;
        const int64_t column = std::max<int64_t>(last_ - d - S::width, 0);
        V square[S::width];
        for (int lane = 0; lane < S::width; ++lane) {
            const T* const from = grad_ + place(i + lane) * k_ + column;
            square[lane] = from + S::width <= end ? load(from) : load_part(from, end - from, T(0));
        }
        transpose<T>(square);
        for (int j = 0; j < S::width; ++j) {
            const int64_t at = last_ - 1 - column - j;
            if (at >= d && at < reached) store(to + at * space_.block, square[j]);
        }
    }

    // H in the upper triangle of `matrix`, and the pull on each threshold in `h`.
    void add_outsiders() {
        const int64_t stride = space_.block;
        T* const pull = space_.sums;
        std::fill_n(pull, count_ * S::width, T(0));
        each_block(
            [&](int64_t i, int64_t at, int64_t reached) {
                T *const plan = space_.plan_block + at, *const lower = space_.lower_block + at;
                const T* const g = space_.g_block + at;
                const V u = load(space_.u + i);
                V power = outsider_scale<T>(u, space_.factor, reached), below = power;
                V mean = S::all(0);
                for (int64_t d = 0; d < reached; ++d) {
                    power *= u;
                    const V p = power * space_.factor[d];
                    store(plan + d * stride, p);
                    store(lower + d * stride, below);
                    below += p;
                    mean += p * load(g + d * stride);
                }
                V above = S::all(0), sum = S::all(0);
                for (int64_t d = reached - 1; d >= 0; --d) {
                    const V p = load(plan + d * stride);
                    above += p;
                    sum += p * (load(g + d * stride) - mean);
                    store(plan + d * stride, above);
                    store(pull + d * S::width, load(pull + d * S::width) + sum);
                }
            },
            [&](int64_t first, int64_t size) {
                add_block(first, size, space_.extent, count_, space_);
                add_sums<T>(space_.h + count_ - 1, -1, count_,
                            [=](int64_t d) { return load(pull + d * S::width); });
                std::fill_n(pull, count_ * S::width, T(0));
            });
    }

    void write_outsiders(T rate, T* out) {
        each_block(
            [&](int64_t i, int64_t at, int64_t reached) {
                T lanes[S::width];
                store(lanes, outsider_gradient(load(space_.u + i), at, reached) * rate);
                const int64_t width = std::min<int64_t>(S::width, ranks_.listed - i);
                for (int64_t lane = 0; lane < width; ++lane) out[place(i + lane)] = lanes[lane];
            },
            [](int64_t, int64_t) {});
    }

    V outsider_gradient(V u, int64_t at, int64_t reached) const {
        const int64_t stride = space_.block;
        T* const plan = space_.plan_block + at;
        const T* const g = space_.g_block + at;
        const V last = outsider_plan<T>(u, space_.factor, reached, stride, plan);
        V mean_y = S::all(0), mean_g = S::all(0);
        for (int64_t d = 0; d < reached; ++d) {
            const V p = load(plan + d * stride);
            mean_y += p * static_cast<T>(d + 1);
            mean_g += p * (load(g + d * stride) - space_.shift[d]);
        }
        V covariance = last * mean_y * mean_g;
        for (int64_t d = 0; d < reached; ++d) {
            const V p = load(plan + d * stride),
                    free = load(g + d * stride) - space_.shift[d] - mean_g;
            covariance += p * (static_cast<T>(d + 1) - mean_y) * free;
        }
        return covariance;
    }

    // Where the sorted elements are, and their gradients, measured from that of their own rank.
    void read_sorted() {
        std::fill_n(space_.slot, sorted_, int64_t{-1});
        each_above(x_, ranks_.n, best_, [&](int64_t i) {
            if (x_[i] == kInf<T>) return;
            int64_t s = place_of(ranks_, x_[i]);
            while (s < sorted_ && space_.slot[s] >= 0) ++s;  // ties
            // More of them only if the scores have changed since the forward pass.
            if (s < sorted_) space_.slot[s] = i;
        });
        const int64_t stride = space_.lanes;
        std::fill_n(space_.g, (count_ + 1) * stride, 0.0);
        for (int64_t s = 0; s < sorted_; ++s) {
            if (space_.slot[s] < 0) continue;
            const T* const from = grad_ + space_.slot[s] * k_ + ranks_.infinite;
            const double base = static_cast<double>(from[s]);
            double* const g = space_.g + s;
            for (int64_t j = 0; j < count_; ++j)
                g[j * stride] = static_cast<double>(from[j]) - base;
            g[count_ * stride] = (last_ == k_ ? 0.0 : static_cast<double>(from[count_])) - base;
        }
    }

    void add_sorted() {
        const int64_t stride = space_.lanes;
        double* const pull = space_.upper;  // before M is there
        sorted_plans(ranks_, sorted_, space_);
        for (int64_t first = 0; first < sorted_; first += D::width) {
            const double *const plan = space_.plan + first, *const g = space_.g + first;
            auto mean = D::all(0), sum = D::all(0);
            for (int64_t j = 0; j <= count_; ++j)
                mean += load(plan + j * stride) * load(g + j * stride);
            for (int64_t j = count_; j > 0; --j) {
                sum -= load(plan + j * stride) * (load(g + j * stride) - mean);
                store(pull + (j - 1) * stride + first, sum);
            }
            sum = D::all(0);
            for (int64_t j = 0; j < count_; ++j) {
                sum += load(plan + j * stride) * (load(g + j * stride) - mean);
                double* const to = pull + j * stride + first;
                store(to, choose(first, j, load(to), sum));
            }
        }
        add_sums<double>(space_.h, 1, count_, [&](int64_t j) {
            return sum_of_sorted(0, sorted_,
                                 [&](int64_t s) { return load(pull + j * stride + s); });
        });
        std::fill_n(space_.multiple, stride, 1.0);
        sorted_tails(ranks_, sorted_, space_);
        constexpr double precision = std::numeric_limits<T>::epsilon();
        add_sorted_covariance(ranks_, sorted_, precision * precision, space_);
    }

    void write_sorted(T rate, T* out) const {
        const int64_t stride = space_.lanes;
        const double* const shift = space_.rest;
        for (int64_t first = 0; first < sorted_; first += D::width) {
            const double *const plan = space_.plan + first, *const g = space_.g + first;
            const auto own = load(shift + first);
            auto product = D::all(0), mean_y = D::all(0), mean_g = D::all(0);
            auto distance = load(space_.number + first);
            for (int64_t j = 0; j <= count_; ++j, distance -= 1.0) {
                const auto p = load(plan + j * stride), y = p * distance;
                const auto free = load(g + j * stride) - (shift[j] - own);
                product += y * free;
                mean_y += y;
                mean_g += p * free;
            }
            store(space_.top + first, product - mean_y * mean_g);
        }
        for (int64_t s = 0; s < sorted_; ++s) {
            if (space_.slot[s] >= 0) {
                out[space_.slot[s]] = static_cast<T>(space_.top[s]) * rate;
            }
        }
    }

    const T *x_, *grad_;
    int64_t k_, count_, last_, sorted_, loaded_ = -1;
    const Ranks<T>& ranks_;
    const RankSpace<T>& space_;
    T best_, tau_;
};

template <class T>
Status ranking_gradient_of_row(const RankingGradientCall<T>& call, int64_t row, int threads,
                               const RankSpace<T>& space) {
    const int64_t n = call.scores.size.n, k = call.k;
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
        return kDone;
    }
    const T tau = static_cast<T>(call.tau[row]);
    ranks.pivot = pivot + ranks.infinite;
    ranks.n = n;
    ranks.tau = static_cast<double>(tau);
    measure_gaps(ranks, space);
    std::copy_n(call.offset + row * k + ranks.infinite, ranks.count, space.t);
    place_thresholds(ranks, space.t, space);
    const T* x = canonical(call.scores, row, threads, space.scratch);
    RankGradient<T> gradient(x, call.grad + row * n * k, k, ranks, space);
    gradient.write((call.scores.largest ? T(1) : T(-1)) / tau, out);
    return kDone;
}

template <class T>
Status ranking_gradient(const RankingGradientCall<T>& call) {
    return each_row(call, call.scores.size, rank_grain(call.k), ranking_gradient_of_row<T>, call.k,
                    lists_for(call.scores));
}
