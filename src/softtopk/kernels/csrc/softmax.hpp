// The softmax among the soft top k: w ~ exp(x) A, with A of the unsorted operator.
//
// The product needs no logarithm of A: the largest score has the largest A, at least k / n, so that
// what underflows beside it is no part of the sum.

template <class T>
T largest_partial(int64_t n, const Scratch<T>& scratch) {
    T largest = -kInf<T>;
    for (int64_t i = 0; i < pieces(n); ++i) largest = std::max(largest, scratch.piece(i).largest);
    return largest;
}

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
        each_vector<T>(begin, end, [&](auto at) { take(at.read(x, -kInf<T>)); });
        partial.largest = largest_lane<T>(largest);
        partial.nan = bits_of<T>(unordered) != 0;
    });
    for (int64_t i = 0; i < pieces(n); ++i) {
        if (scratch.piece(i).nan) return std::numeric_limits<T>::quiet_NaN();
    }
    return largest_partial(n, scratch);
}

// Whether a row has no softmax of its own: then its weights are filled in. As torch.softmax has it,
// but zero where no element takes part.
template <class T>
bool is_settled(T largest, int64_t n, T* w) {
    if (std::abs(largest) < kInf<T>) return false;
    std::fill(w, w + n, largest == -kInf<T> ? T(0) : std::numeric_limits<T>::quiet_NaN());
    return true;
}

// The ratio w / A, but for a factor.
template <class T>
SOFTTOPK_INLINE typename Vector<T>::V relative(typename Vector<T>::V v, typename Vector<T>::V share,
                                               T largest) {
    using S = Vector<T>;
    if (bits_of<T>(share > S::all(0)) == 0) return S::all(0);
    return exp_of_negative<T>(v - largest);
}

// share(at, v) is A of the elements v at this place. `w` may be `x`.
template <class T, class Share>
void weigh(const T* x, int64_t n, Share share, T* w, int threads, const Scratch<T>& scratch) {
    using S = Vector<T>;
    using V = typename S::V;
    const T largest = largest_of(x, n, threads, scratch);
    if (is_settled(largest, n, w)) return;
    const auto part = [=](int64_t begin, int64_t end, auto&) {
        Sums sums{};
        each_run<T>(begin, end, [&](int64_t from, int64_t to) {
            V sum = S::all(0);
            each_vector<T>(from, to, [&](auto at) {
                const V v = at.read(x, -kInf<T>), a = share(at, v);
                const V weight = relative<T>(v, a, largest) * a;
                at.write(w, weight);
                sum += weight;
            });
            sums[0] += sum_of_lanes<T>(sum);
        });
        return sums;
    };
    const double sum = sum_pieces(n, threads, scratch, part)[0];
    const T rate = sum > 0.0 ? static_cast<T>(1.0 / sum) : T(0);
    each_piece(n, threads, scratch, [=](int64_t begin, int64_t end, auto&) {
        each_vector<T>(begin, end, [=](auto at) { at.write(w, at.read(w, T(0)) * rate); });
    });
}

template <class T>
void weigh(const T* x, const T* a, int64_t n, T* w, int threads, const Scratch<T>& scratch) {
    weigh(x, n, [=](auto at, auto) { return at.read(a, T(0)); }, w, threads, scratch);
}

template <class T>
Status softmax_of_row(const SoftmaxCall<T>& call, int64_t row, int threads,
                      const Scratch<T>& scratch) {
    const auto [first, n] = call.scores.size[row];
    const T tau = static_cast<T>(call.tau[row]);
    const T* x = canonical(call.scores, row, threads, scratch);
    const Root<T> root = solve(x, n, call.k[row], tau, threads, scratch);
    T* a = call.a == nullptr ? scratch.share : call.a + first;
    write_indicator(x, n, root, tau, a, threads, scratch);
    weigh(x, a, n, call.w + first, threads, scratch);
    return is_shared(root) ? kShared : kDone;
}

template <class T, class E>
Status softmax_in_place_of_row(const SoftmaxInPlaceCall<T, E>& call, int64_t row, int threads,
                               const Scratch<T>& scratch) {
    const int64_t n = call.size.n;
    const T tau = static_cast<T>(call.tau[row]);
    T* const x = opened(call.x + row * n, n, scratch.row);
    const Root<T> root = solve(x, n, call.k[row], tau, threads, scratch);
    call.root[2 * row] = root.pivot;
    call.root[2 * row + 1] = root.offset;
    if (std::isfinite(root.pivot)) {
        const Sigmoid<T> share(root, tau);
        weigh(x, n, [=](auto, auto v) { return share(v); }, x, threads, scratch);
    } else {
        decided(x, n, root, scratch.share);
        weigh(x, scratch.share, n, x, threads, scratch);
    }
    close(x, n, call.x + row * n);
    return kDone;
}

// The place of the steepest element, the first whose A (1 - A) is that large.
template <class T>
int64_t place_of(T steepest, const T* a, int64_t n) {
    int64_t place = n - 1;
    for (int64_t i = 0; i < n; i += Vector<T>::width) {
        const int64_t left = std::min<int64_t>(Vector<T>::width, n - i);
        const auto share = left < Vector<T>::width ? load_part(a + i, left, T(0)) : load(a + i);
        const unsigned bits = bits_of<T>(slope_of<T>(share) >= Vector<T>::all(steepest));
        if (bits != 0) return i + lowest_of(bits);
    }
    return place;
}

// With u = w (g - sum(w g)), the derivative of the softmax, s = A (1 - A) and r = u / A:
// g_x = u + s (r - sum(s r) / sum(s)) / tau.
//
// At a low temperature one element, or some that are tied, have nearly all of s, and the rounding
// of the difference would be multiplied by 1 / tau. So r is measured from that of the element with
// the largest s, in a way that gives exactly 0 for itself and for its like.
//
// The first pass is over terms(at), which leaves A and w / A in lists. These and w are known but
// for a factor, so the last pass hands the weights to take(at, w). `out` may be `grad`.
template <class T>
struct Terms {
    typename Vector<T>::V w, share;
};

template <class T, class First, class Take>
void pull_back(First terms, const T* a, const T* quotients, const T* grad, int64_t n, T tau, T* out,
               Take take, int threads, const Scratch<T>& scratch) {
    using S = Vector<T>;
    using V = typename S::V;
    const auto first_pass = [=](int64_t begin, int64_t end, auto& partial) {
        Sums sums{};
        V steepest = S::all(0);
        each_run<T>(begin, end, [&](int64_t from, int64_t to) {
            V sum = S::all(0), slope = S::all(0), norm = S::all(0);
            each_vector<T>(from, to, [&](auto at) {
                const Terms<T> term = terms(at);
                const V s = slope_of<T>(term.share);
                sum += term.w * at.read(grad, T(0));
                slope += s;
                norm += term.w;
                steepest = S::select(s > steepest, s, steepest);
            });
            sums[0] += sum_of_lanes<T>(sum);
            sums[1] += sum_of_lanes<T>(slope);
            sums[2] += sum_of_lanes<T>(norm);
        });
        partial.largest = largest_lane<T>(steepest);
        return sums;
    };
    const Sums sums = sum_pieces(n, threads, scratch, first_pass);
    const double slope = sums[1];
    const T steepest = largest_partial(n, scratch);
    const T norm = sums[2] == 0.0 ? T(0) : static_cast<T>(1.0 / sums[2]);
    const T mean = static_cast<T>(sums[0] * norm);
    T quotient = 0, cotangent = 0;  // w / A and g of the element with the largest s
    if (steepest > 0) {
        const int64_t place = place_of(steepest, a, n);
        quotient = quotients[place] * norm;
        cotangent = grad[place];
    }
    const auto distance = [=](V own, V g) {
        return (own - quotient) * (g - mean) + quotient * (g - cotangent);
    };
    const auto second_pass = [=](int64_t begin, int64_t end, auto&) {
        Sums sums{};
        each_run<T>(begin, end, [&](int64_t from, int64_t to) {
            V pull = S::all(0);
            each_vector<T>(from, to, [&](auto at) {
                const V own = at.read(quotients, T(0)) * norm, g = at.read(grad, T(0));
                pull += slope_of<T>(at.read(a, T(0))) * distance(own, g);
            });
            sums[0] += sum_of_lanes<T>(pull);
        });
        return sums;
    };
    const double pull = sum_pieces(n, threads, scratch, second_pass)[0];
    const T shift = slope > 0.0 ? static_cast<T>(pull / slope) : T(0);
    const T rate = 1 / tau;
    each_piece(n, threads, scratch, [=](int64_t begin, int64_t end, auto&) {
        each_vector<T>(begin, end, [=](auto at) {
            const V share = at.read(a, T(0)), own = at.read(quotients, T(0)) * norm;
            const V g = at.read(grad, T(0)), s = slope_of<T>(share), w = own * share;
            const V moved = s * (distance(own, g) - shift) * rate;
            const V total = w * (g - mean) + S::select(s > S::all(0), moved, S::all(0));
            // No derivative in a row with a NaN, and none of 0 times infinity elsewhere.
            at.write(out, S::select(share > S::all(0), total, S::all(0)));
            take(at, w);
        });
    });
}

// From w and A.
template <class T>
void pull_back(const T* w, const T* a, const T* grad, int64_t n, T tau, T* out, int threads,
               const Scratch<T>& scratch) {
    using S = Vector<T>;
    T* const quotients = scratch.first;
    const auto terms = [=](auto at) -> Terms<T> {
        const auto weight = at.read(w, T(0)), share = at.read(a, T(0));
        at.write(quotients, weight / S::select(share > S::all(0), share, S::all(1)));
        return {weight, share};
    };
    pull_back(terms, a, quotients, grad, n, tau, out, [](auto, auto) {}, threads, scratch);
}

template <class T>
Status softmax_gradient_of_row(const SoftmaxGradientCall<T>& call, int64_t row, int threads,
                               const Scratch<T>& scratch) {
    const auto [first, n] = call.size[row];
    pull_back(call.w + first, call.a + first, call.grad + first, n, static_cast<T>(call.tau[row]),
              call.grad_x + first, threads, scratch);
    return kDone;
}

// The weights and the gradient in the scores, both in place.
template <class T>
void pull_back(Root<T> root, T* x, T* grad, int64_t n, T tau, int threads,
               const Scratch<T>& scratch) {
    T *const a = scratch.share, *const quotients = scratch.first;
    const T largest = largest_of(x, n, threads, scratch);
    if (!std::isfinite(root.pivot) || !std::isfinite(largest)) {
        write_indicator(x, n, root, tau, a, threads, scratch);
        weigh(x, a, n, x, threads, scratch);
        return pull_back(x, a, grad, n, tau, grad, threads, scratch);
    }
    const Sigmoid<T> sigmoid(root, tau);
    const auto terms = [=](auto at) -> Terms<T> {
        const auto v = at.read(x, -kInf<T>), share = sigmoid(v);
        const auto quotient = relative<T>(v, share, largest);
        at.write(a, share);
        at.write(quotients, quotient);
        return {quotient * share, share};
    };
    const auto take = [=](auto at, auto w) { at.write(x, w); };
    pull_back(terms, a, quotients, grad, n, tau, grad, take, threads, scratch);
}

template <class T, class E>
Status softmax_backward_of_row(const SoftmaxBackwardCall<T, E>& call, int64_t row, int threads,
                               const Scratch<T>& scratch) {
    const int64_t n = call.size.n;
    E *const own_x = call.x + row * n, *const own_grad = call.grad + row * n;
    T *const x = opened(own_x, n, scratch.row), *const grad = opened(own_grad, n, scratch.second);
    pull_back({call.root[2 * row], call.root[2 * row + 1]}, x, grad, n,
              static_cast<T>(call.tau[row]), threads, scratch);
    close(x, n, own_x);
    close(grad, n, own_grad);
    return kDone;
}

// The softmax over exactly the k largest elements, and where these are, in the order of the row. Of
// those that are tied with the last of them, the first.
template <class T>
Status hard_softmax_of_row(const HardSoftmaxCall<T>& call, int64_t row, int threads,
                           const Scratch<T>& scratch) {
    using S = Vector<T>;
    const int64_t n = call.scores.size.n, k = call.k;
    const T* x = canonical(call.scores, row, threads, scratch);
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
    return each_row(call, call.scores.size, kSolverGrain, softmax_of_row<T>, 4);
}

template <class T>
Status hard_softmax(const HardSoftmaxCall<T>& call) {
    return each_row(call, call.scores.size, kSolverGrain, hard_softmax_of_row<T>,
                    lists_for(call.scores));
}

template <class T>
Status softmax_gradient(const SoftmaxGradientCall<T>& call) {
    return each_row(call, call.size, kGradientGrain, softmax_gradient_of_row<T>, 2);
}

template <class T, class E = T>
Status softmax_in_place(const SoftmaxInPlaceCall<T, E>& call) {
    return each_row(call, call.size, kSolverGrain, softmax_in_place_of_row<T, E>, 4);
}

template <class T, class E = T>
Status softmax_backward(const SoftmaxBackwardCall<T, E>& call) {
    return each_row(call, call.size, kGradientGrain, softmax_backward_of_row<T, E>, 4);
}
