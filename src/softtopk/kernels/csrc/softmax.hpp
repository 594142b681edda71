// The softmax among the soft top k: w ~ exp(x) A, with A of the unsorted operator. Included once in
// each instruction set's file, after threshold.hpp.
//
// The product needs no logarithm of A: the largest score has the largest A, at least k / n, so that
// what underflows beside it is no part of the sum.

// The largest element of a row, or NaN if there is one.
template <class T>
T largest_of(const T* x, int64_t n, int threads, const Scratch<T>& scratch) {
    using S = Vector<T>;
    each_piece(n, threads, scratch, [=](int64_t begin, int64_t end, auto& partial) {
        auto largest = S::all(-kInf<T>);
        typename S::M unordered{};
        const auto take = [&](typename S::V v) {
            unordered |= v != v;
            largest = S::select(v > largest, v, largest);
        };
        int64_t i = begin;
        for (; i + S::width <= end; i += S::width) take(load(x + i));
        if (i < end) take(load_part(x + i, end - i, -kInf<T>));
        partial.sums[0] = static_cast<double>(largest_lane<T>(largest));
        partial.nan = bits_of<T>(unordered) != 0;
    });
    double largest = -kInfinity;
    for (int64_t i = 0; i < pieces(n); ++i) {
        if (scratch.piece(i).nan) return std::numeric_limits<T>::quiet_NaN();
        largest = std::max(largest, scratch.piece(i).sums[0]);
    }
    return static_cast<T>(largest);
}

template <class T>
void weigh(const T* x, const T* a, int64_t n, T* w, int threads, const Scratch<T>& scratch) {
    using S = Vector<T>;
    using V = typename S::V;
    const T largest = largest_of(x, n, threads, scratch);
    if (!(largest < kInf<T>)) {  // as torch.softmax has it
        std::fill(w, w + n, std::numeric_limits<T>::quiet_NaN());
        return;
    }
    if (largest == -kInf<T>) {
        std::fill(w, w + n, T(0));
        return;
    }
    each_piece(n, threads, scratch, [=](int64_t begin, int64_t end, auto& partial) {
        const auto weight = [=](V v, V share) {
            if (bits_of<T>(share > S::all(0)) == 0) return S::all(0);
            return exp_of_negative<T>(v - largest) * share;
        };
        partial.sums[0] = 0.0;
        for (int64_t i = begin; i < end;) {
            const int64_t stop = std::min(end, i + 64 * S::width);
            V total = S::all(0);
            for (; i + S::width <= stop; i += S::width) {
                const V v = weight(load(x + i), load(a + i));
                store(w + i, v);
                total += v;
            }
            if (i < stop) {
                const int64_t left = stop - i;
                const V v = weight(load_part(x + i, left, largest), load_part(a + i, left, T(0)));
                store_part(w + i, left, v);
                total += v;
                i = stop;
            }
            partial.sums[0] += sum_of_lanes<T>(total);
        }
    });
    double total = 0.0;
    for (int64_t i = 0; i < pieces(n); ++i) total += scratch.piece(i).sums[0];
    const T rate = total > 0.0 ? static_cast<T>(1.0 / total) : T(0);
    each_piece(n, threads, scratch, [=](int64_t begin, int64_t end, auto&) {
        int64_t i = begin;
        for (; i + S::width <= end; i += S::width) store(w + i, load(w + i) * rate);
        if (i < end) store_part(w + i, end - i, load_part(w + i, end - i, T(0)) * rate);
    });
}

// A (1 - A)
template <class T>
SOFTTOPK_INLINE typename Vector<T>::V slope_of(typename Vector<T>::V share) {
    return share * (T(1) - share);
}

// With u = w (g - sum(w g)), the derivative of the softmax, s = A (1 - A) and r = u / A:
// g_x = u + s (r - sum(s r) / sum(s)) / tau.
//
// At a low temperature one element, or some that are tied, have nearly all of s, and the rounding
// of the difference would be multiplied by 1 / tau. So r is measured from that of the element with
// the largest s, in a way that gives exactly 0 for itself and for its like.
template <class T>
Status softmax_gradient_of_row(const SoftmaxGradientCall<T>& call, int64_t row, int threads,
                               const Scratch<T>& scratch) {
    using S = Vector<T>;
    using V = typename S::V;
    const int64_t n = call.n;
    const T *w = call.w + row * n, *a = call.a + row * n, *grad = call.grad + row * n;
    T* out = call.grad_x + row * n;
    // take(w, A, g) for all vectors from i to stop.
    const auto pass = [=](int64_t i, int64_t stop, auto take) {
        for (; i + S::width <= stop; i += S::width) take(load(w + i), load(a + i), load(grad + i));
        if (i < stop) {
            const int64_t left = stop - i;
            take(load_part(w + i, left, T(0)), load_part(a + i, left, T(0)),
                 load_part(grad + i, left, T(0)));
        }
    };
    constexpr int64_t kRun = 64 * S::width;  // of sums in T
    each_piece(n, threads, scratch, [=](int64_t begin, int64_t end, auto& partial) {
        std::fill(partial.sums, partial.sums + 3, 0.0);
        for (int64_t i = begin; i < end; i += kRun) {
            V sum = S::all(0), slope = S::all(0), steepest = S::all(0);
            pass(i, std::min(end, i + kRun), [&](V v, V share, V g) {
                const V s = slope_of<T>(share);
                sum += v * g;
                slope += s;
                steepest = S::select(s > steepest, s, steepest);
            });
            partial.sums[0] += sum_of_lanes<T>(sum);
            partial.sums[1] += sum_of_lanes<T>(slope);
            partial.sums[2] =
                std::max(partial.sums[2], static_cast<double>(largest_lane<T>(steepest)));
        }
    });
    double sum = 0.0, slope = 0.0, steepest = 0.0;
    for (int64_t i = 0; i < pieces(n); ++i) {
        sum += scratch.piece(i).sums[0];
        slope += scratch.piece(i).sums[1];
        steepest = std::max(steepest, scratch.piece(i).sums[2]);
    }
    const T mean = static_cast<T>(sum);
    T quotient = 0, cotangent = 0;  // w / A and g of the element with the largest s
    if (steepest > 0.0) {
        int64_t place = 0;
        while (place < n - 1 && !(a[place] * (1 - a[place]) >= static_cast<T>(steepest))) ++place;
        quotient = w[place] / a[place];
        cotangent = grad[place];
    }
    const auto distance = [=](V v, V share, V g) {
        const V own = v / S::select(share > S::all(0), share, S::all(1));
        return (own - quotient) * (g - mean) + quotient * (g - cotangent);
    };
    each_piece(n, threads, scratch, [=](int64_t begin, int64_t end, auto& partial) {
        partial.sums[0] = 0.0;
        for (int64_t i = begin; i < end; i += kRun) {
            V pull = S::all(0);
            pass(i, std::min(end, i + kRun),
                 [&](V v, V share, V g) { pull += slope_of<T>(share) * distance(v, share, g); });
            partial.sums[0] += sum_of_lanes<T>(pull);
        }
    });
    double pull = 0.0;
    for (int64_t i = 0; i < pieces(n); ++i) pull += scratch.piece(i).sums[0];
    const T shift = slope > 0.0 ? static_cast<T>(pull / slope) : T(0);
    const T rate = 1 / static_cast<T>(call.tau[row]);
    each_piece(n, threads, scratch, [=](int64_t begin, int64_t end, auto&) {
        const auto result = [=](V v, V share, V g) {
            const V u = v * (g - mean), s = slope_of<T>(share);
            const V moved = s * (distance(v, share, g) - shift) * rate;
            // No derivative in a row with a NaN, and none of 0 times infinity elsewhere.
            return S::select(share > S::all(0), u + S::select(s > S::all(0), moved, S::all(0)),
                             S::all(0));
        };
        int64_t i = begin;
        for (; i + S::width <= end; i += S::width)
            store(out + i, result(load(w + i), load(a + i), load(grad + i)));
        if (i < end) {
            const int64_t left = end - i;
            store_part(out + i, left,
                       result(load_part(w + i, left, T(0)), load_part(a + i, left, T(0)),
                              load_part(grad + i, left, T(0))));
        }
    });
    return kDone;
}

template <class T>
Status softmax_of_row(const SoftmaxCall<T>& call, int64_t row, int threads,
                      const Scratch<T>& scratch) {
    const ThresholdCall<T>& selection = call.selection;
    const int64_t n = selection.n;
    const T tau = static_cast<T>(selection.tau[row]);
    const T* x = canonical(selection, row, scratch, threads);
    const Root<T> root = solve(x, n, selection.k[row], tau, threads, scratch);
    T* a = selection.a == nullptr ? scratch.share : selection.a + row * n;
    write_indicator(x, n, root, tau, a, threads, scratch);
    weigh(x, a, n, call.w + row * n, threads, scratch);
    return is_shared(root) ? kShared : kDone;
}

// The softmax over exactly the k largest elements, and where these are, in the order of the row. Of
// those that are tied with the last of them, the first.
template <class T>
Status hard_softmax_of_row(const HardSoftmaxCall<T>& call, int64_t row, int threads,
                           const Scratch<T>& scratch) {
    using S = Vector<T>;
    const int64_t n = call.selection.n, k = static_cast<int64_t>(call.selection.k[row]);
    const T* x = canonical(call.selection, row, scratch, threads);
    T* w = call.w + row * k;
    int64_t* index = call.index + row * k;
    const Order<T> order = order_of(x, n, k, threads, scratch);
    const T pivot = order.pivot;
    int64_t count = 0, ties = k - order.above;
    T largest = -kInf<T>;
    const auto take = [&](int64_t i) {
        if (x[i] < pivot || (x[i] == pivot && ties-- <= 0)) return;
        largest = std::max(largest, x[i]);
        w[count] = x[i];
        index[count++] = i;
    };
    if (!std::isnan(pivot)) {
        int64_t i = 0;
        for (; i + S::width <= n && count < k; i += S::width) {
            for (unsigned bits = bits_of<T>(load(x + i) >= S::all(pivot)); bits && count < k;
                 bits &= bits - 1) {
                take(i + lowest_of(bits));
            }
        }
        for (; i < n && count < k; ++i) take(i);
    }
    if (std::isnan(pivot) || largest == kInf<T>) {
        for (int64_t i = count; i < k; ++i) index[i] = i;
        std::fill(w, w + k, std::numeric_limits<T>::quiet_NaN());
        return kDone;
    }
    if (largest == -kInf<T>) {
        std::fill(w, w + k, T(0));
        return kDone;
    }
    typename S::V total = S::all(0);
    for (int64_t i = 0; i < k; i += S::width) {
        const int64_t left = std::min<int64_t>(S::width, k - i);
        const auto v = exp_of_negative<T>(load_part(w + i, left, -kInf<T>) - largest);
        store_part(w + i, left, v);
        total += v;
    }
    const T rate = 1 / sum_of_lanes<T>(total);
    for (int64_t i = 0; i < k; ++i) w[i] *= rate;
    return kDone;
}

template <class T>
Status softmax(const SoftmaxCall<T>& call) {
    const ThresholdCall<T>& selection = call.selection;
    const int threads = threads_for(selection.rows * selection.n, 16384, selection.threads);
    return each_row<T>(selection.rows, selection.n, threads, 4,
                       [&](int64_t row, int row_threads, const Scratch<T>& scratch) {
                           return softmax_of_row(call, row, row_threads, scratch);
                       });
}

template <class T>
Status hard_softmax(const HardSoftmaxCall<T>& call) {
    const ThresholdCall<T>& selection = call.selection;
    const int threads = threads_for(selection.rows * selection.n, 16384, selection.threads);
    return each_row<T>(selection.rows, selection.n, threads, 3,
                       [&](int64_t row, int row_threads, const Scratch<T>& scratch) {
                           return hard_softmax_of_row(call, row, row_threads, scratch);
                       });
}

template <class T>
Status softmax_gradient(const SoftmaxGradientCall<T>& call) {
    const int threads = threads_for(call.rows * call.n, 32768, call.threads);
    return each_row<T>(call.rows, call.n, threads, 0,
                       [&](int64_t row, int row_threads, const Scratch<T>& scratch) {
                           return softmax_gradient_of_row(call, row, row_threads, scratch);
                       });
}
