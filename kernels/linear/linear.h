// Shared by the linear kernels: turning rows of inputs into words, and sums into outputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define VECTOR_LANES 16  // a panel, whatever the registers
#include "../registers.h"

namespace {

constexpr int PANELS = 2;      // panels, of W outputs each, whose weights are stored together, word by word
constexpr int OUTPUTS = W * PANELS;
constexpr int64_t SMALL = 1 << 17;  // multiplications not worth a second thread

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
  write_some(to, to_halves(x), left);
}

// Sums of one row and the panel that begins at output `at`.
template <typename Y>
inline void finish(const Layer& layer, int64_t row, int64_t at, Floats sum) {
  if (at >= layer.outputs) return;
  sum += load<Floats>(layer.bias + at);
  write(static_cast<Y*>(layer.y) + row * layer.outputs + at, layer.gelu ? gelu(sum) : sum,
        layer.outputs - at);
}

// Of the group of panels that begins there.
template <typename Y>
inline void finish(const Layer& layer, int64_t row, int64_t at, const Floats* sums) {
  for (int p = 0; p < PANELS; ++p) finish<Y>(layer, row, at + p * W, sums[p]);
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

// Of memory that a thread keeps.
enum Purpose { PACKED, LINE, LINES, QUANTISED, SCALES, SUMS };

}  // namespace

#define EXPORT(name, function)                                                                   \
  extern "C" void name(const void* x, int64_t rows, int64_t depth, const void* weights,          \
                       const float* bias, const float* scales, int32_t with_gelu, void* y,       \
                       int64_t outputs) {                                                        \
    function({x, rows, depth, weights, bias, scales, with_gelu != 0, y, outputs});               \
  }
