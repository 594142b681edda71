// What the files of all instruction sets share: standard headers, the arguments of the kernels and
// the table that each instruction set fills in.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "pool.hpp"

// Not on Windows, where GCC does not align the stack for wide vectors, nor without vector types.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(_WIN32) && !defined(SOFTTOPK_SCALAR)
#define SOFTTOPK_X86 1
#include <immintrin.h>
#endif

#if defined(__GNUC__)
#define SOFTTOPK_INLINE __attribute__((always_inline)) inline
#else
#define SOFTTOPK_INLINE inline
#endif

namespace softtopk {

constexpr double kInverseFactorial[] = {1.0,
                                        1.0,
                                        1.0 / 2,
                                        1.0 / 6,
                                        1.0 / 24,
                                        1.0 / 120,
                                        1.0 / 720,
                                        1.0 / 5040,
                                        1.0 / 40320,
                                        1.0 / 362880,
                                        1.0 / 3628800,
                                        1.0 / 39916800,
                                        1.0 / 479001600,
                                        1.0 / 6227020800};

// One value for all rows, or one per row.
struct PerRow {
    double value;
    const double* values;  // or null

    double operator[](int64_t row) const { return values == nullptr ? value : values[row]; }
};

enum Status : int32_t {
    kDone = 0,
    kOutOfMemory = 1,
    kShared = 2,  // done, and infinite scores share places in some row
};

// The arguments of each kernel. ctypes passes a pointer to one: `_calls.py` has the same fields in
// the same order. Arrays are contiguous; integers are of 64 bits, so that nothing is padded.

// Where a row begins, and how long it is.
struct Row {
    int64_t begin, n;
};

// Rows of n elements. Or, for the kernels of the threshold and of the softmax that are not in
// place, ragged ones: of any lengths, n elements in all, each from one offset to the next.
struct Size {
    int64_t rows, n, threads;
    const int64_t* offsets;  // (rows + 1), or null

    Row operator[](int64_t row) const {
        if (offsets == nullptr) return {row * n, n};
        return {offsets[row], offsets[row + 1] - offsets[row]};
    }
    int64_t elements() const { return offsets == nullptr ? rows * n : n; }
};

template <class T>
struct Scores {
    Size size;
    const T* x;           // (rows, n)
    const uint8_t* mask;  // (rows, n): nonzero takes part; or null, if all do
    int64_t largest;      // whether the largest are selected, or the smallest
};

template <class T>
struct ThresholdCall {
    Scores<T> scores;
    PerRow k, tau;
    T* a;               // (rows, n), or null
    T *pivot, *offset;  // (rows), or null
};

template <class T>
struct ThresholdGradientCall {
    Size size;
    PerRow tau;
    const T *a, *grad;  // (rows, n)
    T* grad_x;          // (rows, n)
};

// The softmax among the soft top k.
template <class T>
struct SoftmaxCall {
    Scores<T> scores;
    PerRow k, tau;
    T* a;  // (rows, n), or null
    T* w;  // (rows, n)
};

// The softmax over exactly the k largest, 1 <= k <= n.
template <class T>
struct HardSoftmaxCall {
    Scores<T> scores;
    int64_t k;
    T* w;            // (rows, k)
    int64_t* index;  // (rows, k)
};

template <class T>
struct SoftmaxGradientCall {
    Size size;
    PerRow tau;
    const T *w, *a, *grad;  // (rows, n)
    T* grad_x;              // (rows, n)
};

// The two in place, for rows of E: T itself, or a shorter type. The derivative starts from scores
// and roots again, so that of a row only its root has to be kept.
struct BFloat16 {
    uint16_t bits;
};

template <class T, class E = T>
struct SoftmaxInPlaceCall {
    Size size;
    PerRow k, tau;
    E* x;     // (rows, n): scores, which become w
    T* root;  // (rows, 2): pivot and offset
};

template <class T, class E = T>
struct SoftmaxBackwardCall {
    Size size;
    PerRow tau;
    const T* root;  // (rows, 2)
    E* x;           // (rows, n): scores, which become w
    E* grad;        // (rows, n): in w, which becomes that in the scores
};

// The sorted operator. What backward needs of a row are its k + 1 best scores as the solver sees
// them (largest wanted, -inf where there are no more) and the thresholds, measured from the first k
// of these in units of tau. In double, since their roundings add up over the ranks.
template <class T>
struct RankingCall {
    Scores<T> scores;
    int64_t k;  // 1 <= k <= n
    PerRow tau;
    T* plan;             // (rows, n, k)
    T* pivot;            // (rows, k + 1)
    double* offset;      // (rows, k)
    uint8_t* converged;  // (rows)
};

template <class T>
struct RankingGradientCall {
    Scores<T> scores;
    int64_t k;
    PerRow tau;
    const T* pivot;
    const double* offset;
    const T* grad;  // (rows, n, k)
    T* grad_x;      // (rows, n)
};

template <class T>
struct Kernels {
    Status (*threshold)(const ThresholdCall<T>&);
    Status (*threshold_gradient)(const ThresholdGradientCall<T>&);
    Status (*softmax)(const SoftmaxCall<T>&);
    Status (*hard_softmax)(const HardSoftmaxCall<T>&);
    Status (*softmax_gradient)(const SoftmaxGradientCall<T>&);
    Status (*softmax_in_place)(const SoftmaxInPlaceCall<T>&);
    Status (*softmax_backward)(const SoftmaxBackwardCall<T>&);
    Status (*ranking)(const RankingCall<T>&);
    Status (*ranking_gradient)(const RankingGradientCall<T>&);
};

struct ShortKernels {
    Status (*softmax_in_place)(const SoftmaxInPlaceCall<float, BFloat16>&);
    Status (*softmax_backward)(const SoftmaxBackwardCall<float, BFloat16>&);
};

struct InstructionSet {
    const char* name;
    Kernels<float> f32;
    Kernels<double> f64;
    ShortKernels bf16;
};

// Null where it has not been compiled in.
const InstructionSet* baseline();
const InstructionSet* avx2();
const InstructionSet* avx512();

}  // namespace softtopk
