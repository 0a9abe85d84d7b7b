// Linear layers over few rows: y = x w^T + bias, and optionally GELU. While a batch decodes, each row
// of the input is one token, and a layer is a matrix, read once from memory, for 1 to about 64 rows.
// Torch's kernels are made for more.
//
// Weights are stored in groups of two panels of 16 outputs, so that the vectors of a word of weights
// are multiplied with the broadcast inputs of up to ROWS rows, whose sums stay in registers. A stretch
// of weights and of inputs that the first-level cache holds serves all rows before the next: the tile,
// the packing and the blocking of Goto and van de Geijn ("Anatomy of High-Performance Matrix
// Multiplication", ACM TOMS 34(3), 2008).
//
// A sum always runs over the inputs in the same order, so the result for a row is the same to the
// last bit in any batch.
//
// There is a function for each variant that the processor can run: float32; bfloat16 widened to float32 in registers, or two at a time
// (VDPBF16PS); int8 four at a time (VPDPBUSD). runtime/linear/choice.py measures which is the fastest: on
// some processors VDPBF16PS does no more per second than float32. Needs AVX-512 or AVX2; for other
// processors there is no function.

#if defined(__AVX2__) && defined(__FMA__)

#include "linear.h"

#include <immintrin.h>

#include <utility>

namespace {

#if defined(__AVX512F__) && defined(__AVX512BW__)
constexpr int LANES = 16;
constexpr int ROWS = 14;  // 28 sums in 32 registers
#else
constexpr int LANES = 8;
constexpr int ROWS = 3;   // 12 sums in 16 registers
#endif
constexpr int VECTORS = OUTPUTS / LANES;  // for one row's sums
constexpr int64_t STRETCH = 128;          // words of a row whose weights fit into the first-level cache
constexpr int64_t AHEAD = STRETCH * OUTPUTS * 4;  // bytes: how far ahead weights are fetched
constexpr int64_t FEW = 8;  // rows for which transposing costs more than it saves
constexpr int64_t BLOCK_BYTES = 5 << 18;  // of inputs at once, as the second-level cache holds

typedef float Lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t IntLanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t WordLanes __attribute__((vector_size(4 * LANES)));

inline Lanes broadcast(float x) {  // GCC does not treat x + zeros as a copy, and adds
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return (Lanes)_mm512_set1_ps(x);
#else
  return (Lanes)_mm256_set1_ps(x);
#endif
}

// Completes a row's sums before the next row's: otherwise GCC gathers the inputs of all rows first and
// spills the sums for which no register is left.
template <typename Sum>
inline void settle(Sum (&row)[VECTORS]) {
#pragma GCC unroll 4
  for (int v = 0; v < VECTORS; ++v) asm volatile("" : "+v"(row[v]));
}

// The words of a row, zeros past its end.
struct Line {
  const char* at;
  int64_t bytes;

  WordLanes words(int64_t k) const {
    const int64_t left = bytes - 4 * k;
    if (left >= static_cast<int64_t>(sizeof(WordLanes))) return load<WordLanes>(at + 4 * k);
    WordLanes some{};
    if (left > 0) std::memcpy(&some, at + 4 * k, left);
    return some;
  }
};

// A variant: type X of the layer's inputs, Word of weights, PARTS of a word of inputs, each of which
// is broadcast as Input, Sum vector, and their product.

struct Float {
  typedef float X;
  typedef float Word;
  typedef float Input;
  typedef Lanes Sum;
  static constexpr int PER_WORD = 1, PARTS = 1, MAX_ROWS = ROWS;

  static WordLanes part(WordLanes words, int) { return words; }

  template <int R>
  static inline void add(Sum (&sums)[R][VECTORS], const Word* weights, const Input* inputs) {
    Lanes weight[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) weight[v] = load<Lanes>(weights + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Lanes input = broadcast(inputs[r]);
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) sums[r][v] += weight[v] * input;
      settle(sums[r]);
    }
  }
};

struct Widened {
  typedef bf16 X;
  typedef uint32_t Word;
  typedef float Input;
  typedef Lanes Sum;
  static constexpr int PER_WORD = 2, PARTS = 2, MAX_ROWS = LANES == 16 ? 12 : 2;

  static WordLanes part(WordLanes pairs, int p) { return p ? pairs & 0xffff0000u : pairs << 16; }

  template <int R>
  static inline void add(Sum (&sums)[R][VECTORS], const Word* weights, const Input* inputs) {
    Lanes low[VECTORS], high[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      const WordLanes pairs = load<WordLanes>(weights + v * LANES);
      low[v] = (Lanes)part(pairs, 0);
      high[v] = (Lanes)part(pairs, 1);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Lanes first = broadcast(inputs[r]), second = broadcast(inputs[R + r]);
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) sums[r][v] += low[v] * first;
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) sums[r][v] += high[v] * second;
      settle(sums[r]);
    }
  }
};

#if defined(__AVX512BF16__)
struct Dot {
  typedef bf16 X;
  typedef uint32_t Word;
  typedef uint32_t Input;
  typedef Lanes Sum;
  static constexpr int PER_WORD = 2, PARTS = 1, MAX_ROWS = ROWS;

  static WordLanes part(WordLanes words, int) { return words; }

  template <int R>
  static inline void add(Sum (&sums)[R][VECTORS], const Word* weights, const Input* inputs) {
    __m512bh weight[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v)
      weight[v] = (__m512bh)_mm512_loadu_si512(weights + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const auto input = (__m512bh)_mm512_set1_epi32(static_cast<int>(inputs[r]));
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v)
        sums[r][v] = (Lanes)_mm512_dpbf16_ps((__m512)sums[r][v], weight[v], input);
      settle(sums[r]);
    }
  }
};
#endif

#if (defined(__AVX512VNNI__) && defined(__AVX512BW__)) || defined(__AVXVNNI__)
#define HAS_INT8
inline IntLanes add_fours(IntLanes sums, IntLanes inputs, IntLanes weights) {
#if defined(__AVX512VNNI__)
  return (IntLanes)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)inputs, (__m512i)weights);
#else
  return (IntLanes)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)inputs, (__m256i)weights);
#endif
}

struct Int8 {
  typedef bf16 X;
  typedef uint32_t Word;
  typedef uint32_t Input;  // four bytes plus 128, since the instruction expects unsigned ones
  typedef IntLanes Sum;
  static constexpr int PER_WORD = 4, PARTS = 1, MAX_ROWS = ROWS;

  static WordLanes part(WordLanes words, int) { return words ^ 0x80808080u; }

  template <int R>
  static inline void add(Sum (&sums)[R][VECTORS], const Word* weights, const Input* inputs) {
    IntLanes weight[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) weight[v] = load<IntLanes>(weights + v * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const IntLanes input = IntLanes{} + static_cast<int32_t>(inputs[r]);
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) sums[r][v] = add_fours(sums[r][v], input, weight[v]);
      settle(sums[r]);
    }
  }
};
#endif

// R rows times a stretch of one group, added to sums [R][OUTPUTS], or stored there when `fresh`.
// Meanwhile the next weights are fetched, from `next` on, `stride` bytes in each panel at each word: into
// the second-level cache if they are used ONCE, since more requests to memory may wait there. (For a
// single row both take the same time.)
template <typename V, bool ONCE, int R>
void tile(int64_t words, const typename V::Input* inputs, const typename V::Word* weights,
          bool fresh, void* sums_at, const char* next, int64_t stride) {
  typedef typename V::Sum Sum;
  Sum sums[R][VECTORS];
  char* const at = static_cast<char*>(sums_at);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v)
      sums[r][v] = fresh ? Sum{} : load<Sum>(at + r * OUTPUTS * 4 + v * sizeof(Sum));
  for (int64_t k = 0; k < words; ++k, inputs += R * V::PARTS, weights += OUTPUTS, next += stride) {
    __builtin_prefetch(next, 0, ONCE ? 2 : 3);
    __builtin_prefetch(next + 64, 0, ONCE ? 2 : 3);
    V::template add<R>(sums, weights, inputs);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) store(at + r * OUTPUTS * 4 + v * sizeof(Sum), sums[r][v]);
}

// Packs `words` words, LANES at most, of `count` rows from word k on: [word][part][row].
template <typename V>
void pack(const Line* rows, int64_t count, int64_t k, int64_t words, typename V::Input* to) {
  if (count < FEW) {
    for (int64_t r = 0; r < count; ++r) {
      const WordLanes of_row = rows[r].words(k);
      for (int p = 0; p < V::PARTS; ++p) {
        const WordLanes part = V::part(of_row, p);
        for (int64_t i = 0; i < words; ++i) {
          const uint32_t word = part[i];
          std::memcpy(to + (i * V::PARTS + p) * count + r, &word, sizeof word);
        }
      }
    }
    return;
  }
  WordLanes parts[V::PARTS][LANES] = {};
  for (int64_t r = 0; r < count; ++r) {
    const WordLanes of_row = rows[r].words(k);
    for (int p = 0; p < V::PARTS; ++p) parts[p][r] = V::part(of_row, p);
  }
  for (auto& part : parts) transpose(part);
  const auto* const end = to + words * V::PARTS * count;
  for (int64_t i = 0; i < words; ++i)
    for (const auto& part : parts) {
      if (end - to >= LANES)  // what is past this word's rows is written next
        store(to, part[i]);
      else
        std::memcpy(to, &part[i], 4 * count);
      to += count;
    }
}

template <typename V>
using Tile = void (*)(int64_t, const typename V::Input*, const typename V::Word*, bool, void*,
                      const char*, int64_t);

template <typename V, int... I>
Tile<V> tile_of(int64_t rows, bool once, std::integer_sequence<int, I...>) {
  static constexpr Tile<V> tiles[][V::MAX_ROWS] = {{tile<V, false, I + 1>...},
                                                   {tile<V, true, I + 1>...}};
  return tiles[once][rows - 1];
}

inline Floats value(const Layer&, int64_t, float, const float* sums) { return load<Floats>(sums); }

// For int8 sums; after `scales` come the products of the inputs' 128 with each output's weights.
inline Floats value(const Layer& layer, int64_t at, float scale, const int32_t* sums) {
  const int64_t all = (layer.outputs + OUTPUTS - 1) / OUTPUTS * OUTPUTS;
  const Ints exact = load<Ints>(sums) - load<Ints>(layer.scales + all + at);
  return __builtin_convertvector(exact, Floats) * (load<Floats>(layer.scales + at) * scale);
}

template <typename Lane>
struct LaneOf;
template <>
struct LaneOf<Lanes> {
  typedef float T;
};
template <>
struct LaneOf<IntLanes> {
  typedef int32_t T;
};

// Fetches where a row's results for a group will be written, while its last products are added.
template <typename Y>
inline void fetch_outputs(const Layer& layer, int64_t row, int64_t group) {
  const auto* const to = static_cast<const Y*>(layer.y) + row * layer.outputs + group * OUTPUTS;
  for (int64_t i = 0; i < OUTPUTS; i += 64 / sizeof(Y)) __builtin_prefetch(to + i, 1);
}

template <typename V>
void linear_block(const Layer& layer) {
  typedef typename V::Input Input;
  typedef typename LaneOf<typename V::Sum>::T Sum;
  const int64_t rows = layer.rows, words = (layer.depth + V::PER_WORD - 1) / V::PER_WORD;
  const int64_t groups = (layer.outputs + OUTPUTS - 1) / OUTPUTS;
  const int64_t tiles = (rows + V::MAX_ROWS - 1) / V::MAX_ROWS;
  const int64_t shorter = rows / tiles, longer = rows % tiles;  // the first tiles have a row more
  const auto sizes = std::make_integer_sequence<int, V::MAX_ROWS>();
  const Tile<V> short_tile = tile_of<V>(shorter, tiles == 1 && rows > 1, sizes);
  const Tile<V> long_tile = longer ? tile_of<V>(shorter + 1, false, sizes) : short_tile;
  // [stretch][tile][word][part][row of tile]
  Input* const packed = kept<Input, PACKED>(rows * words * V::PARTS);
  Line* const lines = kept<Line, LINES>(rows);
  int8_t* const quantised = kept<int8_t, QUANTISED>(V::PER_WORD == 4 ? rows * words * 4 : 0);
  float* const row_scales = kept<float, SCALES>(rows);
  const auto* const weights = static_cast<const typename V::Word*>(layer.weights);
  const int64_t stride = OUTPUTS * 4 / tiles;
  const int64_t stretch = tiles == 1 ? words : STRETCH;  // a single tile uses weights only once

#pragma omp parallel if (rows * layer.depth * layer.outputs > SMALL)
  {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
      const auto* const x = static_cast<const typename V::X*>(layer.x) + r * layer.depth;
      if constexpr (V::PER_WORD == 4) {
        int8_t* const bytes = quantised + r * words * 4;
        row_scales[r] = quantise(x, layer.depth, bytes, words * 4);
        lines[r] = {reinterpret_cast<const char*>(bytes), words * 4};
      } else {
        lines[r] = {reinterpret_cast<const char*>(x), layer.depth * int64_t{sizeof *x}};
      }
    }

#pragma omp for schedule(static) collapse(2)
    for (int64_t t = 0; t < tiles; ++t)  // one tile after the other: processors prefetch few streams
      for (int64_t k = 0; k < words; k += LANES) {
        const int64_t k0 = k / stretch * stretch, n = std::min(stretch, words - k0);
        const int64_t first = t * shorter + std::min(t, longer), count = shorter + (t < longer);
        pack<V>(lines + first, count, k, std::min<int64_t>(LANES, words - k),
                packed + (k0 * rows + first * n + (k - k0) * count) * V::PARTS);
      }

    Sum* const sums = kept<Sum, SUMS>(rows * OUTPUTS);
#pragma omp for schedule(static)
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t k0 = 0; k0 < words; k0 += stretch) {
        const int64_t n = std::min(stretch, words - k0);
        const auto* const from = weights + (g * words + k0) * OUTPUTS;
        const char* next = reinterpret_cast<const char*>(from) + AHEAD;
        for (int64_t t = 0, first = 0; t < tiles; ++t, next += n * stride) {
          const int64_t count = shorter + (t < longer);
          if (k0 + n == words)
            for (int64_t r = first; r < first + count; ++r) fetch_outputs<typename V::X>(layer, r, g);
          (t < longer ? long_tile : short_tile)(n, packed + (k0 * rows + first * n) * V::PARTS, from, k0 == 0,
                                                sums + first * OUTPUTS, next, stride);
          first += count;
        }
      }
      for (int64_t r = 0, at = g * OUTPUTS; r < rows; ++r) {
        const Sum* const of_row = sums + r * OUTPUTS;
        const Floats values[PANELS] = {value(layer, at, row_scales[r], of_row),
                                       value(layer, at + W, row_scales[r], of_row + W)};
        finish<typename V::X>(layer, r, at, values);
      }
    }
  }
}

template <typename V>
void linear(const Layer& layer) {
  typedef typename V::X X;
  const int64_t row_bytes = (layer.depth / V::PER_WORD + 1) * sizeof(typename V::Input);
  const int64_t most = std::max<int64_t>(V::MAX_ROWS, BLOCK_BYTES / row_bytes);
  const int64_t blocks = (layer.rows + most - 1) / most;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = layer.rows * b / blocks, end = layer.rows * (b + 1) / blocks;
    Layer part = layer;
    part.x = static_cast<const X*>(layer.x) + begin * layer.depth;
    part.y = static_cast<X*>(layer.y) + begin * layer.outputs;
    part.rows = end - begin;
    linear_block<V>(part);
  }
}

}  // namespace

EXPORT(linear_f32, linear<Float>)
EXPORT(linear_widened_bf16, linear<Widened>)
#if defined(__AVX512BF16__)
EXPORT(linear_dot_bf16, linear<Dot>)
#endif
#if defined(HAS_INT8)
EXPORT(linear_int8, linear<Int8>)
#endif

#endif
