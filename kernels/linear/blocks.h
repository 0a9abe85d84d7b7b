// Linear layers over weights of 8 or 4 bits with a scale for each 32 inputs, as GGUF files hold them:
// y = x w^T + bias. runtime/linear/blocks.py defines the layout of weights and what is computed.
//
// Each 32 inputs of a row are quantised by their own largest value. The products of a block, 32 inputs
// of one output, are summed in integers; these sums, times both scales, are added in float from the
// first block to the last. So the result for a row is the same to the last bit in any batch.
//
// The integers of a block and a vector of outputs stay in registers while they meet all rows of a
// tile, whose sums stay there, too. 4 bits become 8 on the way into registers, so that they arrive
// from memory as 4. The instruction multiplies unsigned weights by signed inputs; the sum begins with
// what makes the weights signed: minus the offset of the weights times the sum of the inputs.
//
// Needs VNNI (AVX512_VNNI or AVX-VNNI) or AVX2; for other processors there is no function.
#pragma once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "linear.h"

#include <immintrin.h>
#include <omp.h>

#include <utility>

namespace {

constexpr int BLOCK = 32;                 // inputs to a scale
constexpr int WORDS = BLOCK / 4;          // of four inputs, of a block
constexpr int64_t AHEAD = 4;              // pairs of blocks: how far ahead weights are fetched
constexpr int64_t STRETCH = 8;            // pairs whose weights fit into the first-level cache
constexpr int64_t BLOCK_BYTES = 5 << 18;  // of inputs at once, as the second-level cache holds

// Quads: a vector of words of four bytes. MAX_ROWS: of a tile; TOGETHER: of them, multiplied in turn.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#define VARIANT(kind) linear_vnni_##kind
constexpr int LANES = 16;
constexpr int MAX_ROWS = 16, TOGETHER = 2;

typedef __m512i Quads;
typedef __m512 Numbers;
inline Quads low_bits(Quads x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline Quads high_bits(Quads x) { return low_bits(_mm512_srli_epi16(x, 4)); }
inline Quads every(int32_t x) { return _mm512_set1_epi32(x); }
inline Quads add_fours(Quads sums, Quads weights, Quads inputs) {
  return _mm512_dpbusd_epi32(sums, weights, inputs);
}
inline Numbers every(float x) { return _mm512_set1_ps(x); }
inline Numbers to_numbers(Quads x) { return _mm512_cvtepi32_ps(x); }
inline Numbers load_halves(const void* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(at)));
}
inline Numbers multiply_add(Numbers a, Numbers b, Numbers c) { return _mm512_fmadd_ps(a, b, c); }
#else
constexpr int LANES = 8;
constexpr int MAX_ROWS = 3, TOGETHER = 1;

typedef __m256i Quads;
typedef __m256 Numbers;
inline Quads low_bits(Quads x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline Quads high_bits(Quads x) { return low_bits(_mm256_srli_epi16(x, 4)); }
inline Quads every(int32_t x) { return _mm256_set1_epi32(x); }
#if defined(__AVXVNNI__)
#define VARIANT(kind) linear_vnni_##kind
inline Quads add_fours(Quads sums, Quads weights, Quads inputs) {
  return _mm256_dpbusd_avx_epi32(sums, weights, inputs);
}
#else
#define VARIANT(kind) linear_maddubs_##kind
#define SATURATES  // the instruction, at pairs of products beyond 16 bits
inline Quads add_fours(Quads sums, Quads weights, Quads inputs) {
  const Quads pairs = _mm256_maddubs_epi16(weights, inputs);
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif
inline Numbers every(float x) { return _mm256_set1_ps(x); }
inline Numbers to_numbers(Quads x) { return _mm256_cvtepi32_ps(x); }
inline Numbers load_halves(const void* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(at)));
}
inline Numbers multiply_add(Numbers a, Numbers b, Numbers c) { return _mm256_fmadd_ps(a, b, c); }
#endif
constexpr int VECTORS = W / LANES;  // of a panel

// 32 inputs of a row.
struct Inputs {
  int32_t words[WORDS];  // of four signed bytes
  float scale;
  union {
    int32_t start;  // of a sum of products
    float total;    // of the inputs, scaled: what a minimum is multiplied by
  };
};

// A kind of weights: integers, less OFFSET, and NUMBERS float16 of each block. BYTES of integers and
// HEAD bytes of numbers: of a panel and a block.

struct Q8_0 {
  static constexpr int NUMBERS = 1, OFFSET = 128;
  static constexpr int64_t BYTES = BLOCK * W, HEAD = 2 * NUMBERS * W, PAIR = 2 * (HEAD + BYTES);

  // The words of a vector of outputs.
  static inline void read(const uint8_t* at, Quads (&words)[WORDS]) {
#pragma GCC unroll 8
    for (int k = 0; k < WORDS; ++k) words[k] = load<Quads>(at + k * W * 4);
  }
};

template <int N, int FROM>
struct Q4 {
  static constexpr int NUMBERS = N, OFFSET = FROM;
  static constexpr int64_t BYTES = BLOCK * W / 2, HEAD = 2 * NUMBERS * W;
  static constexpr int64_t PAIR = 2 * (HEAD + BYTES);

  static inline void read(const uint8_t* at, Quads (&words)[WORDS]) {
#pragma GCC unroll 4
    for (int k = 0; k < WORDS / 2; ++k) {
      const Quads both = load<Quads>(at + k * W * 4);
      words[k] = low_bits(both);
      words[k + WORDS / 2] = high_bits(both);
    }
  }
};

typedef Q4<1, 8> Q4_0;
typedef Q4<2, 0> Q4_1;

#if defined(SATURATES)
// For weights of 8 bits, whose signs move to the inputs.
template <typename F>
constexpr bool SIGNED = F::OFFSET == 128;

inline Quads add_signed(Quads sums, Quads weights, Quads inputs) {
  const Quads own = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
  return add_fours(sums, _mm256_abs_epi8(own), _mm256_sign_epi8(inputs, own));
}
#else
template <typename F>
constexpr bool SIGNED = false;

Quads add_signed(Quads, Quads, Quads);
#endif

// Sums of the products of a block for T rows: so that additions need not wait for each other.
template <typename F, int T>
inline void multiply(const Quads (&words)[WORDS], const Inputs* inputs, Quads (&sums)[T]) {
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t)
    sums[t] = F::OFFSET && !SIGNED<F> ? every(inputs[t].start) : Quads{};
#pragma GCC unroll 8
  for (int k = 0; k < WORDS; ++k)
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t)
      if constexpr (SIGNED<F>)
        sums[t] = add_signed(sums[t], words[k], every(inputs[t].words[k]));
      else
        sums[t] = add_fours(sums[t], words[k], every(inputs[t].words[k]));
}

template <typename F, int T>
inline void add_rows(const Quads (&words)[WORDS], Numbers scale, Numbers minimum,
                     const Inputs* inputs, Numbers* sums) {
  Quads whole[T];
  multiply<F, T>(words, inputs, whole);
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    sums[t] = multiply_add(to_numbers(whole[t]), scale * every(inputs[t].scale), sums[t]);
    if constexpr (F::NUMBERS == 2)
      sums[t] = multiply_add(minimum, every(inputs[t].total), sums[t]);
    // some rows after the others: GCC gathers the inputs of all rows first and spills sums
    asm volatile("" : "+v"(sums[t]));
  }
}

// R rows times some pairs of blocks of a panel, added to sums [R][W], or stored there when `fresh`.
// Inputs are [block][row]. The first tile to use the weights fetches what follows AHEAD pairs later.
template <typename F, int R>
void tile(int64_t pairs, const Inputs* inputs, const uint8_t* weights, bool fresh, bool first,
          int64_t, float* to) {
  constexpr int T = R < TOGETHER ? R : TOGETHER;
#pragma GCC unroll 1
  for (int v = 0; v < VECTORS; ++v) {
    Numbers sums[R];
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r) sums[r] = fresh ? Numbers{} : load<Numbers>(to + r * W + v * LANES);
    const uint8_t* at = weights;
    const Inputs* x = inputs;
    for (int64_t p = 0; p < pairs; ++p, at += F::PAIR) {
      if (first && v == 0)
#pragma GCC unroll 32
        for (int64_t line = 0; line < F::PAIR; line += 64)
          __builtin_prefetch(at + AHEAD * F::PAIR + line);
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b, x += R) {
        const uint8_t* const head = at + b * F::HEAD + 2 * v * LANES;
        Quads words[WORDS];
        F::read(at + 2 * F::HEAD + b * F::BYTES + v * LANES * 4, words);
        const Numbers scale = load_halves(head);
        Numbers minimum{};
        if constexpr (F::NUMBERS == 2) minimum = load_halves(head + 2 * W);
#pragma GCC unroll 32
        for (int r = 0; r + T <= R; r += T) add_rows<F, T>(words, scale, minimum, x + r, sums + r);
        if constexpr (R % T)
          add_rows<F, R % T>(words, scale, minimum, x + R / T * T, sums + R / T * T);
      }
    }
#pragma GCC unroll 32
    for (int r = 0; r < R; ++r) store(to + r * W + v * LANES, sums[r]);
  }
}

template <typename F>
inline Inputs quantised(const bf16* x) {
  Inputs made;
  int8_t bytes[BLOCK];
  made.scale = quantise(x, BLOCK, bytes, BLOCK);
  std::memcpy(made.words, bytes, BLOCK);
  int32_t sum = 0;
  for (int k = 0; k < BLOCK; ++k) sum += bytes[k];
  if constexpr (F::NUMBERS == 2)
    made.total = static_cast<float>(sum) * made.scale;
  else
    made.start = -F::OFFSET * sum;
  return made;
}

// Pairs, inputs, weights, `fresh`, `first`, the panel's place in its turn, sums.
using Tile = void (*)(int64_t, const Inputs*, const uint8_t*, bool, bool, int64_t, float*);

// Tiles of two sizes, the larger ones first.
struct Split {
  int64_t large, large_rows, small, small_rows;

  int64_t first(int64_t t) const {
    return std::min(t, large) * large_rows + std::max<int64_t>(0, t - large) * small_rows;
  }
  int64_t rows(int64_t t) const { return t < large ? large_rows : small_rows; }
  int64_t tile(int64_t row) const {
    const int64_t of_large = large * large_rows;
    return row < of_large ? row / large_rows : large + (row - of_large) / small_rows;
  }
};

// How rows are divided, how many panels and pairs of blocks take turns, and what computes a tile.
struct ByVectors {
  struct State {};  // what a thread sets up: nothing
  static constexpr int64_t UNIT = 1;  // parts are multiples of so many rows

  static int64_t panels(int64_t) { return 1; }

  static Split split(int64_t rows) {
    const int64_t tiles = (rows + MAX_ROWS - 1) / MAX_ROWS, longer = rows % tiles;
    return {longer, rows / tiles + 1, tiles - longer, rows / tiles};
  }

  // A single tile uses weights only once.
  static int64_t stretch(int64_t rows, int64_t pairs) {
    return rows <= MAX_ROWS ? pairs : std::min(pairs, STRETCH);
  }

  template <typename F, int... I>
  static Tile of(int64_t rows, std::integer_sequence<int, I...>) {
    static constexpr Tile tiles[] = {tile<F, I + 1>...};
    return tiles[rows - 1];
  }
};

template <typename F, typename By>
void linear_block(const Layer& layer) {
  const int64_t rows = layer.rows, blocks = layer.depth / BLOCK, pairs = (blocks + 1) / 2;
  const int64_t panels = (layer.outputs + W - 1) / W;
  const Split split = By::split(rows);
  const int64_t tiles = split.large + split.small;
  const auto sizes = std::make_integer_sequence<int, MAX_ROWS>();
  const Tile small = split.small ? By::template of<F>(split.small_rows, sizes) : nullptr;
  const Tile large = split.large ? By::template of<F>(split.large_rows, sizes) : nullptr;
  // [stretch][tile][block][row], and what the last tile may read past its rows
  Inputs* const packed = kept<Inputs, PACKED>(rows * pairs * 2 + MAX_ROWS);
  const auto* const weights = static_cast<const uint8_t*>(layer.weights);
  const int64_t stretch = By::stretch(rows, pairs), together = By::panels(rows);

#pragma omp parallel if (rows * layer.depth * layer.outputs > SMALL)
  {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
      const auto* const x = static_cast<const bf16*>(layer.x) + r * layer.depth;
      const int64_t t = split.tile(r), first = split.first(t), count = split.rows(t);
      for (int64_t b = 0; b < 2 * pairs; ++b) {
        const int64_t p0 = b / 2 / stretch * stretch, n = std::min(stretch, pairs - p0);
        packed[(p0 * rows + first * n) * 2 + (b - 2 * p0) * count + r - first] =
            b < blocks ? quantised<F>(x + b * BLOCK) : Inputs{};
      }
    }

    [[maybe_unused]] const typename By::State state;
    float* const sums = kept<float, SUMS>(together * rows * W);
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    const int64_t end = panels * (thread + 1) / threads;
    for (int64_t turn = panels * thread / threads; turn < end; turn += together) {
      const int64_t in_turn = std::min(together, end - turn);
      for (int64_t p0 = 0; p0 < pairs; p0 += stretch) {
        const int64_t n = std::min(stretch, pairs - p0);
        for (int64_t t = 0; t < tiles; ++t) {
          const int64_t first = split.first(t);
          const Inputs* const inputs = packed + (p0 * rows + first * n) * 2;
          for (int64_t p = 0; p < in_turn; ++p)
            (t < split.large ? large : small)(
                n, inputs, weights + ((turn + p) * pairs + p0) * F::PAIR, p0 == 0, t == 0, p,
                sums + (p * rows + first) * W);
        }
      }
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t p = 0; p < in_turn; ++p)
          finish<bf16>(layer, r, (turn + p) * W, load<Floats>(sums + (p * rows + r) * W));
    }
  }
}

template <typename F, typename By>
void linear(const Layer& layer) {
  const int64_t row_bytes = layer.depth / BLOCK * sizeof(Inputs);
  const int64_t most = std::max<int64_t>(MAX_ROWS, BLOCK_BYTES / row_bytes);
  const int64_t parts = (layer.rows + most - 1) / most;
  for (int64_t p = 0, begin = 0, end; p < parts; ++p, begin = end) {
    const int64_t even = layer.rows * (p + 1) / parts;
    end = p + 1 < parts ? even / By::UNIT * By::UNIT : layer.rows;
    Layer part = layer;
    part.x = static_cast<const bf16*>(layer.x) + begin * layer.depth;
    part.y = static_cast<bf16*>(layer.y) + begin * layer.outputs;
    part.rows = end - begin;
    linear_block<F, By>(part);
  }
}

}  // namespace

#endif
