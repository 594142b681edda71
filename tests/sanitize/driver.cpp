// Calls every kernel of the native library with random arguments, for a sanitizer to watch.
//
//   driver run CASES          on every instruction set, from several threads at once; prints a
//                             number that depends on all results and on nothing else
//   driver fault NAME SET     makes the library commit a fault, which the sanitizer has to notice
//   driver sets               prints the instruction sets of this machine
#include "kernels.hpp"

#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

using namespace softtopk;

extern "C" {
int32_t softtopk_abi_version();
const char* softtopk_instruction_set();
int32_t softtopk_use_instruction_set(const char* name);
void softtopk_after_fork();

// After a fork the pool of the parent is left alone, whose threads do not exist.
const char* __lsan_default_suppressions() { return "leak:set_up\n"; }
}

// The functions of a kernel under one name, by the type of its arguments.
#define KERNEL(name, Call)                                                         \
    extern "C" int32_t softtopk_##name##_f32(const Call<float>*);                  \
    extern "C" int32_t softtopk_##name##_f64(const Call<double>*);                 \
    int32_t name(const Call<float>& call) { return softtopk_##name##_f32(&call); } \
    int32_t name(const Call<double>& call) { return softtopk_##name##_f64(&call); }
#define SHORT_KERNEL(name, Call)                                             \
    extern "C" int32_t softtopk_##name##_bf16(const Call<float, BFloat16>*); \
    int32_t name(const Call<float, BFloat16>& call) { return softtopk_##name##_bf16(&call); }

KERNEL(threshold, ThresholdCall)
KERNEL(threshold_gradient, ThresholdGradientCall)
KERNEL(softmax, SoftmaxCall)
KERNEL(hard_softmax, HardSoftmaxCall)
KERNEL(softmax_gradient, SoftmaxGradientCall)
KERNEL(softmax_in_place, SoftmaxInPlaceCall)
KERNEL(softmax_backward, SoftmaxBackwardCall)
KERNEL(ranking, RankingCall)
KERNEL(ranking_gradient, RankingGradientCall)
SHORT_KERNEL(softmax_in_place, SoftmaxInPlaceCall)
SHORT_KERNEL(softmax_backward, SoftmaxBackwardCall)

namespace {

class Random {
  public:
    explicit Random(uint64_t seed) : engine_(seed) {}

    int64_t between(int64_t low, int64_t high) {
        return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
    }
    bool one_in(int64_t count) { return between(1, count) == 1; }
    double normal() { return std::normal_distribution<>()(engine_); }
    double power(double low, double high) {
        return std::pow(10.0, std::uniform_real_distribution<>(low, high)(engine_));
    }

  private:
    std::mt19937_64 engine_;
};

// Memory of exactly this size: on the heap, where a sanitizer has marked what lies around it, or
// before a page that cannot be accessed. Sanitizers do not see the loads and stores of AVX2 that
// leave out some lanes; the page sees all.
template <class T>
class Array {
  public:
    Array(int64_t size, bool on_the_heap) : size_(size), on_the_heap_(on_the_heap) {
        const auto bytes = static_cast<size_t>(size) * sizeof(T);
        if (on_the_heap_) {
            data_ = static_cast<T*>(std::malloc(bytes));
            return;
        }
        const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const size_t accessible = (bytes + page - 1) / page * page;
        mapped_ = accessible + page;
        start_ = static_cast<char*>(
            mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (start_ == MAP_FAILED || mprotect(start_ + accessible, page, PROT_NONE) != 0) abort();
        data_ = reinterpret_cast<T*>(start_ + accessible - bytes);
    }
    Array(int64_t size, Random& random) : Array(size, random.one_in(2)) {}
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() {
        if (on_the_heap_) {
            std::free(data_);
        } else {
            munmap(start_, mapped_);
        }
    }

    T* data() const { return data_; }
    T* begin() const { return data_; }
    T* end() const { return data_ + size_; }

  private:
    int64_t size_;
    bool on_the_heap_;
    T* data_;
    char* start_ = nullptr;
    size_t mapped_ = 0;
};

// A sum that depends on every bit of the results, whatever the order of the cases.
std::atomic<uint64_t> checksum{0};

template <class... T>
void add(const Array<T>&... results) {
    uint64_t hash = 14695981039346656037u;
    const auto take = [&hash](const void* begin, const void* end) {
        for (auto at = static_cast<const uint8_t*>(begin); at != end; ++at) {
            hash = (hash ^ *at) * 1099511628211u;
        }
    };
    (take(results.begin(), results.end()), ...);
    checksum += hash;
}

// Scores or gradients of one kind: ordinary, tied, huge, tiny, or with special values among them.
template <class T>
void fill(const Array<T>& array, Random& random) {
    using Limits = std::numeric_limits<T>;
    const T special[] = {Limits::infinity(), -Limits::infinity(),  Limits::quiet_NaN(),
                         Limits::max(),      Limits::denorm_min(), T(0)};
    const auto kind = random.between(0, 7);
    const auto scale = static_cast<T>(kind == 0   ? Limits::max() / 8
                                      : kind == 1 ? Limits::min()
                                                  : random.power(-3, 3));
    const auto rarity = random.between(1, 40);
    // NaN and the infinities, or one of them: together they would hide each other's paths.
    const auto chosen = random.between(0, 8);
    for (T& value : array) {
        value = static_cast<T>(random.normal()) * scale;
        if (kind == 2) value = static_cast<T>(random.between(0, 3));
        if (kind == 3) value = T(1);
        if (kind == 4 && random.one_in(rarity)) {
            value = special[chosen < 6 ? chosen : random.between(0, chosen == 6 ? 5 : 1)];
        }
    }
}

void fill(const Array<BFloat16>& array, Random& random) {
    const Array<float> wide(array.end() - array.begin(), random);
    fill(wide, random);
    for (int64_t i = 0; i < wide.end() - wide.begin(); ++i) {
        std::memcpy(array.data() + i, reinterpret_cast<const char*>(wide.data() + i) + 2, 2);
    }
}

// One number for all rows or one for each, by `draw`.
struct Numbers {
    Array<double> array;
    PerRow per_row;

    template <class Draw>
    Numbers(int64_t rows, Random& random, Draw draw)
        : array(rows, random), per_row{draw(), nullptr} {
        for (double& value : array) value = draw();
        if (random.one_in(2)) per_row.values = array.data();
    }
};

// The arguments that the kernels share. E is the type of the scores, T that of the computation.
template <class T, class E = T>
struct Problem {
    Size size;
    Array<E> x;
    Array<uint8_t> mask;
    Scores<E> scores;
    Numbers k, tau;

    Problem(Size size, Random& random)
        : size(size),
          x(size.elements(), random),
          mask(size.elements(), random),
          k(size.rows, random, [&] { return places(random); }),
          tau(size.rows, random, [&] { return temperature(random); }) {
        fill(x, random);
        const auto rarity = random.between(0, 3);  // 0: no element of any row takes part
        for (uint8_t& flag : mask) flag = rarity > 0 && !random.one_in(rarity + 1);
        scores = {size, x.data(), random.one_in(2) ? mask.data() : nullptr, random.one_in(2)};
    }

    double places(Random& random) const {
        switch (random.between(0, 9)) {
            case 0:
                return 0.0;
            case 1:
                return static_cast<double>(size.n);
            case 2:
                return std::numeric_limits<double>::quiet_NaN();
            case 3:
                return 1e-6;
            default:
                return static_cast<double>(random.between(0, 4 * size.n)) / 4.0;
        }
    }

    static double temperature(Random& random) {
        switch (random.between(0, 9)) {
            case 0:
                return std::numeric_limits<T>::min();
            case 1:
                return std::numeric_limits<T>::max();
            case 2:
                return random.one_in(4) ? std::numeric_limits<double>::quiet_NaN() : 1.0;
            default:
                return random.power(-4, 3);
        }
    }
};

// What follows calls a kernel and the one of its derivative.

template <class T>
void try_threshold(Size size, Random& random) {
    const Problem<T> problem(size, random);
    const int64_t count = size.elements();
    const Array<T> a(count, random), pivot(size.rows, random), offset(size.rows, random),
        grad(count, random), grad_x(count, random);
    fill(grad, random);
    threshold(ThresholdCall<T>{problem.scores, problem.k.per_row, problem.tau.per_row, a.data(),
                               nullptr, nullptr});
    threshold(ThresholdCall<T>{problem.scores, problem.k.per_row, problem.tau.per_row, nullptr,
                               pivot.data(), offset.data()});
    threshold_gradient(
        ThresholdGradientCall<T>{size, problem.tau.per_row, a.data(), grad.data(), grad_x.data()});
    add(a, pivot, offset, grad_x);
}

template <class T>
void try_softmax(Size size, Random& random) {
    const Problem<T> problem(size, random);
    const int64_t count = size.elements();
    const Array<T> a(count, random), w(count, random), grad(count, random), grad_x(count, random);
    fill(grad, random);
    softmax(
        SoftmaxCall<T>{problem.scores, problem.k.per_row, problem.tau.per_row, nullptr, w.data()});
    softmax(
        SoftmaxCall<T>{problem.scores, problem.k.per_row, problem.tau.per_row, a.data(), w.data()});
    softmax_gradient(SoftmaxGradientCall<T>{size, problem.tau.per_row, w.data(), a.data(),
                                            grad.data(), grad_x.data()});
    add(a, w, grad_x);
}

template <class T>
void try_hard_softmax(Size size, Random& random) {
    const Problem<T> problem(size, random);
    const int64_t k = random.one_in(4) ? size.n : random.between(1, size.n);
    const Array<T> w(size.rows * k, random);
    const Array<int64_t> index(size.rows * k, random);
    hard_softmax(HardSoftmaxCall<T>{problem.scores, k, w.data(), index.data()});
    for (const int64_t place : index) {
        if (place < 0 || place >= size.n) abort();  // torch would scatter to it
    }
    add(w, index);
}

template <class T, class E>
void try_in_place(Size size, Random& random) {
    const Problem<T, E> problem(size, random);
    const int64_t count = size.rows * size.n;
    const Array<E> x(count, random), grad(count, random);
    const Array<T> root(2 * size.rows, random);
    std::copy(problem.x.begin(), problem.x.end(), x.data());
    fill(grad, random);
    softmax_in_place(SoftmaxInPlaceCall<T, E>{size, problem.k.per_row, problem.tau.per_row,
                                              x.data(), root.data()});
    softmax_backward(SoftmaxBackwardCall<T, E>{size, problem.tau.per_row, root.data(),
                                               problem.x.data(), grad.data()});
    add(x, root, problem.x, grad);
}

template <class T>
void try_ranking(Size size, Random& random) {
    const int64_t most = std::min<int64_t>(size.n, size.n > 300 ? 20 : 70);
    const int64_t k = random.one_in(4) ? most : random.between(1, most);
    size.rows = std::max<int64_t>(1, std::min(size.rows, 100000 / (size.n * k)));
    const Problem<T> problem(size, random);
    const Array<T> plan(size.rows * size.n * k, random), pivot(size.rows * (k + 1), random),
        grad(size.rows * size.n * k, random), grad_x(size.rows * size.n, random);
    const Array<double> offset(size.rows * k, random);
    const Array<uint8_t> converged(size.rows, random);
    fill(grad, random);
    ranking(RankingCall<T>{problem.scores, k, problem.tau.per_row, plan.data(), pivot.data(),
                           offset.data(), converged.data()});
    ranking_gradient(RankingGradientCall<T>{problem.scores, k, problem.tau.per_row, pivot.data(),
                                            offset.data(), grad.data(), grad_x.data()});
    add(plan, pivot, offset, converged, grad_x);
}

// Lengths around those at which the library changes its way: a vector, a short list, a piece.
Size draw_size(Random& random) {
    const int64_t around[] = {1, 256, 512, 8192, 3 * 8192};
    int64_t n = random.between(1, 70);
    if (random.one_in(3))
        n = std::max<int64_t>(1, around[random.between(0, 4)] + random.between(-3, 3));
    // Few rows; or enough for the threads of the library.
    const int64_t rows = random.one_in(4) ? 1 + 33000 / n : random.between(1, 5);
    return {rows, n, random.between(1, 5), nullptr};
}

// Rows of any lengths up to that size, but no more elements than in all of its rows.
struct RaggedSize {
    Array<int64_t> offsets;
    Size size;

    RaggedSize(Size even, Random& random) : offsets(even.rows + 1, random), size(even) {
        int64_t end = 0;
        for (int64_t& offset : offsets) {
            offset = end;
            end += random.one_in(4) ? 0 : random.between(0, random.one_in(3) ? even.n : 9);
        }
        size.n = *(offsets.end() - 1);
        size.offsets = offsets.data();
    }
};

void try_case(uint64_t seed) {
    Random random(seed);
    Size size = draw_size(random);
    const auto kernel = random.between(0, 10);
    const RaggedSize ragged(size, random);
    if (kernel < 4 && ragged.size.n > 0 && random.one_in(2)) size = ragged.size;
    switch (kernel) {
        case 0:
            return try_threshold<float>(size, random);
        case 1:
            return try_threshold<double>(size, random);
        case 2:
            return try_softmax<float>(size, random);
        case 3:
            return try_softmax<double>(size, random);
        case 4:
            return try_hard_softmax<float>(size, random);
        case 5:
            return try_hard_softmax<double>(size, random);
        case 6:
            return try_in_place<float, float>(size, random);
        case 7:
            return try_in_place<double, double>(size, random);
        case 8:
            return try_in_place<float, BFloat16>(size, random);
        case 9:
            return try_ranking<float>(size, random);
        default:
            return try_ranking<double>(size, random);
    }
}

std::vector<std::string> instruction_sets() {
    std::vector<std::string> found;
    for (const char* name : {"baseline", "AVX2", "AVX-512"}) {
        if (softtopk_use_instruction_set(name)) found.push_back(name);
    }
    return found;
}

void run_cases(uint64_t begin, uint64_t end) {
    std::atomic<uint64_t> next{begin};
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
        threads.emplace_back([&] {
            for (uint64_t seed = next++; seed < end; seed = next++) try_case(seed);
        });
    }
    for (auto& thread : threads) thread.join();
}

void run(uint64_t cases) {
    // OpenMP's threads first if this program is linked with it, then those of the library.
    for (int own = 0; own < 2; ++own) {
        if (own) softtopk_after_fork();
        for (const auto& name : instruction_sets()) {
            softtopk_use_instruction_set(name.c_str());
            run_cases(own * cases, (own + 1) * cases);
        }
    }
    std::printf("%016llx\n", static_cast<unsigned long long>(checksum.load()));
}

// A fault that the library commits because of wrong arguments.
void commit(const std::string& fault) {
    // Whole vectors; or a part at the end, before a page that cannot be accessed.
    const bool on_the_heap = fault.find("page") == std::string::npos;
    const int64_t n = on_the_heap ? 32 : 37;
    const bool reads = fault.find("read") == 0, writes = fault.find("write") == 0;
    const Array<float> x(n - reads, on_the_heap), a(n - writes, on_the_heap);
    std::fill(x.begin(), x.end(), 0.5f);
    const bool misaligned = fault == "misaligned", overflows = fault == "overflow";
    const auto from =
        reinterpret_cast<const float*>(reinterpret_cast<char*>(x.data()) + misaligned);
    const Size size{overflows ? std::numeric_limits<int64_t>::max() : 1, n, 1, nullptr};
    // The smallest are wanted where single elements have to be read: vectors may be unaligned.
    const Scores<float> scores{size, from, nullptr, !misaligned};
    const ThresholdCall<float> call{scores,   {3.0, nullptr}, {1.0, nullptr},
                                    a.data(), nullptr,        nullptr};
    if (fault != "race") {
        threshold(call);
        return;
    }
    const auto repeat = [&] {
        for (int i = 0; i < 100; ++i) threshold(call);
    };
    std::thread other(repeat);
    repeat();
    other.join();
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (arguments.size() == 1 && arguments[0] == "sets") {
        for (const auto& name : instruction_sets()) std::puts(name.c_str());
        return 0;
    }
    if (arguments.size() == 2 && arguments[0] == "run") {
        run(std::stoull(arguments[1]));
        return 0;
    }
    if (arguments.size() == 3 && arguments[0] == "fault" &&
        softtopk_use_instruction_set(arguments[2].c_str())) {
        commit(arguments[1]);
        return 0;
    }
    return 2;
}
