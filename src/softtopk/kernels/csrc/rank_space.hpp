// The finite part of a row of the sorted operator, and the memory that its solution needs.
// ranking.hpp has the problem.
//
// Outsiders come in blocks of vectors, whose plan is computed anew in each pass: keeping it would
// take n K numbers, and take longer to read than to compute.

// Outsiders at a like distance from the best one are listed together: the further below, the fewer
// of the ranks they can have to rounding.
struct Band {
    int64_t begin, end;  // in the list; begin at a whole vector
    double distance;     // of the nearest, in units of tau
};

constexpr int kMaxBands = 12;

// What a row needs beside its result, O(n + k^2).
template <class T>
class RankSpace {
  public:
    static constexpr int64_t kBlockBytes = 1 << 15, kLongestBlock = 32 * Vector<T>::width;

    const Scratch<T> scratch;
    T* u;       // outsiders
    T* factor;  // factor[d] u^(d + 1) is the plan of rank K - 1 - d beside that of rank K
    T* shift;   // W of the gradient, in the order of `factor`
    T *plan_block, *lower_block, *g_block;  // (K, block)
    double *gap, *decay;                    // between neighbours of the sorted, and exp(-gap)
    double *t, *trial;                      // (threshold - pivot) / tau
    double *alpha, *beta;                   // exp(t) and exp(-gap - t)
    double *h, *step, *top, *rest, *mass, *inverse;
    double* plan;           // of one sorted element
    double *upper, *lower;  // (K + 1, K): M and N of the sorted elements
    double* matrix;         // (K, K)
    int64_t block;          // elements in a block, whole vectors

    RankSpace(int64_t n, int64_t k, int lists) : scratch(n, lists) {
        constexpr int64_t width = Vector<T>::width;
        const int64_t padded = k / 8 * 8 + 16;
        block = kBlockBytes / static_cast<int64_t>(sizeof(T)) / (2 * k);
        block = std::min(std::max<int64_t>(block / width, 2) * width, kLongestBlock);
        double** const doubles_of_k[] = {&gap,  &decay, &t,    &trial, &alpha,   &beta, &h,
                                         &step, &top,   &rest, &mass,  &inverse, &plan};
        const int64_t doubles = 13 * padded + 3 * (k + 1) * k;
        const int64_t others = 2 * padded + 3 * k * block + n + kMaxBands * width + kLongestBlock;
        memory_ = std::malloc(static_cast<size_t>(doubles) * sizeof(double) +
                              static_cast<size_t>(others) * sizeof(T));
        if (memory_ == nullptr) return;
        double* at = static_cast<double*>(memory_);
        for (double** list : doubles_of_k) {
            *list = at;
            at += padded;
        }
        upper = at;
        lower = upper + (k + 1) * k;
        matrix = lower + (k + 1) * k;
        factor = reinterpret_cast<T*>(matrix + (k + 1) * k);
        shift = factor + padded;
        plan_block = shift + padded;
        lower_block = plan_block + k * block;
        g_block = lower_block + k * block;
        u = g_block + k * block;
    }
    RankSpace(const RankSpace&) = delete;
    RankSpace& operator=(const RankSpace&) = delete;
    ~RankSpace() { std::free(memory_); }

    explicit operator bool() const { return scratch && memory_ != nullptr; }

  private:
    void* memory_;
};

// The finite part of a row.
template <class T>
struct Ranks {
    const T* pivot;    // (K + 1), descending, the last one the best outsider
    int64_t count;     // K
    int64_t infinite;  // p
    double tau;
    double tied;           // how many outsiders tie with the best, itself included
    int64_t n;             // of the row, for bounds
    Band band[kMaxBands];  // of the list u: those that matter to rounding, without these ties
    int bands;
};

// An element costs its k ranks.
inline int64_t rank_grain(int64_t k) { return std::max<int64_t>(1, 4096 / k); }
