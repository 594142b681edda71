// The finite part of a row of the sorted operator, and the memory that its solution needs.
// ranking.hpp has the problem.
//
// Elements lie in lanes: a vector is one rank of several elements. Outsiders come in blocks of
// vectors, whose plan is computed anew in each pass: keeping it would take n K numbers, and take
// longer to read than to compute.

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
    T *plan_block, *lower_block, *g_block;  // (K, block), of outsiders
    T* sums;                                // (K, width)
    double *gap, *decay;                    // between neighbours of the sorted, and exp(-gap)
    double *t, *trial;                      // (threshold - pivot) / tau
    double *alpha, *beta;                   // exp(t) and exp(-gap - t)
    double *h, *mean, *step, *top, *rest, *mass;
    double *multiple, *number;         // how often each of the sorted occurs; 0, 1, 2, ...
    double *plan, *upper, *lower, *g;  // (K + 1, lanes), of the sorted
    double *matrix, *factors;          // (K, stride)
    double *unit, *inverse;            // what scales the matrix, and the inverse of its diagonal
    int64_t *extent, *near_extent;     // extent[d]: so many outsiders reach rank K - 1 - d
    int64_t *begin, *end;              // of the sorted that matter to a row of the matrix
    int64_t* slot;                     // where the sorted are in the row of scores
    int64_t block, lanes, stride;

    RankSpace(int64_t n, int64_t k, int lists) : scratch(n, lists) {
        constexpr int64_t width = Vector<T>::width;
        stride = k / 8 * 8 + 16;  // room for a whole vector at any of k numbers
        lanes = k / 8 * 8 + 8;
        // An odd number of vectors: ranks a power of two apart would share their cache lines.
        block = kBlockBytes / static_cast<int64_t>(sizeof(T)) / (2 * k * width);
        block = (std::min<int64_t>(std::max<int64_t>(block, 2), 32) | 1) * width;
        memory_ = std::malloc(lay_out(nullptr, n, k));
        if (memory_ == nullptr) return;
        lay_out(memory_, n, k);
        for (int64_t s = 0; s < stride; ++s) number[s] = static_cast<double>(s);
    }
    RankSpace(const RankSpace&) = delete;
    RankSpace& operator=(const RankSpace&) = delete;
    ~RankSpace() { std::free(memory_); }

    explicit operator bool() const { return scratch && memory_ != nullptr; }

  private:
    // Give all arrays their places in the memory. Returns how many bytes they take.
    size_t lay_out(void* memory, int64_t n, int64_t k) {
        constexpr int64_t width = Vector<T>::width;
        const auto start = reinterpret_cast<uintptr_t>(memory);
        uintptr_t at = start;
        const auto place_all = [&at](auto lists, int64_t length) {
            for (auto* list : lists) {
                using Element = std::remove_reference_t<decltype(**list)>;
                *list = reinterpret_cast<Element*>(at);
                at += static_cast<uintptr_t>(length) * sizeof(Element);
            }
        };
        place_all(std::array{&gap, &decay, &t, &trial, &alpha, &beta, &h, &mean, &step, &top, &rest,
                             &mass, &multiple, &number, &unit, &inverse},
                  stride);
        place_all(std::array{&plan, &upper, &lower, &g, &matrix, &factors}, (k + 1) * stride);
        place_all(std::array{&extent, &near_extent, &begin, &end, &slot}, k);
        place_all(std::array{&factor, &shift, &weight}, stride + width);
        place_all(std::array{&plan_block, &lower_block, &g_block}, k * block);
        place_all(std::array{&sums}, k * width);
        place_all(std::array{&u, &place}, n + 2 * width);
        return at - start;
    }

    void* memory_;
};

// The finite part of a row.
template <class T>
struct Ranks {
    const T* pivot;    // (K + 1), descending, the last one the best outsider
    int64_t count;     // K
    int64_t infinite;  // p
    double tau;
    double tied;     // how many outsiders tie with the best, itself included
    int64_t n;       // of the row
    int64_t listed;  // outsiders in the list u: those that matter to rounding
    Band band[kMaxBands];
    int bands;
};

// An element costs its k ranks.
inline int64_t rank_grain(int64_t k) { return std::max<int64_t>(1, 4096 / k); }
