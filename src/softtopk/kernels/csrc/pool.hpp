// Threads that run the tasks of one call together.
#pragma once

#include <cstdint>

namespace softtopk {

// A call of `function(context, i)` for every i in [0, count), in any order, on up to `threads`
// threads including the caller's. Returns when all are done.
//
// Safe to call from several threads (one call has the workers, the others do their own work) and
// after a fork (the child starts workers of its own). `function` must not throw or call `run`.
void run(int64_t count, int threads, void (*function)(void*, int64_t), void* context);

// The same for a callable object.
template <class Body>
void each(int64_t count, int threads, Body body) {
    if (threads <= 1 || count <= 1) {
        for (int64_t i = 0; i < count; ++i) body(i);
        return;
    }
    run(count, threads, [](void* b, int64_t i) { (*static_cast<Body*>(b))(i); }, &body);
}

}  // namespace softtopk
