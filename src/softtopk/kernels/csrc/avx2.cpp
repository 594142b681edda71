#include "kernels.hpp"

#if defined(SOFTTOPK_X86)
#define SOFTTOPK_AVX2 1
#define SOFTTOPK_VECTOR_BYTES 32

// The standard headers are above: no function of theirs may be compiled for this target, since the
// linker keeps one copy for all files.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,popcnt")
#endif

namespace softtopk {
namespace on_avx2 {
#include "table.hpp"
}  // namespace on_avx2
}  // namespace softtopk

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace softtopk {
const InstructionSet* avx2() {
    static const InstructionSet set = on_avx2::table("AVX2");
    return &set;
}
}  // namespace softtopk
#else
namespace softtopk {
const InstructionSet* avx2() { return nullptr; }
}  // namespace softtopk
#endif
