// The finite part of a row of the sorted operator, and the memory that its solution needs.
// ranking.hpp has the problem.
//
// Outsiders come in blocks of vectors, whose plan is computed anew in each pass: keeping it would
// take n K numbers, and take longer to read than to compute.

// Outsiders at a like distance from the best one are listed together: the further below, the fewer
// of the ranks they can have to rounding.
struct Band {
    int64_t end;      // in the list
    double distance;  // of the nearest, in units of tau
};

constexpr int kMaxBands = 12;

// What a row needs beside its result, O(n + k^2).
template <class T>
class RankSpace {
  public:
    static constexpr int64_t kBlockBytes = 1 << 15, kLongestBlock = 32 * Vector<T>::width;

    const Scratch<T> scratch;
    T *u, *place;  // outsiders, and where they are in the row (the bits of an integer)
    T* factor;     // factor[d] u^(d + 1) is the plan of rank K - 1 - d beside that of rank K
    T* shift;      // W of the gradient, in the order of `factor`
    T* weight;     // `factor` in the order of the columns of the result
    T* sums;       // (K, width)
    T *plan_block, *lower_block, *g_block;  // (K, block)
    double *gap, *decay;                    // between neighbours of the sorted, and exp(-gap)
    double *t, *trial;                      // (threshold - pivot) / tau
    double *alpha, *beta;                   // exp(t) and exp(-gap - t)
    double *h, *step, *top, *rest, *mass, *inverse, *multiple, *number, *unit, *mean;
    double *plan, *upper, *lower, *g;  // (K + 1, lanes): of the sorted elements, one in each lane
    double *matrix, *factors;          // (K, stride)
    int64_t *extent, *near_extent;     // extent[d]: so many outsiders reach rank K - 1 - d
    int64_t *begin, *end, *slot;                     // where the sorted elements are in the row
    int64_t block;                     // elements in a block, whole vectors
    int64_t lanes, stride;

    RankSpace(int64_t n, int64_t k, int lists) : scratch(n, lists) {
        constexpr int64_t width = Vector<T>::width;
        const int64_t padded = k / 8 * 8 + 16;  // a whole vector can be read or written at any of k
        block = kBlockBytes / static_cast<int64_t>(sizeof(T)) / (2 * k);
        // An odd number of vectors: ranks a power of two apart would compete for the same cache lines.
        block = (std::min(std::max<int64_t>(block / width, 2), kLongestBlock / width) | 1) * width;
        lanes = k / 8 * 8 + 8;
        stride = padded;
        double** const doubles_of_k[] = {&gap, &decay, &t,   &trial, &alpha, &beta,    &h,
                                         &step, &top,  &rest, &mass, &inverse, &multiple, &number, &unit, &mean};
        double** const matrices[] = {&plan, &upper, &lower, &g, &matrix, &factors};
        T** const lists_of_k[] = {&factor, &shift, &weight};
        T** const blocks[] = {&plan_block, &lower_block, &g_block};
        int64_t** const integers[] = {&extent, &near_extent, &slot, &begin, &end};
        const int64_t listed = n + kLongestBlock;
        const int64_t doubles = 16 * padded + 6 * (k + 1) * padded, others = 3 * (padded + width) + 3 * k * block + k * width + 2 * listed;
        memory_ = std::malloc(static_cast<size_t>(doubles + 5 * k) * sizeof(double) +
                              static_cast<size_t>(others) * sizeof(T));
        if (memory_ == nullptr) return;
        double* at = static_cast<double*>(memory_);
        for (double** list : doubles_of_k) { *list = at; at += padded; }
        for (double** list : matrices) { *list = at; at += (k + 1) * padded; }
        int64_t* integer = reinterpret_cast<int64_t*>(at);
        for (int64_t** list : integers) { *list = integer; integer += k; }
        T* other = reinterpret_cast<T*>(integer);
        for (T** list : lists_of_k) { *list = other; other += padded + width; }
        for (T** list : blocks) { *list = other; other += k * block; }
        u = other;
        place = u + listed;
        sums = place + listed;
        for (int64_t s = 0; s < padded; ++s) number[s] = static_cast<double>(s);
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
    int64_t listed;        // outsiders in the list u: those that matter to rounding
    Band band[kMaxBands];
    int bands;
};

// An element costs its k ranks.
inline int64_t rank_grain(int64_t k) { return std::max<int64_t>(1, 4096 / k); }
