// Ragged attention on a CPU: each row of an iteration brings n new tokens and attends to its own
// past, whatever its length; one call serves a whole iteration of one layer.
//
// What it computes is defined by its plain-torch twin, gpt/attention.py:attend_rows. Keys and values
// are kept in float or bfloat16; all arithmetic is float. Loops are written so that a compiler
// vectorises them for the machine at hand; nothing here names an instruction set.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int W = 16;  // lanes; compilers split these vectors where registers are narrower
typedef float Floats __attribute__((vector_size(4 * W)));
typedef uint32_t Words __attribute__((vector_size(4 * W)));
typedef uint16_t Halves __attribute__((vector_size(2 * W)));

struct bf16 {
  uint16_t bits;
};

inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline Floats load(const bf16* from) {
  Halves half;
  std::memcpy(&half, from, sizeof half);
  const Words wide = __builtin_convertvector(half, Words) << 16;
  Floats x;
  std::memcpy(&x, &wide, sizeof x);
  return x;
}

inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

inline void store(bf16* to, Floats x) {
  Words wide;
  std::memcpy(&wide, &x, sizeof wide);
  wide += 0x7fff + ((wide >> 16) & 1);  // round to nearest, ties to even
  const Halves half = __builtin_convertvector(wide >> 16, Halves);
  std::memcpy(to, &half, sizeof half);
}

// Neighbours added: sums of a's pairs, then sums of b's.
inline Floats add_pairs(Floats a, Floats b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

// exp for x <= 0 to about 2 ulp, branch-free (expf does not vectorise): Cephes' scheme, 2^n times a
// polynomial on [-ln2/2, ln2/2].
inline float exp_negative(float x) {
  x = std::max(x, -87.0f);
  const float n = std::nearbyint(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &exponent, sizeof scale);
  return p * scale;
}

// Caches are read once per iteration, in runs too short for the processor to foresee the next one:
// values are fetched while the scores of their keys are computed, which saved a fifth in bfloat16.
template <int C, typename T>
inline void prefetch(const T* at) {
  for (size_t byte = 0; byte < C * W * sizeof(T); byte += 64)
    __builtin_prefetch(reinterpret_cast<const char*>(at) + byte);
}

// One query of one head over `length` cached keys and values, `C` vectors of W lanes each; scores
// has room for length + W. Sixteen keys at a time, so that their sums are taken together.
template <typename T, int C>
void attend_head(const T* q, T* out, const T* keys, const T* values, int64_t length,
                 float* scores) {
  constexpr int dim = C * W;
  Floats query[C];
  for (int c = 0; c < C; ++c) query[c] = load(q + c * W) / std::sqrt(static_cast<float>(dim));

  for (int64_t t = 0; t < length; t += W) {
    Floats dots[W];
    for (int i = 0; i < W; ++i) {
      const T* key = keys + std::min(t + i, length - 1) * dim;
      prefetch<C>(values + std::min(t + i, length - 1) * dim);
      dots[i] = query[0] * load(key);
      for (int c = 1; c < C; ++c) dots[i] += query[c] * load(key + c * W);
    }
    for (int n = W / 2; n > 0; n /= 2)
      for (int i = 0; i < n; ++i) dots[i] = add_pairs(dots[2 * i], dots[2 * i + 1]);
    store(scores + t, dots[0]);
  }

  const float peak = *std::max_element(scores, scores + length);
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t t = 0; t < length; ++t) {
    scores[t] = exp_negative(scores[t] - peak);
    total += scores[t];
  }

  Floats sum[C] = {};
  for (int64_t t = 0; t < length; ++t)
    for (int c = 0; c < C; ++c) sum[c] += scores[t] * load(values + t * dim + c * W);
  for (int c = 0; c < C; ++c) store(out + c * W, sum[c] / total);
}

template <typename T, int C>
void attend_rows(const T* q, const T* k, const T* v, T* out, int64_t rows, int64_t heads,
            int64_t token_stride, const int64_t* first, const int64_t* count, const int64_t* start,
                 const int64_t* head_stride, const int64_t* key_at, const int64_t* value_at) {
  constexpr int64_t dim = C * W;
  int64_t longest = 0;
  for (int64_t r = 0; r < rows; ++r) longest = std::max(longest, start[r] + count[r]);
#pragma omp parallel
  {
    std::vector<float> scores(longest + W);
    // rows differ in length, so tasks are handed out as threads come free
#pragma omp for schedule(dynamic, 4)
    for (int64_t task = 0; task < rows * heads; ++task) {
      const int64_t r = task / heads, h = task % heads;
      T* keys = reinterpret_cast<T*>(key_at[r]) + h * head_stride[r];
      T* values = reinterpret_cast<T*>(value_at[r]) + h * head_stride[r];
      for (int64_t i = 0; i < count[r]; ++i) {
        const int64_t token = (first[r] + i) * token_stride + h * dim;
        std::memcpy(keys + (start[r] + i) * dim, k + token, dim * sizeof(T));
        std::memcpy(values + (start[r] + i) * dim, v + token, dim * sizeof(T));
      }
      for (int64_t i = 0; i < count[r]; ++i) {
        const T* query = q + (first[r] + i) * token_stride + h * dim;
        T* result = out + ((first[r] + i) * heads + h) * dim;
        const int64_t length = start[r] + i + 1;  // causal
        attend_head<T, C>(query, result, keys, values, length, scores.data());
      }
    }
  }
}

template <typename T, typename... Rest>
int32_t attend(int64_t head_dim, Rest... rest) {
  switch (head_dim) {
    case 16: attend_rows<T, 1>(rest...); return 0;
    case 32: attend_rows<T, 2>(rest...); return 0;
    case 64: attend_rows<T, 4>(rest...); return 0;
    case 128: attend_rows<T, 8>(rest...); return 0;
    default: return -1;
  }
}

}  // namespace

// q, k, v: views [tokens, heads, head_dim] of one tensor, `token_stride` elements from token to
// token. out: [tokens, heads, head_dim], contiguous. Per row r: tokens first[r] .. first[r] +
// count[r] go to positions start[r] .. of its cache, whose layer lies at key_at[r] and value_at[r]
// as [heads, positions, head_dim] with head_stride[r] elements from head to head. Returns -1 for a
// head_dim it was not built for.
#define EXPORT(name, T)                                                                          \
  extern "C" int32_t name(int64_t head_dim, const T* q, const T* k, const T* v, T* out,          \
                          int64_t rows, int64_t heads, int64_t token_stride,                     \
                          const int64_t* first, const int64_t* count, const int64_t* start,      \
                          const int64_t* head_stride, const int64_t* key_at,                     \
                          const int64_t* value_at) {                                             \
    return attend<T>(head_dim, q, k, v, out, rows, heads, token_stride, first, count, start,     \
                     head_stride, key_at, value_at);                                             \
  }
EXPORT(attend_f32, float)
EXPORT(attend_bf16, bf16)
