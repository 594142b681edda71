#include "pool.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#if !defined(_WIN32)
#include <dlfcn.h>
#include <pthread.h>
#endif

namespace softtopk {
namespace {

struct Job {
    void (*function)(void*, int64_t);
    void* context;
    int64_t count;
    int helpers;  // workers with a lower number take part
    std::atomic<int64_t> next{0};

    void work() {
        for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) function(context, i);
    }
};

inline void relax() {
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

// A worker looks out for the next call for a while before it goes to sleep, since calls often
// follow each other closely (forward, backward) and waking takes longer than a short call. It never
// holds up the caller: who has not begun when the tasks run out is not waited for.
class Pool {
  public:
    void run(Job& job) {
        std::unique_lock<std::mutex> mine(in_use_, std::try_to_lock);
        if (!mine.owns_lock()) return job.work();
        {
            std::lock_guard<std::mutex> lock(mutex_);
            start_workers(job.helpers);
            job_ = &job;
            generation_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        job.work();
        std::unique_lock<std::mutex> lock(mutex_);
        job_ = nullptr;
        while (inside_ > 0) {
            for (int i = 0; i < kSpins && inside_ > 0; ++i) {
                lock.unlock();
                relax();
                lock.lock();
            }
            if (inside_ > 0) done_.wait(lock);
        }
    }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::microseconds kLookout{100};
    static constexpr int kSpins = 400;

    bool called(uint64_t seen) const { return generation_.load(std::memory_order_acquire) != seen; }

    void start_workers(int wanted) {
        for (; workers_ < wanted; ++workers_) {
            try {
                std::thread(&Pool::serve, this, workers_, generation_.load()).detach();
            } catch (const std::system_error&) {
                return;  // the system allows no more: go on with fewer
            }
        }
    }

    void serve(int number, uint64_t seen) {
        for (;;) {
            const auto until = Clock::now() + kLookout;
            do {
                for (int i = 0; i < 64 && !called(seen); ++i) relax();
            } while (!called(seen) && Clock::now() < until);
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return generation_.load() != seen; });
            seen = generation_.load();
            Job* job = job_;
            if (job == nullptr || number >= job->helpers) continue;
            ++inside_;
            lock.unlock();
            job->work();
            lock.lock();
            if (--inside_ == 0) done_.notify_one();
        }
    }

    std::mutex in_use_, mutex_;
    std::condition_variable wake_, done_;
    std::atomic<uint64_t> generation_{0};
    Job* job_ = nullptr;
    int workers_ = 0, inside_ = 0;
};

// Never destroyed: at exit and in a forked child its threads may be gone or still waiting.
std::atomic<Pool*> own{nullptr};

// torch's own threads, if it uses OpenMP, through the function that GNU's and Intel's libraries
// export for compiled code. A second set of threads would compete with torch's for the cores, since
// OpenMP's keep a core busy for some milliseconds after each call.
using Parallel = void (*)(void (*)(void*), void*, unsigned threads, unsigned flags);
std::atomic<Parallel> openmp{nullptr};
std::atomic<bool> forked{false};

void set_up() {
    own = new Pool;
#if !defined(_WIN32)
    if (!forked) openmp = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
#endif
}

}  // namespace

void after_fork() {
    forked = true;
    openmp = nullptr;
    if (own.load() != nullptr) own = new Pool;
}

#if !defined(_WIN32)
[[maybe_unused]] const int watching = pthread_atfork(nullptr, nullptr, after_fork);
#endif

void run(int64_t count, int threads, void (*function)(void*, int64_t), void* context) {
    Job job;
    job.function = function;
    job.context = context;
    job.count = count;
    job.helpers = static_cast<int>(count < threads ? count : threads) - 1;
    static std::once_flag once;
    std::call_once(once, set_up);
    if (const Parallel parallel = openmp) {
        const auto all = static_cast<unsigned>(threads);
        parallel([](void* j) { static_cast<Job*>(j)->work(); }, &job, all, 0);
    } else {
        own.load()->run(job);
    }
}

}  // namespace softtopk
