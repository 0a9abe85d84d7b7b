// Shared by the linear kernels: turning rows of inputs into words, and sums into outputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int W = 16;          // outputs in a panel
constexpr int PANELS = 2;      // panels whose weights are stored together, word by word
constexpr int OUTPUTS = W * PANELS;
constexpr int64_t SMALL = 1 << 17;  // multiplications not worth a second thread

typedef float Floats __attribute__((vector_size(4 * W)));
typedef int32_t Ints __attribute__((vector_size(4 * W)));
typedef uint32_t Words __attribute__((vector_size(4 * W)));
typedef uint16_t Halves __attribute__((vector_size(2 * W)));

// A linear layer and its inputs. Weights: [group][word][PANELS][W] words of 32 bits; bias and scales
// [group][OUTPUTS]. All are padded with zeros past the last output and the last input.
struct Layer {
  const void* x;         // [rows][depth]
  int64_t rows, depth;
  const void* weights;
  const float* bias;
  const float* scales;   // of int8 weights, by output
  bool gelu;
  void* y;               // [rows][outputs]
  int64_t outputs;
};

struct bf16 {
  uint16_t bits;
};

inline float widen(float x) { return x; }

inline float widen(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

template <typename Vector>
using Anywhere __attribute__((aligned(1), may_alias)) = Vector;

template <typename Vector, typename T>
inline Vector load(const T* from) {
  return *reinterpret_cast<const Anywhere<Vector>*>(from);
}

template <typename Vector, typename T>
inline void store(T* to, Vector x) {
  *reinterpret_cast<Anywhere<Vector>*>(to) = x;
}

// x sigmoid(2u), which is x (1 + tanh u) / 2: GELU's tanh form. The exponential is of a negative
// number, by Cephes' scheme as in attention.cpp: 2^n times a polynomial on [-ln2/2, ln2/2].
inline Floats gelu(Floats x) {
  const Floats twice = 1.5957691216f * (x + 0.044715f * x * x * x);
  const Floats negative = twice < 0.0f ? twice : -twice;
  const Floats least = Floats{} - 87.0f;
  const Floats power = negative < least ? least : negative;
  const float shift = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer
  const Floats n = (power * 1.44269504f + shift) - shift;
  const Floats r = (power - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Words exponent = __builtin_convertvector(n + 127.0f, Words) << 23;
  const Floats small = p * load<Floats>(&exponent);
  return (twice < 0.0f ? x * small : x) / (1.0f + small);
}

template <typename T, typename Vector>
inline void write_some(T* to, Vector x, int64_t left) {
  if (left >= W)
    store(to, x);
  else
    std::memcpy(to, &x, sizeof(T) * left);
}

// One row's results for one panel, which has `left` outputs.
inline void write(float* to, Floats x, int64_t left) { write_some(to, x, left); }

inline void write(bf16* to, Floats x, int64_t left) {
  Words bits = load<Words>(&x);
  bits += 0x7fff + ((bits >> 16) & 1);  // round to nearest, ties to even
  write_some(to, __builtin_convertvector(bits >> 16, Halves), left);
}

// Sums of one row and the group of panels that begins at output `at`.
template <typename Y>
inline void finish(const Layer& layer, int64_t row, int64_t at, const Floats* sums) {
  Y* const to = static_cast<Y*>(layer.y) + row * layer.outputs;
  for (int p = 0; p < PANELS; ++p, at += W) {
    if (at >= layer.outputs) return;
    const Floats sum = sums[p] + load<Floats>(layer.bias + at);
    write(to + at, layer.gelu ? gelu(sum) : sum, layer.outputs - at);
  }
}

constexpr float LEAST = 1e-30f;  // a row of smaller inputs counts as zeros: 127 / x must be finite

// Converts a row of inputs to signed bytes, the largest being 127; returns their scale.
// `to` has room for `padded` bytes.
inline float quantise(const bf16* x, int64_t depth, int8_t* to, int64_t padded) {
  uint16_t most = 0;  // without its sign a bfloat16 is ordered like its bits
  for (int64_t k = 0; k < depth; ++k) most = std::max<uint16_t>(most, x[k].bits & 0x7fff);
  const float largest = widen(bf16{most});
  const float factor = largest > LEAST ? 127.0f / largest : 0.0f;
  const float shift = 12582912.0f;
  for (int64_t k = 0; k < depth; ++k) {
    const float rounded = std::fma(widen(x[k]), factor, shift);  // once, of the exact product
    int32_t bits;
    std::memcpy(&bits, &rounded, sizeof bits);
    to[k] = static_cast<int8_t>(bits);  // the mantissa's last byte
  }
  std::memset(to + depth, 0, padded - depth);
  return largest / 127.0f;
}

// Memory that a thread keeps from call to call, one piece for each purpose.
enum Purpose { PACKED, LINE, LINES, QUANTISED, SCALES, SUMS };

template <typename T, Purpose>
T* kept(int64_t size) {
  static thread_local std::vector<T> memory;
  if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
  return memory.data();
}

}  // namespace

#define EXPORT(name, function)                                                                   \
  extern "C" void name(const void* x, int64_t rows, int64_t depth, const void* weights,          \
                       const float* bias, const float* scales, int32_t with_gelu, void* y,       \
                       int64_t outputs) {                                                        \
    function({x, rows, depth, weights, bias, scales, with_gelu != 0, y, outputs});               \
  }
