// The indicator A of the unsorted operator, from the threshold of its row, and its derivative.

// A of a row whose threshold is finite: sigmoid((x - pivot) / tau - offset).
template <class T>
struct Sigmoid {
    using S = Vector<T>;
    using V = typename S::V;
    T pivot, offset, rate;

    Sigmoid(Root<T> root, T tau) : pivot(root.pivot), offset(root.offset), rate(1 / tau) {}

    SOFTTOPK_INLINE V operator()(V v) const {
        const V z = (v - pivot) * rate - offset;
        if (bits_of<T>(z >= S::all(ExpConstants<T>::lowest)) == 0) return S::all(0);
        const V e = exp_of_negative<T>(negative_of<T>(z));
        return S::select(z < S::all(0), e, S::all(1)) / (e + T(1));
    }
};

// A of a row whose threshold is infinite or NaN.
template <class T>
void decided(const T* x, int64_t n, Root<T> root, T* a) {
    const T shared = 1 / (1 + std::exp(root.offset));
    for (int64_t i = 0; i < n; ++i) {
        if (x[i] == -kInf<T>) {
            a[i] = 0;
        } else if (root.pivot == kInf<T>) {
            a[i] = x[i] == kInf<T> ? shared : T(0);
        } else {
            a[i] = std::isnan(root.pivot) ? root.pivot : T(1);
        }
    }
}

template <class T>
void write_indicator(const T* x, int64_t n, Root<T> root, T tau, T* a, int threads,
                     const Scratch<T>& scratch) {
    if (!std::isfinite(root.pivot)) return decided(x, n, root, a);
    const Sigmoid<T> share(root, tau);
    each_piece(n, threads, scratch, [=](int64_t begin, int64_t end, auto&) {
        each_vector<T>(begin, end, [=](auto at) { at.write(a, share(at.read(x, T(0)))); });
    });
}

// Whether infinite scores share places.
template <class T>
bool is_shared(Root<T> root) {
    return root.pivot == kInf<T> && std::isfinite(root.offset);
}

template <class T>
Status threshold_of_row(const ThresholdCall<T>& call, int64_t row, int threads,
                        const Scratch<T>& scratch) {
    const auto [first, n] = call.scores.size[row];
    const T tau = static_cast<T>(call.tau[row]);
    const T* x = canonical(call.scores, row, threads, scratch);
    const Root<T> root = solve(x, n, call.k[row], tau, threads, scratch);
    if (call.pivot != nullptr) call.pivot[row] = root.pivot;
    if (call.offset != nullptr) call.offset[row] = root.offset;
    if (call.a != nullptr) {
        write_indicator(x, n, root, tau, call.a + first, threads, scratch);
    }
    return is_shared(root) ? kShared : kDone;
}

// A (1 - A)
template <class T>
SOFTTOPK_INLINE typename Vector<T>::V slope_of(typename Vector<T>::V share) {
    return share * (T(1) - share);
}

// g_x = s (g - sum(s g) / sum(s)) / tau with s = A (1 - A).
template <class T>
Status threshold_gradient_of_row(const ThresholdGradientCall<T>& call, int64_t row, int threads,
                                 const Scratch<T>& scratch) {
    using S = Vector<T>;
    using V = typename S::V;
    const auto [first, n] = call.size[row];
    const T *a = call.a + first, *grad = call.grad + first;
    T* out = call.grad_x + first;
    const auto part = [=](int64_t begin, int64_t end, auto&) {
        Sums sums{};
        each_run<T>(begin, end, [&](int64_t from, int64_t to) {
            V slope = S::all(0), pull = S::all(0);
            each_vector<T>(from, to, [&](auto at) {
                const V s = slope_of<T>(at.read(a, T(0)));
                slope += s;
                pull += s * at.read(grad, T(0));
            });
            sums[0] += sum_of_lanes<T>(slope);
            sums[1] += sum_of_lanes<T>(pull);
        });
        return sums;
    };
    const Sums sums = sum_pieces(n, threads, scratch, part);
    const T mean = sums[0] == 0.0 ? T(0) : static_cast<T>(sums[1] / sums[0]);
    const T rate = 1 / static_cast<T>(call.tau[row]);
    each_piece(n, threads, scratch, [=](int64_t begin, int64_t end, auto&) {
        each_vector<T>(begin, end, [=](auto at) {
            const V s = slope_of<T>(at.read(a, T(0)));
            const V moved = s * (at.read(grad, T(0)) - mean) * rate;
            // No derivative in a row with a NaN, and none of 0 times infinity elsewhere.
            at.write(out, S::select(s > S::all(0), moved, S::all(0)));
        });
    });
    return kDone;
}

template <class T>
Status threshold(const ThresholdCall<T>& call) {
    return each_row(call, call.scores.size, kSolverGrain, threshold_of_row<T>,
                    lists_for(call.scores));
}

template <class T>
Status threshold_gradient(const ThresholdGradientCall<T>& call) {
    return each_row(call, call.size, kGradientGrain, threshold_gradient_of_row<T>, 0);
}
