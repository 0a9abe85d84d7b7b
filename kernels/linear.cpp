// Linear layers over few rows: y = x w^T + bias, and GELU where asked. While a batch decodes, each
// row of the input is one token, and a layer is a matrix read once from memory for 1 to some 64
// rows. Torch's kernels are made for more.
//
// Weights lie in panels of W outputs, so that one vector of weights meets the broadcast inputs of up
// to MAX_ROWS rows, whose sums stay in registers. Weights come from memory in one straight line,
// once, and the inputs from the second-level cache, packed so that they too come in one line: the
// tile and the packing of Goto and van de Geijn ("Anatomy of High-Performance Matrix
// Multiplication", ACM TOMS 34(3), 2008), without the blocking that more rows would ask for.
//
// A sum always runs over the inputs in the same order, so the result for a row is the same to the
// last bit whatever rows share its batch.
//
// Built for AVX-512 alone, whose 32 registers the tile is cut for. bfloat16 multiplies pairs of
// inputs (AVX512_BF16), and stays with torch where the processor has AMX, which is faster. Other
// processors find no function here.

#if defined(__AVX512F__)

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace {

constexpr int W = 16;               // outputs in a panel: lanes of a vector
constexpr int MAX_ROWS = 28;        // sums in registers; the rest hold weights and inputs
constexpr int64_t BLOCK_ROWS = 3 * MAX_ROWS;  // rows at once, or their inputs left the cache
constexpr int64_t RUN = 64;         // inputs of a row that are packed together
constexpr int64_t AHEAD = 128;      // vectors of weights fetched ahead
constexpr int64_t SMALL = 1 << 17;  // multiplications not worth a second thread

typedef float Floats __attribute__((vector_size(4 * W)));
typedef uint32_t Words __attribute__((vector_size(4 * W)));
typedef uint16_t Halves __attribute__((vector_size(2 * W)));

inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

// What one broadcast word of the inputs is: a float, or two neighbouring bfloat16.
typedef float Single;
typedef uint32_t Pair;

inline Floats multiply_add(Floats sum, const Single* weights, Single input) {
  return sum + load(weights) * input;
}

#if defined(__AVX512BF16__)
inline Floats multiply_add(Floats sum, const Pair* weights, Pair input) {
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(weights),
                                  (__m512bh)_mm512_set1_epi32(static_cast<int>(input)));
}
#endif

// R rows times one panel: inputs [depth][R], weights [depth][W], sums [R][W].
template <typename T, int R>
void tile(int64_t depth, const T* inputs, const T* weights, float* sums) {
  Floats sum[R] = {};
  for (int64_t k = 0; k < depth; ++k, inputs += R, weights += W) {
    __builtin_prefetch(weights + AHEAD * W);
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r) sum[r] = multiply_add(sum[r], weights, inputs[r]);
  }
#pragma GCC unroll 32
  for (int r = 0; r < R; ++r) store(sums + r * W, sum[r]);
}

template <typename T>
using Tile = void (*)(int64_t, const T*, const T*, float*);

template <typename T, int... I>
Tile<T> tile_of(int64_t rows, std::integer_sequence<int, I...>) {
  static constexpr Tile<T> tiles[] = {tile<T, I + 1>...};
  return tiles[rows - 1];
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
  Floats scale;
  std::memcpy(&scale, &exponent, sizeof scale);
  const Floats small = p * scale;
  return (twice < 0.0f ? x * small : x) / (1.0f + small);
}

template <typename T, typename Vector>
inline void write_some(T* to, Vector x, int64_t left) {
  if (left >= W)
    std::memcpy(to, &x, sizeof x);
  else
    std::memcpy(to, &x, sizeof(T) * left);
}

// One row's results of one panel, of whose outputs `left` exist.
inline void write(float* to, Floats x, int64_t left) { write_some(to, x, left); }

inline void write(uint16_t* to, Floats x, int64_t left) {
  Words bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits += 0x7fff + ((bits >> 16) & 1);  // round to nearest, ties to even
  const Halves halves = __builtin_convertvector(bits >> 16, Halves);
  write_some(to, halves, left);
}

template <typename T, typename Y>
void linear_block(const T* x, int64_t rows, int64_t depth, const T* weights, const float* bias,
                  bool with_gelu, Y* y, int64_t outputs) {
  static thread_local std::vector<T> kept;
  if (static_cast<int64_t>(kept.size()) < rows * depth) kept.resize(rows * depth);
  T* const packed = kept.data();  // [tile][input][row of tile]

  const int64_t tiles = (rows + MAX_ROWS - 1) / MAX_ROWS;
  const int64_t shorter = rows / tiles, longer = rows % tiles;  // the first tiles have a row more
  const auto sizes = std::make_integer_sequence<int, MAX_ROWS>();
  const Tile<T> short_tile = tile_of<T>(shorter, sizes);
  const Tile<T> long_tile = tile_of<T>(longer ? shorter + 1 : shorter, sizes);

#pragma omp parallel if (rows * depth * outputs > SMALL)
  {
#pragma omp for schedule(static)
    for (int64_t k0 = 0; k0 < depth; k0 += RUN)
      for (int64_t t = 0, first = 0; t < tiles; ++t) {
        const int64_t count = shorter + (t < longer), n = std::min(RUN, depth - k0);
        T* to = packed + first * depth + k0 * count;
        for (int64_t r = 0; r < count; ++r, ++first)
          for (int64_t k = 0; k < n; ++k) to[k * count + r] = x[first * depth + k0 + k];
      }

#pragma omp for schedule(static)
    for (int64_t at = 0; at < outputs; at += W) {
      float sums[BLOCK_ROWS * W];
      for (int64_t t = 0, first = 0; t < tiles; first += shorter + (t < longer), ++t)
        (t < longer ? long_tile : short_tile)(depth, packed + first * depth, weights + at * depth,
                                              sums + first * W);
      for (int64_t r = 0; r < rows; ++r) {
        const Floats sum = load(sums + r * W) + load(bias + at);
        write(y + r * outputs + at, with_gelu ? gelu(sum) : sum, outputs - at);
      }
    }
  }
}

template <typename T, typename Y>
void linear(const T* x, int64_t rows, int64_t depth, const T* weights, const float* bias,
            bool with_gelu, Y* y, int64_t outputs) {
  const int64_t blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = rows * b / blocks, end = rows * (b + 1) / blocks;
    linear_block(x + begin * depth, end - begin, depth, weights, bias, with_gelu,
                 y + begin * outputs, outputs);
  }
}

}  // namespace

// x: [rows][depth] words, y: [rows][outputs], both contiguous. weights: [panel][depth][W] words,
// bias: [panel][W] floats, both filled up with zeros behind the last output. A word is a float, or
// two neighbouring bfloat16, of which depth counts the pairs.
extern "C" void linear_f32(const Single* x, int64_t rows, int64_t depth, const Single* weights,
                           const float* bias, int32_t with_gelu, float* y, int64_t outputs) {
  linear(x, rows, depth, weights, bias, with_gelu != 0, y, outputs);
}

#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
extern "C" void linear_bf16(const Pair* x, int64_t rows, int64_t depth, const Pair* weights,
                            const float* bias, int32_t with_gelu, uint16_t* y, int64_t outputs) {
  linear(x, rows, depth, weights, bias, with_gelu != 0, y, outputs);
}
#endif

#endif
