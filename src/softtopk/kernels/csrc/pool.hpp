// Threads that run the tasks of one call together.
#pragma once

#include <cstdint>

namespace softtopk {

// A call of `function(context, i)` for every i in [0, count), in any order, on up to `threads`
// threads including the caller's. Returns when all are done.
//
// Safe to call from several threads: with OpenMP each of them has threads of its own, else one call
// has the workers and the others do their own work. `function` must not throw or call `run`.
void run(int64_t count, int threads, void (*function)(void*, int64_t), void* context);

// To be called in a forked child, where the threads do not exist, OpenMP would wait for them
// forever, and copies of locks may be held: the child starts workers of its own. Once the library
// is loaded that happens by itself.
void after_fork();

// `run` for a callable object.
template <class Body>
void each(int64_t count, int threads, Body body) {
    if (threads <= 1 || count <= 1) {
        for (int64_t i = 0; i < count; ++i) body(i);
        return;
    }
    run(count, threads, [](void* b, int64_t i) { (*static_cast<Body*>(b))(i); }, &body);
}

}  // namespace softtopk
