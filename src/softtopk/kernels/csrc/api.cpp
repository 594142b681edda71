// The C interface. A kernel gets a pointer to its arguments, a struct of kernels.hpp, and returns a
// Status.
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

// To be raised with every change of the functions below or of the structs of kernels.hpp; the
// loader checks it.
SOFTTOPK_EXPORT int32_t softtopk_abi_version() { return 6; }

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

#define SOFTTOPK_KERNEL(name, Call)                                                     \
    SOFTTOPK_EXPORT int32_t softtopk_##name##_f32(const softtopk::Call<float>* call) {  \
        return kernels<float>().name(*call);                                            \
    }                                                                                   \
    SOFTTOPK_EXPORT int32_t softtopk_##name##_f64(const softtopk::Call<double>* call) { \
        return kernels<double>().name(*call);                                           \
    }

SOFTTOPK_KERNEL(threshold, ThresholdCall)
SOFTTOPK_KERNEL(threshold_gradient, ThresholdGradientCall)
SOFTTOPK_KERNEL(softmax, SoftmaxCall)
SOFTTOPK_KERNEL(hard_softmax, HardSoftmaxCall)
SOFTTOPK_KERNEL(softmax_gradient, SoftmaxGradientCall)
SOFTTOPK_KERNEL(softmax_in_place, SoftmaxInPlaceCall)
SOFTTOPK_KERNEL(softmax_backward, SoftmaxBackwardCall)
SOFTTOPK_KERNEL(ranking, RankingCall)
SOFTTOPK_KERNEL(ranking_gradient, RankingGradientCall)

#define SOFTTOPK_SHORT_KERNEL(name, Call)                        \
    SOFTTOPK_EXPORT int32_t softtopk_##name##_bf16(              \
        const softtopk::Call<float, softtopk::BFloat16>* call) { \
        return softtopk::current.load()->bf16.name(*call);       \
    }

SOFTTOPK_SHORT_KERNEL(softmax_in_place, SoftmaxInPlaceCall)
SOFTTOPK_SHORT_KERNEL(softmax_backward, SoftmaxBackwardCall)
