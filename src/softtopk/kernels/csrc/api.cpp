// The C interface. Every function works on plain arrays and returns a Status.
#include "kernels.hpp"

#if defined(_WIN32)
#define SOFTTOPK_EXPORT extern "C" __declspec(dllexport)
#else
#define SOFTTOPK_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace softtopk {
namespace {

bool has_avx512() {
#if defined(SOFTTOPK_X86)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#else
    return false;
#endif
}

bool has_avx2() {
#if defined(SOFTTOPK_X86)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

// The best instruction set of this machine, or the one of that name; null if it has none.
const InstructionSet* find(const char* name) {
    const auto wanted = [name](const InstructionSet* set) {
        return set != nullptr && (name == nullptr || std::strcmp(name, set->name) == 0);
    };
#if defined(SOFTTOPK_X86)
    __builtin_cpu_init();
#endif
    // Even its table is made by code for the instruction set.
    if (has_avx512() && wanted(avx512())) return avx512();
    if (has_avx2() && wanted(avx2())) return avx2();
    return wanted(baseline()) ? baseline() : nullptr;
}

std::atomic<const InstructionSet*> current{find(nullptr)};

template <class T>
const Kernels<T>& kernels();
template <>
const Kernels<float>& kernels<float>() {
    return current.load()->f32;
}
template <>
const Kernels<double>& kernels<double>() {
    return current.load()->f64;
}

}  // namespace
}  // namespace softtopk

using softtopk::kernels;

// To be raised with every change of an interface below; the loader checks it.
SOFTTOPK_EXPORT int32_t softtopk_abi_version() { return 3; }

SOFTTOPK_EXPORT const char* softtopk_instruction_set() { return softtopk::current.load()->name; }

// Use another instruction set than the best one, to compare them. Returns whether that was
// possible.
SOFTTOPK_EXPORT int32_t softtopk_use_instruction_set(const char* name) {
    const softtopk::InstructionSet* const set = softtopk::find(name);
    if (set != nullptr) softtopk::current = set;
    return set != nullptr;
}

// To be called if the process was forked after torch was loaded and before this library was.
SOFTTOPK_EXPORT void softtopk_after_fork() { softtopk::after_fork(); }

#define SOFTTOPK_INTERFACE(T, suffix)                                                              \
    SOFTTOPK_EXPORT int32_t softtopk_threshold_##suffix(                                           \
        const T* x, const uint8_t* mask, int64_t rows, int64_t n, double k, const double* ks,      \
        double tau, const double* taus, int32_t largest, T* a, T* pivot, T* offset,                \
        int32_t threads) {                                                                         \
        return kernels<T>().threshold(                                                             \
            {x, mask, rows, n, {k, ks}, {tau, taus}, largest != 0, a, pivot, offset, threads});    \
    }                                                                                              \
    SOFTTOPK_EXPORT int32_t softtopk_threshold_gradient_##suffix(                                  \
        const T* a, const T* grad, int64_t rows, int64_t n, double tau, const double* taus,        \
        T* grad_x, int32_t threads) {                                                              \
        return kernels<T>().threshold_gradient({a, grad, rows, n, {tau, taus}, grad_x, threads});  \
    }                                                                                              \
    SOFTTOPK_EXPORT int32_t softtopk_softmax_##suffix(                                             \
        const T* x, const uint8_t* mask, int64_t rows, int64_t n, double k, const double* ks,      \
        double tau, const double* taus, T* a, T* w, int32_t threads) {                             \
        return kernels<T>().softmax(                                                               \
            {{x, mask, rows, n, {k, ks}, {tau, taus}, true, a, nullptr, nullptr, threads}, w});    \
    }                                                                                              \
    SOFTTOPK_EXPORT int32_t softtopk_hard_softmax_##suffix(                                        \
        const T* x, const uint8_t* mask, int64_t rows, int64_t n, int64_t k, T* w, int64_t* index, \
        int32_t threads) {                                                                         \
        const double places = static_cast<double>(k);                                              \
        return kernels<T>().hard_softmax({{x,                                                      \
                                           mask,                                                   \
                                           rows,                                                   \
                                           n,                                                      \
                                           {places, nullptr},                                      \
                                           {1.0, nullptr},                                         \
                                           true,                                                   \
                                           nullptr,                                                \
                                           nullptr,                                                \
                                           nullptr,                                                \
                                           threads},                                               \
                                          w,                                                       \
                                          index});                                                 \
    }                                                                                              \
    SOFTTOPK_EXPORT int32_t softtopk_softmax_gradient_##suffix(                                    \
        const T* w, const T* a, const T* grad, int64_t rows, int64_t n, double tau,                \
        const double* taus, T* grad_x, int32_t threads) {                                          \
        return kernels<T>().softmax_gradient({w, a, grad, rows, n, {tau, taus}, grad_x, threads}); \
    }                                                                                              \
    SOFTTOPK_EXPORT int32_t softtopk_ranking_##suffix(                                             \
        const T* x, const uint8_t* mask, int64_t rows, int64_t n, int64_t k, double tau,           \
        const double* taus, int32_t largest, T* plan, T* pivot, double* offset,                    \
        uint8_t* converged, int32_t threads) {                                                     \
        return kernels<T>().ranking({x,                                                            \
                                     mask,                                                         \
                                     rows,                                                         \
                                     n,                                                            \
                                     k,                                                            \
                                     {tau, taus},                                                  \
                                     largest != 0,                                                 \
                                     plan,                                                         \
                                     pivot,                                                        \
                                     offset,                                                       \
                                     converged,                                                    \
                                     threads});                                                    \
    }                                                                                              \
    SOFTTOPK_EXPORT int32_t softtopk_ranking_gradient_##suffix(                                    \
        const T* x, const uint8_t* mask, const T* pivot, const double* offset, const T* grad,      \
        int64_t rows, int64_t n, int64_t k, double tau, const double* taus, int32_t largest,       \
        T* grad_x, int32_t threads) {                                                              \
        return kernels<T>().ranking_gradient({x,                                                   \
                                              mask,                                                \
                                              pivot,                                               \
                                              offset,                                              \
                                              grad,                                                \
                                              rows,                                                \
                                              n,                                                   \
                                              k,                                                   \
                                              {tau, taus},                                         \
                                              largest != 0,                                        \
                                              grad_x,                                              \
                                              threads});                                           \
    }

SOFTTOPK_INTERFACE(float, f32)
SOFTTOPK_INTERFACE(double, f64)
