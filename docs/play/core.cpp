// The solvers of the page to play with: the kernels of the package for one row of doubles, compiled
// to WebAssembly. `build.py` says how. A caller writes arrays into memory that it has allocated,
// and reads the results from there.
#include "kernels.hpp"

#define SOFTTOPK_VECTOR_BYTES 16

namespace softtopk {

// There is one thread, so no call gets here.
void run(int64_t count, int, void (*function)(void*, int64_t), void* context) {
    for (int64_t i = 0; i < count; ++i) function(context, i);
}

namespace on_page {
#include "table.hpp"
}  // namespace on_page
}  // namespace softtopk

using namespace softtopk;

namespace {

Size one_row(int n) { return {1, n, 1, nullptr}; }

Scores<double> scores_of(int n, const double* x, const uint8_t* mask, int largest) {
    return {one_row(n), x, mask, largest};
}

PerRow the_same(double value) { return {value, nullptr}; }

}  // namespace

#define EXPORT(name) extern "C" __attribute__((export_name(#name)))

EXPORT(allocate) void* allocate(int bytes) { return std::malloc(static_cast<size_t>(bytes)); }
EXPORT(release) void release(void* memory) { std::free(memory); }

// A (n), and pivot and offset of the threshold.
EXPORT(indicator)
int indicator(int n, const double* x, const uint8_t* mask, int largest, double k, double tau,
              double* a, double* root) {
    return on_page::threshold<double>(
        {scores_of(n, x, mask, largest), the_same(k), the_same(tau), a, root, root + 1});
}

EXPORT(indicator_gradient)
int indicator_gradient(int n, double tau, const double* a, const double* grad, double* grad_x) {
    return on_page::threshold_gradient<double>({one_row(n), the_same(tau), a, grad, grad_x});
}

// The plan (n, k), its pivots (k + 1) and offsets (k).
EXPORT(ranking)
int ranking(int n, const double* x, const uint8_t* mask, int largest, int k, double tau,
            double* plan, double* pivot, double* offset, uint8_t* converged) {
    return on_page::ranking<double>(
        {scores_of(n, x, mask, largest), k, the_same(tau), plan, pivot, offset, converged});
}

EXPORT(ranking_gradient)
int ranking_gradient(int n, const double* x, const uint8_t* mask, int largest, int k, double tau,
                     const double* pivot, const double* offset, const double* grad,
                     double* grad_x) {
    return on_page::ranking_gradient<double>(
        {scores_of(n, x, mask, largest), k, the_same(tau), pivot, offset, grad, grad_x});
}
