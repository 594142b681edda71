#include "kernels.hpp"

#define SOFTTOPK_VECTOR_BYTES 16

namespace softtopk {
namespace on_baseline {
#include "table.hpp"
}  // namespace on_baseline

const InstructionSet* baseline() {
    static const InstructionSet set = on_baseline::table("baseline");
    return &set;
}
}  // namespace softtopk
