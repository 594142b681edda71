// The C interface of the native library. Python loads it with ctypes (see _library.py), so that the
// library depends on no version of Python or torch.

#include <cstdint>

#if defined(_WIN32)
#define SOFTTOPK_EXPORT extern "C" __declspec(dllexport)
#else
#define SOFTTOPK_EXPORT extern "C" __attribute__((visibility("default")))
#endif

// Raise it, here and in _library.py, with every change of an exported function.
SOFTTOPK_EXPORT int32_t softtopk_abi_version(void) { return 1; }

// The instruction set that was chosen for this machine.
SOFTTOPK_EXPORT const char* softtopk_instruction_set(void) {
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return "AVX-512";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "AVX2";
#endif
  return "baseline";
}
