// Symmetric systems of K equations in double, row by row. The rows of a matrix are `stride` apart,
// and zeros follow the K entries of each: a whole vector can start at any of them.

// y -= factor x
SOFTTOPK_INLINE void subtract(double* y, const double* x, double factor, int64_t count) {
    using S = Vector<double>;
    for (int64_t i = 0; i < count; i += S::width) {
        store(y + i, load(y + i) - load(x + i) * factor);
    }
}

// The factors U = D L^T of a matrix L D L^T whose upper triangle is given: U in its place, the
// inverse of D, and L without its diagonal.
//
// The matrices of the sorted operator are sums of products M_min(j,l) N_max(j,l), whose diagonal is
// the largest entry: they do without pivots. Where rounding leaves nothing of the diagonal, the
// result is 0.
inline void factorise(double* upper, double* lower, double* inverse, int64_t stride,
                      int64_t count) {
    std::fill_n(lower, count * stride, 0.0);
    for (int64_t p = 0; p < count; ++p) {
        const double* const pivot = upper + p * stride;
        inverse[p] = std::abs(pivot[p]) > 1e-14 ? 1.0 / pivot[p] : 0.0;
        for (int64_t i = p + 1; i < count; ++i) {
            const double factor = pivot[i] * inverse[p];
            lower[i * stride + p] = factor;
            subtract(upper + i * stride + i, pivot + i, factor, count - i);
        }
    }
}

// In place of the right side: each unknown is subtracted from the others by a row of factors.
inline void solve_factorised(const double* upper, const double* lower, const double* inverse,
                             int64_t stride, double* right, int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
        right[j] *= inverse[j];
        subtract(right + j + 1, upper + j * stride + j + 1, right[j], count - 1 - j);
    }
    for (int64_t j = count - 1; j > 0; --j) subtract(right, lower + j * stride, right[j], j);
}
