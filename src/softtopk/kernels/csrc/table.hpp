// All kernels for one instruction set, in the order in which they build on each other. Included
// once in its file, inside its namespace and after SOFTTOPK_VECTOR_BYTES (the width) has been set.

#include "vector.hpp"     // vectors, and their exp
#include "rows.hpp"       // passes over a row, its memory, and the rows among threads
#include "selection.hpp"  // the element of a given rank

// One threshold per row
#include "threshold.hpp"  // its equation
#include "indicator.hpp"  // A and its derivative
#include "softmax.hpp"    // the softmax among the soft top k

// k thresholds per row
#include "linear.hpp"      // systems of equations
#include "rank_space.hpp"  // the memory of a row
#include "rank_plan.hpp"   // plans as products, and their sums
#include "rank_covariance.hpp"
#include "rank_preparation.hpp"  // from scores to a problem for the solver
#include "rank_solver.hpp"       // Newton's method
#include "ranking.hpp"           // the plan
#include "rank_gradient.hpp"     // its derivative

template <class T>
Kernels<T> kernels() {
    return {threshold<T>,        threshold_gradient<T>, softmax<T>,          hard_softmax<T>,
            softmax_gradient<T>, softmax_in_place<T>,   softmax_backward<T>, ranking<T>,
            ranking_gradient<T>};
}

inline InstructionSet table(const char* name) {
    return {name,
            kernels<float>(),
            kernels<double>(),
            {softmax_in_place<float, BFloat16>, softmax_backward<float, BFloat16>}};
}
