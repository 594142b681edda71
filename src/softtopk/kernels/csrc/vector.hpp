// Vectors of one instruction set.
//
// Vector<T> has as many lanes of T (float or double) as a register. GCC and Clang provide the
// arithmetic on any machine through their vector types; with another compiler (or SOFTTOPK_SCALAR,
// to try it) a vector is a single element, and the same code runs one element at a time.

template <class T>
struct Integer;
template <>
struct Integer<float> {
    using type = int32_t;
    using bits = uint32_t;
};
template <>
struct Integer<double> {
    using type = int64_t;
    using bits = uint64_t;
};

#if defined(__GNUC__) && !defined(SOFTTOPK_SCALAR)
template <class T>
struct Vector {
    typedef T V __attribute__((vector_size(SOFTTOPK_VECTOR_BYTES)));
    typedef typename Integer<T>::type M __attribute__((vector_size(SOFTTOPK_VECTOR_BYTES)));
    typedef typename Integer<T>::bits U __attribute__((vector_size(SOFTTOPK_VECTOR_BYTES)));
    static constexpr int width = SOFTTOPK_VECTOR_BYTES / sizeof(T);

    static SOFTTOPK_INLINE V all(T value) { return V{} + value; }
    static SOFTTOPK_INLINE M all_bits(typename Integer<T>::type value) { return M{} + value; }
    static SOFTTOPK_INLINE V select(M mask, V yes, V no) { return mask ? yes : no; }
    static SOFTTOPK_INLINE M count(M counts, M mask) { return counts - mask; }  // true is -1
};
#else
template <class T>
struct Vector {
    using V = T;
    using M = typename Integer<T>::type;
    using U = typename Integer<T>::bits;
    static constexpr int width = 1;

    static V all(T value) { return value; }
    static M all_bits(M value) { return value; }
    static V select(M mask, V yes, V no) { return mask ? yes : no; }
    static M count(M counts, M mask) { return counts + mask; }  // true is 1
};
#endif

template <class To, class From>
SOFTTOPK_INLINE To bit_cast(From from) {
    To to;
    static_assert(sizeof(to) == sizeof(from), "a reinterpretation keeps the size");
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

template <class T>
SOFTTOPK_INLINE typename Vector<T>::V load(const T* from) {
    typename Vector<T>::V v;
    std::memcpy(&v, from, sizeof(v));
    return v;
}

template <class T>
SOFTTOPK_INLINE void store(T* to, typename Vector<T>::V v) {
    std::memcpy(to, &v, sizeof(v));
}

// 0, 1, 2, ...
template <class T>
SOFTTOPK_INLINE typename Vector<T>::M lane_numbers() {
    static constexpr auto kNumbers = [] {
        std::array<typename Integer<T>::type, Vector<T>::width> numbers{};
        for (int i = 0; i < Vector<T>::width; ++i) numbers[static_cast<size_t>(i)] = i;
        return numbers;
    }();
    return bit_cast<typename Vector<T>::M>(kNumbers);
}

// A mask of the first `count` lanes, 0 <= count <= width.
template <class T>
SOFTTOPK_INLINE typename Vector<T>::M first_lanes(int64_t count) {
    using I = typename Integer<T>::type;
    constexpr int width = Vector<T>::width;
    static constexpr auto kFlags = [] {
        std::array<I, 2 * width> flags{};
        for (int i = 0; i < width; ++i) flags[static_cast<size_t>(i)] = -1;
        return flags;
    }();
    return bit_cast<typename Vector<T>::M>(
        load(reinterpret_cast<const T*>(&kFlags[static_cast<size_t>(width - count)])));
}

// The first `count` elements, and `fill` in the other lanes.
template <class T>
SOFTTOPK_INLINE typename Vector<T>::V load_part(const T* from, int64_t count, T fill) {
    using S = Vector<T>;
#if defined(SOFTTOPK_AVX2)
    const auto mask = first_lanes<T>(count);
    typename S::V v;
    if constexpr (sizeof(T) == 4) {
        v = bit_cast<typename S::V>(_mm256_maskload_ps(from, bit_cast<__m256i>(mask)));
    } else {
        v = bit_cast<typename S::V>(_mm256_maskload_pd(from, bit_cast<__m256i>(mask)));
    }
    return S::select(mask, v, S::all(fill));
#else
    T lanes[S::width];
    for (int i = 0; i < S::width; ++i) lanes[i] = i < count ? from[i] : fill;
    return load(lanes);
#endif
}

template <class T>
SOFTTOPK_INLINE void store_part(T* to, int64_t count, typename Vector<T>::V v) {
#if defined(SOFTTOPK_AVX2)
    const auto mask = bit_cast<__m256i>(first_lanes<T>(count));
    if constexpr (sizeof(T) == 4) {
        _mm256_maskstore_ps(to, mask, bit_cast<__m256>(v));
    } else {
        _mm256_maskstore_pd(to, mask, bit_cast<__m256d>(v));
    }
#else
    T lanes[Vector<T>::width];
    store(lanes, v);
    for (int i = 0; i < count; ++i) to[i] = lanes[i];
#endif
}

#if defined(__GNUC__) && !defined(SOFTTOPK_SCALAR)
template <bool upper, class T, int... lane>
SOFTTOPK_INLINE typename Vector<T>::V zip(typename Vector<T>::V a, typename Vector<T>::V b,
                                          std::integer_sequence<int, lane...>) {
    constexpr int width = Vector<T>::width, first = upper ? width / 2 : 0;
#if defined(__clang__)
    return __builtin_shufflevector(a, b, (first + lane / 2 + lane % 2 * width)...);
#else
    return __builtin_shuffle(a, b, typename Vector<T>::M{(first + lane / 2 + lane % 2 * width)...});
#endif
}

// Lanes of two vectors in turn: of their lower halves, or of their upper halves.
template <class T>
SOFTTOPK_INLINE typename Vector<T>::V zip_lower(typename Vector<T>::V a, typename Vector<T>::V b) {
    return zip<false, T>(a, b, std::make_integer_sequence<int, Vector<T>::width>());
}
template <class T>
SOFTTOPK_INLINE typename Vector<T>::V zip_upper(typename Vector<T>::V a, typename Vector<T>::V b) {
    return zip<true, T>(a, b, std::make_integer_sequence<int, Vector<T>::width>());
}
#else
template <class T>
T zip_lower(T a, T) {
    return a;
}
template <class T>
T zip_upper(T, T b) {
    return b;
}
#endif

// Lane j of vector i becomes lane i of vector j, for as many vectors as there are lanes.
template <class T>
SOFTTOPK_INLINE void transpose(typename Vector<T>::V* v) {
    constexpr int width = Vector<T>::width;
    for (int size = 1; size < width; size *= 2) {
        typename Vector<T>::V from[width];
        for (int i = 0; i < width; ++i) from[i] = v[i];
        for (int i = 0; i < width / 2; ++i) {
            v[2 * i] = zip_lower<T>(from[i], from[i + width / 2]);
            v[2 * i + 1] = zip_upper<T>(from[i], from[i + width / 2]);
        }
    }
}

// -|x|
template <class T>
SOFTTOPK_INLINE typename Vector<T>::V negative_of(typename Vector<T>::V x) {
    using M = typename Vector<T>::M;
    const auto sign = Vector<T>::all_bits(std::numeric_limits<typename Integer<T>::type>::min());
    return bit_cast<typename Vector<T>::V>(bit_cast<M>(x) | sign);
}

// All lanes of type L combined by `op`, pairwise: the halves of a vector as long as it is a long
// one, which goes from register to register, then one by one.
#if defined(__GNUC__) && !defined(SOFTTOPK_SCALAR)
template <class L, int bytes>
struct Halves {
    typedef L Half __attribute__((vector_size(bytes / 2)));
    Half low, high;
};
#endif

template <class L, class V, class Op>
SOFTTOPK_INLINE L reduce(V v, Op op) {
    constexpr int width = sizeof(V) / sizeof(L);
#if defined(__GNUC__) && !defined(SOFTTOPK_SCALAR)
    if constexpr (sizeof(V) > 16) {
        const auto halves = bit_cast<Halves<L, sizeof(V)>>(v);
        return reduce<L>(op(halves.low, halves.high), op);
    }
#endif
    L lanes[width];
    std::memcpy(lanes, &v, sizeof(v));
    for (int half = width / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) lanes[i] = op(lanes[i], lanes[i + half]);
    }
    return lanes[0];
}

template <class T>
SOFTTOPK_INLINE T sum_of_lanes(typename Vector<T>::V v) {
    return reduce<T>(v, [](auto a, auto b) { return a + b; });
}

// The same of four vectors, for less than four times the price.
template <class T>
SOFTTOPK_INLINE std::array<T, 4> sums_of_lanes(typename Vector<T>::V a, typename Vector<T>::V b,
                                               typename Vector<T>::V c, typename Vector<T>::V d) {
    if constexpr (Vector<T>::width < 4) {
        return {sum_of_lanes<T>(a), sum_of_lanes<T>(b), sum_of_lanes<T>(c), sum_of_lanes<T>(d)};
    } else {
        const auto first = zip_lower<T>(a, b) + zip_upper<T>(a, b),
                   second = zip_lower<T>(c, d) + zip_upper<T>(c, d);
        T lanes[Vector<T>::width];  // a, c, b, d, a, c, ...
        store(lanes, zip_lower<T>(first, second) + zip_upper<T>(first, second));
        for (int half = Vector<T>::width / 2; half >= 4; half /= 2) {
            for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
        }
        return {lanes[0], lanes[2], lanes[1], lanes[3]};
    }
}

template <class T>
SOFTTOPK_INLINE T largest_lane(typename Vector<T>::V v) {
    return reduce<T>(v, [](auto a, auto b) { return a > b ? a : b; });
}

template <class T>
SOFTTOPK_INLINE T smallest_lane(typename Vector<T>::V v) {
    return reduce<T>(v, [](auto a, auto b) { return a < b ? a : b; });
}

// The sum over the lanes of what Vector<T>::count has counted.
template <class T>
SOFTTOPK_INLINE int64_t sum_of_counts(typename Vector<T>::M counts) {
    return reduce<typename Integer<T>::type>(counts, [](auto a, auto b) { return a + b; });
}

// The mask as one bit per lane, lane 0 lowest.
template <class T>
SOFTTOPK_INLINE unsigned bits_of(typename Vector<T>::M mask) {
#if defined(SOFTTOPK_AVX512)
    if constexpr (sizeof(T) == 4) {
        return _mm512_movepi32_mask(bit_cast<__m512i>(mask));
    } else {
        return _mm512_movepi64_mask(bit_cast<__m512i>(mask));
    }
#elif defined(SOFTTOPK_AVX2)
    if constexpr (sizeof(T) == 4) {
        return static_cast<unsigned>(_mm256_movemask_ps(bit_cast<__m256>(mask)));
    } else {
        return static_cast<unsigned>(_mm256_movemask_pd(bit_cast<__m256d>(mask)));
    }
#else
    typename Integer<T>::type lanes[Vector<T>::width];
    std::memcpy(lanes, &mask, sizeof(mask));
    unsigned bits = 0;
    for (int i = 0; i < Vector<T>::width; ++i) bits |= static_cast<unsigned>(lanes[i] & 1) << i;
    return bits;
#endif
}

SOFTTOPK_INLINE int count_of(unsigned bits) {
#if defined(__GNUC__)
    return __builtin_popcount(bits);
#else
    int count = 0;
    for (; bits != 0; bits &= bits - 1) ++count;
    return count;
#endif
}

// The place of the lowest bit that is set.
SOFTTOPK_INLINE int lowest_of(unsigned bits) {
#if defined(__GNUC__)
    return __builtin_ctz(bits);
#else
    int place = 0;
    for (; (bits & 1) == 0; bits >>= 1) ++place;
    return place;
#endif
}

#if defined(SOFTTOPK_AVX2)
// For every mask of 8 lanes the lanes that are set, in order.
struct Compression {
    alignas(32) int32_t lanes[256][8];

    constexpr Compression() : lanes() {
        for (int bits = 0; bits < 256; ++bits) {
            int count = 0;
            for (int i = 0; i < 8; ++i) {
                if (bits >> i & 1) lanes[bits][count++] = i;
            }
        }
    }
};
constexpr Compression kCompression;
#endif

// Write the lanes in `bits` one after the other; what follows them in the vector is garbage, so
// `to` needs room for a whole vector. Returns how many.
template <class T>
SOFTTOPK_INLINE int compress(T* to, typename Vector<T>::V v, unsigned bits) {
#if defined(SOFTTOPK_AVX512)
    if constexpr (sizeof(T) == 4) {
        store(to, bit_cast<typename Vector<T>::V>(
                      _mm512_maskz_compress_ps(static_cast<__mmask16>(bits), bit_cast<__m512>(v))));
    } else {
        store(to, bit_cast<typename Vector<T>::V>(
                      _mm512_maskz_compress_pd(static_cast<__mmask8>(bits), bit_cast<__m512d>(v))));
    }
#elif defined(SOFTTOPK_AVX2)
    unsigned floats = bits;
    if constexpr (sizeof(T) == 8) {  // two floats for every double
        floats = (bits & 1) * 3 | (bits & 2) * 6 | (bits & 4) * 12 | (bits & 8) * 24;
    }
    const auto order =
        bit_cast<__m256i>(load(reinterpret_cast<const float*>(kCompression.lanes[floats])));
    store(to, bit_cast<typename Vector<T>::V>(
                  _mm256_permutevar8x32_epi32(bit_cast<__m256i>(v), order)));
#else
    T lanes[Vector<T>::width];
    store(lanes, v);
    int count = 0;
    for (int i = 0; i < Vector<T>::width; ++i) {
        to[count] = lanes[i];
        count += static_cast<int>(bits >> i & 1);
    }
    return count;
#endif
    return count_of(bits);
}

template <class T>
struct ExpConstants;
template <>
struct ExpConstants<float> {
    static constexpr float lowest = -88.0296919f, magic = 12582912.0f;
    static constexpr float ln2_high = 0.693145752f, ln2_low = 1.42860677e-6f;
    static constexpr int degree = 7, mantissa = 23, bias = 127;
};
template <>
struct ExpConstants<double> {
    static constexpr double lowest = -709.089565712824, magic = 6755399441055744.0;
    static constexpr double ln2_high = 0.693147180369123816490,
                            ln2_low = 1.90821492927058770002e-10;
    static constexpr int degree = 13, mantissa = 52, bias = 1023;
};

// exp(x) for x <= 0, within 2 ulp; 0 where the result would not be a normal number.
//
// x = m log 2 + r with |r| <= log(2) / 2 and Taylor's polynomial in r, whose remainder is 5e-9
// (float) or 4e-18 (double) relative. Adding `magic` rounds to an integer in the lowest bits. At
// `lowest` m is -bias, for which the power of two comes out as 0.
template <class T>
SOFTTOPK_INLINE typename Vector<T>::V exp_of_negative(typename Vector<T>::V x) {
    using S = Vector<T>;
    using V = typename S::V;
    using U = typename S::U;
    using C = ExpConstants<T>;
    constexpr T log2_e = static_cast<T>(1.44269504088896340736);
    x = S::select(S::all(C::lowest) > x, S::all(C::lowest), x);
    const V shifted = x * log2_e + C::magic;
    const V m = shifted - C::magic;
    const V r = (x - m * C::ln2_high) - m * C::ln2_low;
    V p = S::all(static_cast<T>(kInverseFactorial[C::degree]));
    for (int i = C::degree - 1; i >= 0; --i) p = p * r + static_cast<T>(kInverseFactorial[i]);
    const U exponent =
        bit_cast<U>(shifted) - (bit_cast<typename Integer<T>::bits>(C::magic) - C::bias);
    return p * bit_cast<V>(exponent << C::mantissa);
}

// exp(x) likewise, for x of either sign; the largest results are about 1e38 or 1e308.
template <class T>
SOFTTOPK_INLINE typename Vector<T>::V exp_of(typename Vector<T>::V x) {
    using S = Vector<T>;
    constexpr T highest = -ExpConstants<T>::lowest;
    return exp_of_negative<T>(S::select(x > S::all(highest), S::all(highest), x));
}

// While there is one, results below the smallest normal number are 0, as those of exp are. On x86
// they would take many times as long as others.
class FlushToZero {
  public:
#if defined(SOFTTOPK_X86)
    FlushToZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON); }
    ~FlushToZero() { _mm_setcsr(before_); }
    FlushToZero(const FlushToZero&) = delete;
    FlushToZero& operator=(const FlushToZero&) = delete;

  private:
    unsigned before_;
#else
    FlushToZero() {}
#endif
};
