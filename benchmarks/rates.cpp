// The limits of a processor, measured by loops that do nothing else: instructions of one kind over
// registers, and reading memory. A reference for benchmarks/limits.py; the server does not use it.

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

namespace {

#if defined(__AVX512F__)
typedef float Floats __attribute__((vector_size(64)));
#else
typedef float Floats __attribute__((vector_size(32)));
#endif
typedef int32_t Ints __attribute__((vector_size(sizeof(Floats))));
constexpr int64_t SUMS = 12;  // more than an instruction's latency times its rate

// Makes the compiler keep a value in a register at this point.
template <typename V>
inline void used(V& value) {
#if defined(__x86_64__)
  asm volatile("" : "+v"(value));
#else
  asm volatile("" : "+m"(value));
#endif
}

// Repeats `step(sum)` on all threads; returns the number of steps.
template <typename V, typename Step>
int64_t repeat(int64_t times, Step step) {
  int64_t done = 0;
#pragma omp parallel reduction(+ : done)
  {
    V sums[SUMS] = {};
    for (int64_t i = 0; i < times; ++i)
#pragma GCC unroll 12
      for (int s = 0; s < SUMS; ++s) {
        sums[s] = step(sums[s]);
        used(sums[s]);
      }
    done += times * SUMS;
  }
  return done;
}

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define HAS_AMX
struct alignas(64) Tiles {
  uint8_t palette = 1, first_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

template <typename Step>
int64_t repeat_tiles(int64_t times, Step step) {
  int64_t done = 0;
#pragma omp parallel reduction(+ : done)
  {
    const Tiles shapes;
    asm volatile("ldtilecfg %0" : : "m"(shapes));
    for (int64_t i = 0; i < times; ++i) step();
    _tile_release();
    done += times * 4;
  }
  return done;
}
#endif

}  // namespace

// Each returns the number of operations: a multiplication and an addition are two.

extern "C" int64_t rate_f32(int64_t times) {
  Floats a = Floats{} + 0.5f, b = Floats{} + 0.25f;
  used(a), used(b);
  return repeat<Floats>(times, [=](Floats sum) { return sum + a * b; }) * 2 * sizeof(Floats) / 4;
}

#if defined(HAS_AMX)
extern "C" int64_t rate_amx_bf16(int64_t times) {
  return 2 * 16 * 16 * 32 * repeat_tiles(times, [] {
           _tile_dpbf16ps(0, 4, 6);
           _tile_dpbf16ps(1, 4, 7);
           _tile_dpbf16ps(2, 5, 6);
           _tile_dpbf16ps(3, 5, 7);
         });
}

extern "C" int64_t rate_amx_int8(int64_t times) {
  return 2 * 16 * 16 * 64 * repeat_tiles(times, [] {
           _tile_dpbssd(0, 4, 6);
           _tile_dpbssd(1, 4, 7);
           _tile_dpbssd(2, 5, 6);
           _tile_dpbssd(3, 5, 7);
         });
}
#endif

#if defined(__AVX512BF16__)
extern "C" int64_t rate_dot_bf16(int64_t times) {
  Ints a = Ints{} + 0x3f003f00;
  used(a);
  return repeat<Floats>(times, [=](Floats sum) {
           return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)a);
         }) * 4 * 16;
}
#endif

#if defined(__AVX512VNNI__)
extern "C" int64_t rate_dot_int8(int64_t times) {
  Ints a = Ints{} + 0x01010101;
  used(a);
  return repeat<Ints>(times, [=](Ints sum) {
           return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)a, (__m512i)a);
         }) * 8 * 16;
}
#elif defined(__AVXVNNI__)
extern "C" int64_t rate_dot_int8(int64_t times) {
  Ints a = Ints{} + 0x01010101;
  used(a);
  return repeat<Ints>(times, [=](Ints sum) {
           return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)a);
         }) * 8 * 8;
}
#endif

// Reads `size` bytes once, each thread at `STREAMS` places at a time; returns their sum.
extern "C" int64_t read_memory(const char* from, int64_t size) {
  constexpr int64_t STREAMS = 8, LINE = 64, CHUNK = 1 << 18;
  int64_t total = 0;
#pragma omp parallel for schedule(static) reduction(+ : total)
  for (int64_t chunk = 0; chunk < size / (STREAMS * CHUNK); ++chunk) {
    Ints sum[STREAMS] = {};
    const char* const begin = from + chunk * STREAMS * CHUNK;
    for (int64_t at = 0; at < CHUNK; at += LINE)
#pragma GCC unroll 8
      for (int64_t s = 0; s < STREAMS; ++s) {
        const char* const line = begin + s * CHUNK + at;
        __builtin_prefetch(line + 1024);
        Ints x;
        for (int64_t byte = 0; byte < LINE; byte += sizeof x) {
          std::memcpy(&x, line + byte, sizeof x);
          sum[s] += x;
        }
      }
    for (const Ints& each : sum) total += each[0];
  }
  return total;
}
