#include "kernels.hpp"

#if defined(SOFTTOPK_X86)
#define SOFTTOPK_AVX512 1
#define SOFTTOPK_VECTOR_BYTES 64

// The standard headers are above: no function of theirs may be compiled for this target, since the
// linker keeps one copy for all files.
#if defined(__clang__)
#pragma clang attribute push(                                                      \
    __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,popcnt"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,popcnt")
#endif

namespace softtopk {
namespace on_avx512 {
#include "table.hpp"
}  // namespace on_avx512
}  // namespace softtopk

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace softtopk {
const InstructionSet* avx512() {
    static const InstructionSet set = on_avx512::table("AVX-512");
    return &set;
}
}  // namespace softtopk
#else
namespace softtopk {
const InstructionSet* avx512() { return nullptr; }
}  // namespace softtopk
#endif
