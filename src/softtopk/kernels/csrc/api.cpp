// The C interface. Every function works on plain arrays and returns a Status.
#include "kernels.hpp"

#if defined(_WIN32)
#define SOFTTOPK_EXPORT extern "C" __declspec(dllexport)
#else
#define SOFTTOPK_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace softtopk {
namespace {

const InstructionSet& best() {
    static const InstructionSet* const set = [] {
#if defined(SOFTTOPK_X86)
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
            return avx512();
        }
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2();
#endif
        return baseline();
    }();
    return *set;
}

template <class T>
const Kernels<T>& kernels();
template <>
const Kernels<float>& kernels<float>() {
    return best().f32;
}
template <>
const Kernels<double>& kernels<double>() {
    return best().f64;
}

}  // namespace
}  // namespace softtopk

using softtopk::kernels;

// To be raised with every change of an interface below; the loader checks it.
SOFTTOPK_EXPORT int32_t softtopk_abi_version() { return 1; }

SOFTTOPK_EXPORT const char* softtopk_instruction_set() { return softtopk::best().name; }

#define SOFTTOPK_INTERFACE(T, suffix)                                                             \
    SOFTTOPK_EXPORT int32_t softtopk_threshold_##suffix(                                          \
        const T* x, const uint8_t* mask, int64_t rows, int64_t n, double k, const double* ks,     \
        double tau, const double* taus, int32_t largest, T* a, T* pivot, T* offset,               \
        int32_t threads) {                                                                        \
        return kernels<T>().threshold({x, mask, rows, n, {k, ks}, {tau, taus}, largest != 0, a,   \
                                       pivot, offset, threads});                                  \
    }                                                                                             \
    SOFTTOPK_EXPORT int32_t softtopk_threshold_gradient_##suffix(                                 \
        const T* a, const T* grad, int64_t rows, int64_t n, double tau, const double* taus,       \
        T* grad_x, int32_t threads) {                                                             \
        return kernels<T>().threshold_gradient({a, grad, rows, n, {tau, taus}, grad_x, threads}); \
    }                                                                                             \
    SOFTTOPK_EXPORT int32_t softtopk_ranking_##suffix(                                            \
        const T* x, const uint8_t* mask, int64_t rows, int64_t n, int64_t k, double tau,          \
        const double* taus, int32_t largest, T* plan, T* pivot, double* offset,                   \
        uint8_t* converged, int32_t threads) {                                                    \
        return kernels<T>().ranking({x, mask, rows, n, k, {tau, taus}, largest != 0, plan, pivot, \
                                     offset, converged, threads});                                \
    }                                                                                             \
    SOFTTOPK_EXPORT int32_t softtopk_ranking_gradient_##suffix(                                   \
        const T* x, const uint8_t* mask, const T* pivot, const double* offset, const T* grad,     \
        int64_t rows, int64_t n, int64_t k, double tau, const double* taus, int32_t largest,      \
        T* grad_x, int32_t threads) {                                                             \
        return kernels<T>().ranking_gradient({x, mask, pivot, offset, grad, rows, n, k,           \
                                              {tau, taus}, largest != 0, grad_x, threads});       \
    }

SOFTTOPK_INTERFACE(float, f32)
SOFTTOPK_INTERFACE(double, f64)
