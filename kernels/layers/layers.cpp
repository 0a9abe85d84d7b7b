// What a decoder computes between its matrix products, each in one pass over its rows: the residual sum
// with its RMSNorm, the gate of the MLP, and the rotation of queries and keys with their norms.
//
// models/decoder.py defines what is computed. Arithmetic is float, and rounds once at the end, but for
// the residual sum, which is rounded before its norm. The sums of a row run in an order that depends
// on its width alone, so a row's result does not depend on the rows beside it.

#include "../registers.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace {

constexpr int64_t SMALL = 1 << 15;  // numbers not worth a second thread

inline Floats wide(const float* from) { return load<Floats>(from); }

inline Floats wide(const bf16* from) {
  return (Floats)(__builtin_convertvector(load<Halves>(from), Words) << 16);
}

inline void narrow(float* to, Floats x) { store(to, x); }

#if defined(__AVX512BF16__)
inline void narrow(bf16* to, Floats x) {  // an instruction instead of six
  store(to, (Halves)_mm512_cvtneps_pbh((__m512)x));
}
#else
inline void narrow(bf16* to, Floats x) { store(to, to_halves(x)); }
#endif

// A vector of a row whose numbers are all there; past a row's end a vector has fewer, as an int64_t.
typedef std::integral_constant<int64_t, W> All;

// Calls use(at, x, y, count) for each vector of one or two rows, zeros past their end.
template <typename T, typename Use>
inline void each(int64_t width, const T* x, const T* y, Use use) {
  int64_t i = 0;
  for (; i + W <= width; i += W) use(i, wide(x + i), y ? wide(y + i) : Floats{}, All());
  if (i == width) return;
  T ends[2][W] = {};
  std::copy(x + i, x + width, ends[0]);
  if (y) std::copy(y + i, y + width, ends[1]);
  use(i, wide(ends[0]), wide(ends[1]), width - i);
}

template <typename T>
inline void narrow_some(T* to, Floats x, All) {
  narrow(to, x);
}

template <typename T>
inline void narrow_some(T* to, Floats x, int64_t count) {
  T some[W];
  narrow(some, x);
  std::copy(some, some + count, to);
}

inline Floats some_floats(const float* from, All) { return load<Floats>(from); }

inline Floats some_floats(const float* from, int64_t count) {
  float some[W] = {};
  std::copy(from, from + count, some);
  return load<Floats>(some);
}

inline Floats rounded_to(const float*, Floats x) { return x; }
inline Floats rounded_to(const bf16*, Floats x) { return (Floats)(rounded(x) & 0xffff0000); }

inline float scale_of(Floats squares, int64_t width, float eps) {
  return 1 / std::sqrt(reduce(squares, [](auto a, auto b) { return a + b; }) / width + eps);
}

// summed = x + y, normed = summed / rms(summed) * weight; y and summed may be null.
template <typename T>
void add_rms_norm(const T* x, const T* y, const float* weight, float eps, int64_t rows,
                  int64_t width, T* summed, T* normed) {
#pragma omp parallel for schedule(static) if (rows * width > SMALL)
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r * width;
    Floats squares{};
    each(width, x + at, y ? y + at : nullptr, [&](int64_t i, Floats a, Floats b, auto count) {
      const Floats sum = rounded_to(x, a + b);
      squares += sum * sum;
      if (summed) narrow_some(summed + at + i, sum, count);
    });
    const float scale = scale_of(squares, width, eps);
    each(width, (summed ? summed : x) + at, static_cast<const T*>(nullptr),
         [&](int64_t i, Floats a, Floats, auto count) {
           narrow_some(normed + at + i, a * scale * some_floats(weight + i, count), count);
         });
  }
}

// out = activation(gate) * up, where x is [rows][gate and up, `width` each].
template <typename T, typename Activation>
void gated(const T* x, int64_t rows, int64_t width, T* out, Activation activation) {
#pragma omp parallel for schedule(static) if (rows * width > SMALL)
  for (int64_t r = 0; r < rows; ++r) {
    const T* const gate = x + r * 2 * width;
    T* const to = out + r * width;
    each(width, gate, gate + width, [&](int64_t i, Floats a, Floats b, auto count) {
      narrow_some(to + i, activation(a) * b, count);
    });
  }
}

// The heads of a token: their norms, if there is a weight, and their rotation.
template <typename T>
void rotate_heads(T* x, int64_t heads, int64_t dim, const float* cos, const float* sin,
                  const float* weight, float eps, float scale) {
  for (int64_t h = 0; h < heads; ++h, x += dim) {
    float head[512];
    Floats squares{};
    each(dim, x, static_cast<const T*>(nullptr), [&](int64_t i, Floats a, Floats, int64_t) {
      squares += a * a;
      store(head + i, a);
    });
    const float factor = weight ? scale * scale_of(squares, dim, eps) : scale;
    if (weight)
      for (int64_t i = 0; i < dim; ++i) head[i] *= weight[i];
    const int64_t half = dim / 2;
    const auto turn = [&](int64_t i, auto count) {
      const Floats a = some_floats(head + i, count) * factor;
      const Floats b = some_floats(head + half + i, count) * factor;
      const Floats c = some_floats(cos + i, count), s = some_floats(sin + i, count);
      narrow_some(x + i, a * c - b * s, count);
      narrow_some(x + half + i, b * c + a * s, count);
    };
    int64_t i = 0;
    for (; i + W <= half; i += W) turn(i, All());
    if (i < half) turn(i, half - i);
  }
}

// Queries and keys in place: [tokens][heads][dim], from token to token as many elements as a stride
// says. cos, sin: [tokens][dim / 2], dim being 496 at most.
template <typename T>
void rotate(T* q, T* k, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t dim,
            int64_t q_stride, int64_t k_stride, const float* cos, const float* sin,
            const float* q_weight, const float* k_weight, float eps, float scale) {
#pragma omp parallel for schedule(static) if (tokens * heads * dim > SMALL)
  for (int64_t t = 0; t < tokens; ++t) {
    const float *const c = cos + t * dim / 2, *const s = sin + t * dim / 2;
    rotate_heads(q + t * q_stride, heads, dim, c, s, q_weight, eps, scale);
    rotate_heads(k + t * k_stride, kv_heads, dim, c, s, k_weight, eps, 1.0f);
  }
}

}  // namespace

#define EXPORT(T, name)                                                                          \
  extern "C" void add_rms_norm_##name(const T* x, const T* y, const float* weight, float eps,    \
                                      int64_t rows, int64_t width, T* summed, T* normed) {       \
    add_rms_norm(x, y, weight, eps, rows, width, summed, normed);                                \
  }                                                                                              \
  extern "C" void gated_##name(const T* x, int64_t rows, int64_t width, int32_t with_gelu,       \
                               T* out) {                                                         \
    const auto by = [&](auto activation) { gated(x, rows, width, out, activation); };             \
    with_gelu ? by([](Floats g) { return gelu(g); }) : by([](Floats g) { return silu(g); });      \
  }                                                                                              \
  extern "C" void rotate_##name(T* q, T* k, int64_t tokens, int64_t heads, int64_t kv_heads,     \
                                int64_t dim, int64_t q_stride, int64_t k_stride,                 \
                                const float* cos, const float* sin, const float* q_weight,       \
                                const float* k_weight, float eps, float scale) {                 \
    rotate(q, k, tokens, heads, kv_heads, dim, q_stride, k_stride, cos, sin, q_weight, k_weight, \
           eps, scale);                                                                          \
  }
EXPORT(float, f32)
EXPORT(bf16, bf16)
