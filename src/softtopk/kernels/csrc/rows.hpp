// What the kernels share: the rows of a call among threads, the form in which the solvers get a
// row, the memory beside its result, and passes over it.

template <class T>
constexpr T kInf = std::numeric_limits<T>::infinity();

constexpr double kInfinity = kInf<double>;

// Passes over a long row go in pieces of this many elements: small enough for a cache, the unit of
// work of a thread, and always the same, so that a sum does not depend on the number of threads.
constexpr int64_t kPiece = 8192;

inline int64_t pieces(int64_t n) { return (n + kPiece - 1) / kPiece; }

// The sums of one pass over a row or a piece of it.
using Sums = std::array<double, 3>;

// How far below the best of the rest, in units of tau, elements no longer matter: the root lies at
// most log(2 n) below that one, since n elements leak no more out of the top, and all elements that
// are further below than this together leak less than `precision`.
inline double reach_of(int64_t n, double precision) {
    return 2.0 * std::log(2.0 * static_cast<double>(n)) - std::log(precision);
}

// What a row needs beside its result: O(n), and room to write a whole vector at the end of a list.
template <class T>
class Scratch {
  public:
    T *first = nullptr, *second = nullptr, *row = nullptr, *share = nullptr;

    // For rows of up to n elements. Lists: 0, 2, 3 with `row`, or 4 with `share` too.
    Scratch(int64_t n, int lists) : n_(n), reach_(reach_of(n, kRounding)) {
        const auto length = static_cast<size_t>(n + Vector<T>::width);
        const auto count = static_cast<size_t>(std::max<int64_t>(1, pieces(n)));
        memory_ =
            std::malloc(count * sizeof(Piece) + length * static_cast<size_t>(lists) * sizeof(T));
        piece_ = static_cast<Piece*>(memory_);
        if (memory_ == nullptr || lists == 0) return;
        first = reinterpret_cast<T*>(piece_ + count);
        second = first + length;
        row = second + length;
        share = row + length;
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { std::free(memory_); }

    explicit operator bool() const { return memory_ != nullptr; }

    // Of the elements that matter to rounding in a row of n.
    double reach(int64_t n) const { return n == n_ ? reach_ : reach_of(n, kRounding); }

    // The partial result of each piece of a pass.
    struct Piece {
        Sums sums;
        int64_t first, second;
        T largest;
        bool nan;
    };
    Piece& piece(int64_t i) const { return piece_[i]; }

  private:
    static constexpr double kRounding = std::numeric_limits<T>::epsilon();
    int64_t n_;
    double reach_;
    void* memory_;
    Piece* piece_;
};

// body(begin, end, partial) for every piece of [0, n); the partials are then in `scratch`.
template <class T, class Body>
SOFTTOPK_INLINE void each_piece(int64_t n, int threads, const Scratch<T>& scratch, Body body) {
    if (n <= kPiece) return body(int64_t{0}, n, scratch.piece(0));
    each(pieces(n), threads,
         [&](int64_t i) { body(i * kPiece, std::min(n, (i + 1) * kPiece), scratch.piece(i)); });
}

// The sums over a row of what body(begin, end, partial) returns for each piece.
template <class T, class Body>
SOFTTOPK_INLINE Sums sum_pieces(int64_t n, int threads, const Scratch<T>& scratch, Body body) {
    if (n <= kPiece) return body(int64_t{0}, n, scratch.piece(0));
    each_piece(n, threads, scratch, [&](int64_t begin, int64_t end, auto& partial) {
        partial.sums = body(begin, end, partial);
    });
    Sums sums = scratch.piece(0).sums;
    for (int64_t i = 1; i < pieces(n); ++i) {
        for (size_t j = 0; j < sums.size(); ++j) sums[j] += scratch.piece(i).sums[j];
    }
    return sums;
}

// Move the lists that the pieces left at the beginning of their places together.
template <class T>
int64_t join(T* list, int64_t n, const Scratch<T>& scratch, int64_t Scratch<T>::Piece::* count) {
    int64_t total = scratch.piece(0).*count;
    for (int64_t i = 1; i < pieces(n); ++i) {
        const int64_t more = scratch.piece(i).*count;
        std::memmove(list + total, list + i * kPiece, static_cast<size_t>(more) * sizeof(T));
        total += more;
    }
    return total;
}

// The lanes that are left over if `count` elements fill vectors.
template <class T>
int64_t filling(int64_t count) {
    constexpr int64_t width = Vector<T>::width;
    return (width - count % width) % width;
}

// A place in a row with a whole vector, and one with fewer elements.
template <class T>
struct Whole {
    using V = typename Vector<T>::V;
    int64_t i;

    SOFTTOPK_INLINE int64_t size() const { return Vector<T>::width; }
    SOFTTOPK_INLINE V read(const T* from, T) const { return load(from + i); }
    SOFTTOPK_INLINE void write(T* to, V v) const { store(to + i, v); }
};
template <class T>
struct Part {
    using V = typename Vector<T>::V;
    int64_t i, count;

    SOFTTOPK_INLINE int64_t size() const { return count; }
    SOFTTOPK_INLINE V read(const T* from, T fill) const { return load_part(from + i, count, fill); }
    SOFTTOPK_INLINE void write(T* to, V v) const { store_part(to + i, count, v); }
};

// body(at) for the vectors of [begin, end), the last of which may be a part. at.read(list, fill)
// has `fill` in the lanes without an element.
template <class T, class Body>
SOFTTOPK_INLINE void each_vector(int64_t begin, int64_t end, Body body) {
    constexpr int64_t width = Vector<T>::width;
    int64_t i = begin;
    for (; i + width <= end; i += width) body(Whole<T>{i});
    if (i < end) body(Part<T>{i, end - i});
}

// body(begin, end) for runs of [begin, end) so short that a sum in T over one keeps its precision.
template <class T, class Body>
SOFTTOPK_INLINE void each_run(int64_t begin, int64_t end, Body body) {
    constexpr int64_t length = 64 * Vector<T>::width;
    for (int64_t i = begin; i < end; i += length) body(i, std::min(end, i + length));
}

// The row as the solvers want it: largest selected, -inf where it takes no part.
template <class T>
const T* canonical(const Scores<T>& scores, int64_t row, int threads, const Scratch<T>& scratch) {
    const auto [first, n] = scores.size[row];
    const T* x = scores.x + first;
    if (scores.largest && scores.mask == nullptr) return x;
    const uint8_t* mask = scores.mask == nullptr ? nullptr : scores.mask + first;
    const T sign = scores.largest ? T(1) : T(-1);
    T* to = scratch.row;
    each_piece(n, threads, scratch, [=](int64_t begin, int64_t end, auto&) {
        for (int64_t i = begin; i < end; ++i) {
            to[i] = mask == nullptr || mask[i] != 0 ? sign * x[i] : -kInf<T>;
        }
    });
    return to;
}

// A row of E as one of T: itself, or a copy in `to`.
template <class T>
T* opened(T* row, int64_t, T*) {
    return row;
}
inline float* opened(const BFloat16* row, int64_t n, float* to) {
    for (int64_t i = 0; i < n; ++i) to[i] = bit_cast<float>(uint32_t{row[i].bits} << 16);
    return to;
}

// The way back, rounded to the nearest, and of two that are as near to the even one.
template <class T>
void close(const T*, int64_t, T*) {}
inline void close(const float* from, int64_t n, BFloat16* row) {
    for (int64_t i = 0; i < n; ++i) {
        const auto bits = bit_cast<uint32_t>(from[i]);
        const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        row[i].bits = static_cast<uint16_t>(from[i] == from[i] ? rounded : 0x7fc0);
    }
}

// How many lists the scratch space of a solver needs.
template <class T>
int lists_for(const Scores<T>& scores) {
    return scores.largest && scores.mask == nullptr ? 2 : 3;
}

// The fewest elements that are worth a thread.
constexpr int64_t kSolverGrain = 16384, kGradientGrain = 32768;

// rows_of(begin, end, longest, threads) for all rows of a ragged call, see below.
template <class RowsOf>
void each_ragged_row(const Size& size, int threads, RowsOf rows_of) {
    const int64_t rows = size.rows;
    // A block has the rows that begin within so many elements.
    const int64_t block =
        threads == 1 ? size.n + 1 : std::max<int64_t>(2 * kPiece, size.n / (threads * 8));
    const auto starting_at = [&](int64_t element) {
        return std::lower_bound(size.offsets, size.offsets + rows, element) - size.offsets;
    };
    for (int64_t row = 0; threads > 1 && row < rows; ++row) {
        if (size[row].n > block) rows_of(row, row + 1, size[row].n, threads);
    }
    each(size.n / block + 1, threads, [&](int64_t i) {
        const int64_t begin = starting_at(i * block), end = starting_at((i + 1) * block);
        int64_t longest = 0;
        for (int64_t row = begin; row < end; ++row) {
            if (size[row].n <= block) longest = std::max(longest, size[row].n);
        }
        if (begin < end) rows_of(begin, end, longest, 1);
    });
}

// of_row(call, row, threads, space) for every row, each thread with a Space(longest, sizes...):
// rows side by side when there are enough for all threads, else each row with all the threads. Of
// ragged rows the short ones are side by side, in blocks of about as many elements, and every long
// one has all the threads.
//
// All threads or one: OpenMP ends those that a call does not ask for, and torch would have to start
// them again.
template <class Call, class Space, class... Sizes>
Status each_row(const Call& call, const Size& size, int64_t grain,
                Status (*of_row)(const Call&, int64_t, int, const Space&), Sizes... sizes) {
    const int64_t rows = size.rows;
    const int threads = size.elements() >= 2 * grain ? static_cast<int>(size.threads) : 1;
    std::atomic<int32_t> status{kDone};
    // Those of the rows that are not longer than `longest`.
    const auto rows_of = [&](int64_t begin, int64_t end, int64_t longest, int row_threads) {
        const Space space(longest, sizes...);
        if (!space) {
            status = kOutOfMemory;
            return;
        }
        for (int64_t row = begin; row < end; ++row) {
            if (size[row].n > longest) continue;
            const int32_t outcome = of_row(call, row, row_threads, space);
            int32_t expected = kDone;
            if (outcome != kDone) status.compare_exchange_strong(expected, outcome);
        }
    };
    if (size.offsets != nullptr) {
        each_ragged_row(size, threads, rows_of);
    } else if (threads == 1 || rows < threads) {
        rows_of(0, rows, size.n, threads);
    } else {
        const int64_t block = std::max<int64_t>(1, rows / (threads * 8));
        each((rows + block - 1) / block, threads,
             [&](int64_t i) { rows_of(i * block, std::min(rows, (i + 1) * block), size.n, 1); });
    }
    return static_cast<Status>(status.load());
}
