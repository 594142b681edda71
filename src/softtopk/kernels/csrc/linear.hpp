// Dense systems of K equations in double, row by row. The rows of a matrix are `stride` apart, and
// zeros follow the K entries of each: a whole vector can start at any of them.

// y += sum_i factor_i x_i, for the rows x_i of a matrix
SOFTTOPK_INLINE void add_rows(double* y, const double* x, int64_t stride, const double* factor,
                              int64_t rows, int64_t count) {
    using S = Vector<double>;
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4, x += 4 * stride) {
        const double a = factor[r], b = factor[r + 1], c = factor[r + 2], f = factor[r + 3];
        const double *x1 = x + stride, *x2 = x + 2 * stride, *x3 = x + 3 * stride;
        for (int64_t i = 0; i < count; i += S::width) {
            store(y + i, ((load(y + i) + load(x + i) * a) + load(x1 + i) * b) +
                             (load(x2 + i) * c + load(x3 + i) * f));
        }
    }
    for (; r < rows; ++r, x += stride) {
        for (int64_t i = 0; i < count; i += S::width) {
            store(y + i, load(y + i) + load(x + i) * factor[r]);
        }
    }
}

// LU factors of a matrix: U in its place, with its inverse diagonal, and L without its diagonal of
// ones.
//
// Both matrices of the sorted operator are sums of products M_min(j,l) N_max(j,l), whose diagonal
// is the largest entry: they do without pivots. Where rounding leaves nothing of the diagonal, the
// result is 0.
inline void factorise(double* matrix, double* factors, double* inverse, int64_t stride,
                      int64_t count) {
    using S = Vector<double>;
    std::fill_n(factors, count * stride, 0.0);
    for (int64_t p = 0; p < count; ++p) {
        const double* const pivot = matrix + p * stride;
        inverse[p] = std::abs(pivot[p]) > 1e-14 ? 1.0 / pivot[p] : 0.0;
        for (int64_t i = p + 1; i < count; ++i) {
            double* const row = matrix + i * stride;
            const double factor = row[p] * inverse[p];
            factors[i * stride + p] = factor;
            for (int64_t j = p + 1; j < count; j += S::width) {
                store(row + j, load(row + j) - load(pivot + j) * factor);
            }
        }
    }
}

// The solution for the *transpose* of the matrix, in place of the right side: each unknown is
// subtracted from the others by a whole row of factors.
inline void solve_factorised(const double* matrix, const double* factors, const double* inverse,
                             int64_t stride, double* right, int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
        right[j] *= inverse[j];
        const double factor = -right[j];
        add_rows(right + j + 1, matrix + j * stride + j + 1, stride, &factor, 1, count - 1 - j);
    }
    for (int64_t j = count - 1; j > 0; --j) {
        const double factor = -right[j];
        add_rows(right, factors + j * stride, stride, &factor, 1, j);
    }
}

// H u = right in place of right, for the symmetric H whose upper triangle is in `matrix`.
//
// Scaled to a unit diagonal the matrix is well conditioned at every temperature: where a threshold
// is cold, its row and column vanish together. One that has all but vanished has no derivative.
inline void solve_covariance(double* matrix, double* factors, double* right, double* scale,
                             double* inverse, int64_t stride, int64_t count) {
    const double vanished = std::sqrt(std::numeric_limits<double>::min());
    for (int64_t j = 0; j < count; ++j) {
        const double diagonal = matrix[j * stride + j];
        scale[j] = diagonal > vanished ? 1.0 / std::sqrt(diagonal) : 0.0;
        right[j] *= scale[j];
    }
    for (int64_t j = 0; j < count; ++j) {
        matrix[j * stride + j] = 1.0;
        for (int64_t l = j + 1; l < count; ++l) {
            matrix[j * stride + l] *= scale[j] * scale[l];
            matrix[l * stride + j] = matrix[j * stride + l];
        }
    }
    factorise(matrix, factors, inverse, stride, count);
    solve_factorised(matrix, factors, inverse, stride, right, count);
    for (int64_t j = 0; j < count; ++j) right[j] *= scale[j];
}
