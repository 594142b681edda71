// The plan of outsiders as it lies in memory, element after element.
//
// It is made of squares of as many columns as elements: vectors of one rank of several elements,
// which become vectors of several ranks of one element.
template <class T>
class OutsiderColumns {
  public:
    OutsiderColumns(int64_t k, const Ranks<T>& ranks, const RankSpace<T>& space)
        : k_(k),
          count_(ranks.count),
          last_(ranks.infinite + ranks.count),
          factor_(space.factor),
          weight_(space.weight) {
        std::fill_n(weight_, k + S::width, T(0));
        for (int64_t d = 0; d < count_; ++d) weight_[last_ - 1 - d] = factor_[d];
        if (last_ < k) weight_[last_] = 1;
    }

    // Write the plans of `size` outsiders to `to`, (size, k). u, their exponentials, ends with a
    // whole vector. What is written after the last of them, before `end`, is garbage.
    void write(const T* u, const T* scale, int64_t size, T* to, T* end) const {
        const FlushToZero flush;
        const int64_t k = k_, last = last_;
        for (int64_t i = 0; i < size; i += S::width, to += S::width * k) {
            const int64_t width = std::min<int64_t>(S::width, size - i);
            const V v = load(u + i), v2 = v * v;
            if (bits_of<T>(v > S::all(0)) == 0) {
                std::fill_n(to, width * k, T(0));
                continue;
            }
            V power = load(scale + i), next = power * v;
            // The last columns first: what they write of the next element is written over.
            for (int64_t column = (k - 1) / S::width * S::width; column >= 0; column -= S::width) {
                V square[S::width];
                const int64_t first = last - column;
                const T* const weight = weight_ + column;
                for (int j = S::width - 1; j >= 0; --j) {
                    if (j < first) {
                        const V after = power * v2;
                        power = next;
                        next = after;
                    }
                    square[j] = power * weight[j];
                }
                transpose<T>(square);
                T* at = to + column;
                if (width == S::width && at + (S::width - 1) * k + S::width <= end) {
                    for (int lane = 0; lane < S::width; ++lane, at += k) store(at, square[lane]);
                } else {
                    T rest[S::width * S::width];
                    for (int lane = 0; lane < S::width; ++lane) store(rest + lane * S::width, square[lane]);
                    write_end(rest, width, at, end);
                }
            }
        }
    }

  private:
    using S = Vector<T>;
    using V = typename S::V;

    __attribute__((noinline)) void write_end(const T* rest, int64_t width, T* at, T* end) const {
        for (int64_t lane = 0; lane < width; ++lane, at += k_) {
            std::copy_n(rest + lane * S::width, std::min<int64_t>(S::width, end - at), at);
        }
    }

    int64_t k_, count_, last_;
    const T* factor_;
    T* weight_;
};
