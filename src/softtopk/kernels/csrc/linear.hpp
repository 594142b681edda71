// Dense systems of K equations in double, row by row.

// y += sum_i factor_i x_i, for the rows x_i of a matrix
SOFTTOPK_INLINE void add_rows(double* y, const double* x, int64_t stride, const double* factor,
                              int64_t rows, int64_t count) {
    using S = Vector<double>;
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4, x += 4 * stride) {
        const double a = factor[r], b = factor[r + 1], c = factor[r + 2], f = factor[r + 3];
        const double *x1 = x + stride, *x2 = x + 2 * stride, *x3 = x + 3 * stride;
        int64_t i = 0;
        for (; i + S::width <= count; i += S::width) {
            store(y + i, ((load(y + i) + load(x + i) * a) + load(x1 + i) * b) +
                             (load(x2 + i) * c + load(x3 + i) * f));
        }
        for (; i < count; ++i) y[i] += (a * x[i] + b * x1[i]) + (c * x2[i] + f * x3[i]);
    }
    for (; r < rows; ++r, x += stride) {
        int64_t i = 0;
        for (; i + S::width <= count; i += S::width) {
            store(y + i, load(y + i) + load(x + i) * factor[r]);
        }
        for (; i < count; ++i) y[i] += factor[r] * x[i];
    }
}

// LU factors of a matrix in its place, and the inverse diagonal of U.
//
// Both matrices of the sorted operator are sums of products M_min(j,l) N_max(j,l), whose diagonal
// is the largest entry: they do without pivots. Where rounding leaves nothing of the diagonal, the
// result is 0.
inline void factorise(double* matrix, double* inverse, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        double* const row = matrix + i * count;
        int64_t j = 0;
        while (j < i) {
            double factor[4];
            const int64_t size = std::min<int64_t>(4, i - j);
            for (int64_t a = 0; a < size; ++a) {
                double value = row[j + a];
                for (int64_t b = 0; b < a; ++b)
                    value += factor[b] * matrix[(j + b) * count + j + a];
                row[j + a] = value * inverse[j + a];
                factor[a] = -row[j + a];
            }
            add_rows(row + j + size, matrix + j * count + j + size, count, factor, size,
                     count - j - size);
            j += size;
        }
        inverse[i] = std::abs(row[i]) > 1e-14 ? 1.0 / row[i] : 0.0;
    }
}

// Vectors of two sums: one would wait for itself.
inline double dot(const double* a, const double* b, int64_t count) {
    using S = Vector<double>;
    auto first = S::all(0), second = S::all(0);
    int64_t i = 0;
    for (; i + 2 * S::width <= count; i += 2 * S::width) {
        first += load(a + i) * load(b + i);
        second += load(a + i + S::width) * load(b + i + S::width);
    }
    double sum = sum_of_lanes<double>(first + second);
    for (; i < count; ++i) sum += a[i] * b[i];
    return sum;
}

inline void solve_factorised(const double* matrix, const double* inverse, double* right,
                             int64_t count) {
    for (int64_t i = 1; i < count; ++i) right[i] -= dot(matrix + i * count, right, i);
    for (int64_t i = count - 1; i >= 0; --i) {
        const double* const row = matrix + i * count;
        right[i] = (right[i] - dot(row + i + 1, right + i + 1, count - 1 - i)) * inverse[i];
    }
}

// H u = right in place of right, for the symmetric H whose upper triangle is in `matrix`.
//
// Scaled to a unit diagonal the matrix is well conditioned at every temperature: where a threshold
// is cold, its row and column vanish together. One that has all but vanished has no derivative.
inline void solve_covariance(double* matrix, double* right, double* scale, double* inverse,
                             int64_t count) {
    const double vanished = std::sqrt(std::numeric_limits<double>::min());
    for (int64_t j = 0; j < count; ++j) {
        const double diagonal = matrix[j * count + j];
        scale[j] = diagonal > vanished ? 1.0 / std::sqrt(diagonal) : 0.0;
        right[j] *= scale[j];
    }
    for (int64_t j = 0; j < count; ++j) {
        matrix[j * count + j] = 1.0;
        for (int64_t l = j + 1; l < count; ++l) {
            matrix[j * count + l] *= scale[j] * scale[l];
            matrix[l * count + j] = matrix[j * count + l];
        }
    }
    factorise(matrix, inverse, count);
    solve_factorised(matrix, inverse, right, count);
    for (int64_t j = 0; j < count; ++j) right[j] *= scale[j];
}
