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
        const int64_t padded = size + filling<T>(size);
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
    place_thresholds(ranks, call.offset + row * k + ranks.infinite, space);
    const T* x = canonical(call.scores, row, threads, space.scratch);
    RankGradient<T> gradient(x, call.grad + row * n * k, n, k, ranks, space);
    gradient.write((call.scores.largest ? T(1) : T(-1)) / tau, out);
    return kDone;
}

template <class T>
Status ranking_gradient(const RankingGradientCall<T>& call) {
    return each_row(call, call.scores.size, rank_grain(call.k), ranking_gradient_of_row<T>, call.k,
                    lists_for(call.scores));
}
