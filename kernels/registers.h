// What the kernels compute in: vectors of numbers and AMX's tiles.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#if defined(__AVX512BF16__) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && \
    defined(__AMX_INT8__) && defined(__linux__)
#define HAS_AMX
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

// Lanes of a vector: as many as a register has. Compilers split longer vectors, but convert and
// shuffle them one number at a time.
#if defined(VECTOR_LANES)
constexpr int W = VECTOR_LANES;
#elif defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * W)));
typedef int32_t Ints __attribute__((vector_size(4 * W)));
typedef uint32_t Words __attribute__((vector_size(4 * W)));
typedef uint16_t Halves __attribute__((vector_size(2 * W)));

struct bf16 {
  uint16_t bits;
};

template <typename Vector>
struct __attribute__((packed, may_alias)) Anywhere {
  Vector x;
};

template <typename Vector, typename T>
inline Vector load(const T* from) {
  return reinterpret_cast<const Anywhere<Vector>*>(from)->x;
}

template <typename Vector, typename T>
inline void store(T* to, Vector x) {
  reinterpret_cast<Anywhere<Vector>*>(to)->x = x;
}

inline float widen(float x) { return x; }

inline float widen(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// To bfloat16, in the upper half of each word; to nearest, ties to even.
inline Words rounded(Floats x) {
  const Words bits = (Words)x;
  return bits + 0x7fff + ((bits >> 16) & 1);
}

inline Halves to_halves(Floats x) { return __builtin_convertvector(rounded(x) >> 16, Halves); }

// exp for x <= 0 to about 2 ulp: Cephes' scheme, 2^n times a polynomial on [-ln2/2, ln2/2].
inline Floats exp_negative(Floats x) {
  const Floats least = Floats{} - 87.0f;
  x = x > least ? x : least;
  constexpr float shift = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer
  const Floats n = (x * 1.44269504f + shift) - shift;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * (Floats)((__builtin_convertvector(n, Ints) + 127) << 23);
}

// x sigmoid(y). The exponential is of a negative number.
inline Floats times_sigmoid(Floats x, Floats y) {
  const Floats small = exp_negative(y < 0.0f ? y : -y);
  return (y < 0.0f ? x * small : x) / (1.0f + small);
}

inline Floats silu(Floats x) { return times_sigmoid(x, x); }

// x sigmoid(2u), which is x (1 + tanh u) / 2: GELU's tanh form.
inline Floats gelu(Floats x) {
  return times_sigmoid(x, 1.5957691216f * (x + 0.044715f * x * x * x));
}

// The lanes of x combined in pairs, then pairs of pairs, and so on.
template <typename Combine>
inline float reduce(Floats x, Combine combine) {
  float lanes[W];
  store(lanes, x);
  for (int n = W / 2; n; n /= 2)
    for (int i = 0; i < n; ++i) lanes[i] = combine(lanes[i], lanes[i + n]);
  return lanes[0];
}

// Interleaves groups of STEP words: of each pair of groups the first comes from a, the second from b.
// LATE: the later groups of a and b, otherwise the earlier.
template <int STEP, bool LATE, typename Vector, int... I>
inline Vector interleave(Vector a, Vector b, std::integer_sequence<int, I...>) {
  constexpr int N = sizeof...(I);
  return __builtin_shufflevector(
      a, b, (I & STEP ? I + N - (LATE ? 0 : STEP) : I + (LATE ? STEP : 0))...);
}

// lanes[i][j] becomes lanes[j][i].
template <int STEP = 1, typename Vector, int N>
inline void transpose(Vector (&lanes)[N]) {
  static_assert(sizeof(Vector) == 4 * N, "as many lanes as vectors");
  constexpr auto all = std::make_integer_sequence<int, N>();
  if constexpr (STEP < N) {
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i)
      if (!(i & STEP)) {
        const Vector a = lanes[i], b = lanes[i + STEP];
        lanes[i] = interleave<STEP, false>(a, b, all);
        lanes[i + STEP] = interleave<STEP, true>(a, b, all);
      }
    transpose<2 * STEP>(lanes);
  }
}

// Memory that a thread keeps from call to call, one piece for each purpose.
template <typename T, auto PURPOSE>
T* kept(int64_t size) {
  static thread_local std::vector<T> memory;
  if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
  return memory.data();
}

#if defined(HAS_AMX)
constexpr int TILE_ROWS = 16;
constexpr int TILE = TILE_ROWS * 64;  // bytes

struct alignas(64) TileShapes {
  uint8_t palette = 1, first_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Eight tiles, by default of 16 rows of 64 bytes.
struct Tiles {
  explicit Tiles(const TileShapes& shapes = {}) {
    asm volatile("ldtilecfg %0" : : "m"(shapes));  // GCC's intrinsic does not declare this read
  }

  ~Tiles() { _tile_release(); }
};

// Linux requires permission before a process uses tiles, whose state is large.
inline int32_t request_tiles() {
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;
  return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#endif

}  // namespace
