// The plan of outsiders as it lies in memory: element after element, each as vectors of columns.
//
// Column j of an element is weight_j u^(last - j) times its scale, where `last` is the column of
// rank K. The powers in a vector are products of u, u^2, u^4, ...: each of these multiplies those
// lanes whose exponent has its bit. From one vector to that before it, every exponent grows by the
// width.
template <class T>
class OutsiderColumns {
  public:
    static constexpr int64_t kBlock = 32 * Vector<T>::width;

    OutsiderColumns(int64_t k, const Ranks<T>& ranks, const RankSpace<T>& space)
        : k_(k), count_(ranks.count), factor_(space.factor), weight_(space.weight) {
        const int64_t last = ranks.infinite + count_;
        std::fill_n(weight_, k + S::width, T(0));
        for (int64_t d = 0; d < count_; ++d) weight_[last - 1 - d] = factor_[d];
        if (last < k) weight_[last] = 1;
        last_vector_ = last / S::width;
        const auto exponent =
            static_cast<typename Integer<T>::type>(S::width + last % S::width) - lane_numbers<T>();
        for (int bit = 0; bit <= kBits; ++bit) {
            mask_[bit] = (exponent & S::all_bits(1 << bit)) != S::all_bits(0);
        }
    }

    // Write the plans of `size` outsiders, at most kBlock, to `to`, (size, k). u, their
    // exponentials, ends with a whole vector. What is written after the last of them, before `end`,
    // is garbage.
    void write(const T* u, int64_t size, T* to, T* end) {
        const FlushToZero flush;
        for (int64_t i = 0; i < size; i += S::width) {
            V power = load(u + i);
            const V scale = outsider_scale<T>(power, factor_, count_);
            store(scale_ + i, scale);
            store(scaled_ + i, scale * power);
            for (int bit = 0; bit <= kBits; ++bit, power *= power) store(power_[bit] + i, power);
        }
        for (int64_t i = 0; i < size; i += S::width, to += S::width * k_) {
            const int64_t width = std::min<int64_t>(S::width, size - i);
            if (bits_of<T>(load(u + i) > S::all(0)) == 0) {
                std::fill_n(to, width * k_, T(0));
            } else if (last_vector_ == 0 && k_ <= S::width && to + (width - 1) * k_ + S::width <= end) {
                write_short(i, width, to);
            } else {
                write_long(i, width, to, end);
            }
        }
    }

  private:
    using S = Vector<T>;
    using V = typename S::V;
    static constexpr int log2_of(int width) { return width == 1 ? 0 : 1 + log2_of(width / 2); }
    static constexpr int kBits = log2_of(S::width);

    SOFTTOPK_INLINE V powers(int64_t i, V weight, const typename S::M* mask) const {
        V p = kBits == 0 ? S::all(scale_[i]) : S::select(mask[0], S::all(scaled_[i]), S::all(scale_[i])); p *= weight;
        for (int bit = 1; bit < kBits; ++bit) p = S::select(mask[bit], p * power_[bit][i], p);
        return p;
    }

    void write_short(int64_t i, int64_t width, T* to) const {
        typename S::M mask[kBits + 1]; for (int bit = 0; bit <= kBits; ++bit) mask[bit] = mask_[bit];
        const V weight = load(weight_);
        for (const int64_t end = i + width; i < end; ++i, to += k_) {
            store(to, powers(i, weight, mask));
        }
    }

    void write_long(int64_t i, int64_t width, T* to, T* end) const {
        typename S::M mask[kBits + 1]; for (int bit = 0; bit <= kBits; ++bit) mask[bit] = mask_[bit];
        for (const int64_t last = i + width; i < last; ++i, to += k_) {
            const auto put = [=](int64_t vector, V v) {
                T* const at = to + vector * S::width;
                if (at + S::width <= end) {
                    store(at, v);
                } else {
                    store_part(at, end - at, v);
                }
            };
            V p = powers(i, S::all(1), mask);
            for (int64_t v = last_vector_; v * S::width < k_; ++v) {
                put(v, p * load(weight_ + v * S::width));  // after `last` all weights are 0
            }
            p = S::select(mask[kBits], p * power_[kBits][i], p);
            for (int64_t v = last_vector_ - 1; v >= 0; --v, p *= power_[kBits][i]) {
                put(v, p * load(weight_ + v * S::width));
            }
        }
    }

    int64_t k_, count_, last_vector_;
    const T* factor_;
    T* weight_;
    typename S::M mask_[kBits + 1];
    T scale_[kBlock], scaled_[kBlock], power_[kBits + 1][kBlock];
};
