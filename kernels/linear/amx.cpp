// Linear layers by AMX: y = x w^T + bias, and GELU where asked, in bfloat16 or over int8 weights.
//
// A tile register holds 16 rows of 64 bytes, and one instruction multiplies two of them. Four tiles of
// sums, 32 rows by 32 outputs, use two tiles of inputs and two of weights at each step. With few rows
// the time goes to memory, not to multiplying, so missing rows of a tile are zeros.
//
// A sum always runs over the inputs in the same order, so the result for a row is the same to the
// last bit in any batch.

#include "linear.h"

#if defined(HAS_AMX)

namespace {

constexpr int TILE_WORDS = 16;  // words of 32 bits of each row in a step
constexpr int64_t BLOCK_BYTES = 1 << 20;  // of inputs at once, as the second-level cache holds
constexpr int64_t CACHED_BYTES = 2 << 20;  // of outputs; more of them would not stay in the caches
constexpr int64_t STREAMS = 4;  // from which weights are fetched: more of memory's banks work at once
constexpr int64_t STREAM_LINES = PANELS * TILE / 64 / STREAMS;  // of each, in a step

struct Bfloat {
  typedef float Sum;
  static constexpr int PER_WORD = 2;

  // Packs one of the TILE_ROWS rows of its tiles; returns the factor for its sums.
  static float pack(const Layer& layer, int64_t row, int64_t words, char* to) {
    const auto* x = static_cast<const bf16*>(layer.x) + row * layer.depth;
    const int64_t size = layer.depth * 2;
    for (int64_t at = 0; at < words * 4; at += 64, to += TILE) {
      const int64_t n = std::min<int64_t>(64, size - at);
      std::memcpy(to, reinterpret_cast<const char*>(x) + at, n);
      if (n < 64) std::memset(to + n, 0, 64 - n);
    }
    return 1;
  }

  template <int A>
  static inline void multiply() {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (A == 2) {
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }

  static Floats value(const Layer&, int64_t, float, const float* sums) {
    return load<Floats>(sums);
  }
};

struct Int8 {
  typedef int32_t Sum;
  static constexpr int PER_WORD = 4;

  static float pack(const Layer& layer, int64_t row, int64_t words, char* to) {
    const auto* x = static_cast<const bf16*>(layer.x) + row * layer.depth;
    int8_t* const line = kept<int8_t, LINE>(words * 4);
    const float scale = quantise(x, layer.depth, line, words * 4);
    for (int64_t at = 0; at < words * 4; at += 64, to += TILE) std::memcpy(to, line + at, 64);
    return scale;
  }

  template <int A>
  static inline void multiply() {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    if (A == 2) {
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    }
  }

  static Floats value(const Layer& layer, int64_t at, float scale, const int32_t* sums) {
    return __builtin_convertvector(load<Ints>(sums), Floats) *
           (load<Floats>(layer.scales + at) * scale);
  }
};

// A tiles of inputs times one group of weights: sums [A * TILE_ROWS][OUTPUTS], over the whole depth. Meanwhile
// the next weights are fetched, `lines` of each stream at each step.
template <typename Op, int A>
void multiply(int64_t steps, const char* inputs, int64_t row_tile, const char* weights,
              typename Op::Sum* sums, const char* next, int64_t lines) {
  constexpr int LINE = OUTPUTS * 4;
  _tile_zero(0);
  _tile_zero(1);
  if (A == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t t = 0; t < steps; ++t, inputs += TILE, weights += PANELS * TILE) {
    for (int64_t line = 0; line < lines; ++line, next += 64)
      for (int64_t s = 0; s < STREAMS; ++s)
        _mm_prefetch(next + s * steps * STREAM_LINES * 64, _MM_HINT_T1);
    _tile_loadd(4, inputs, 64);
    _tile_loadd(6, weights, LINE);
    _tile_loadd(7, weights + 64, LINE);
    if (A == 2) _tile_loadd(5, inputs + row_tile, 64);
    Op::template multiply<A>();
  }
  _tile_stored(0, sums, LINE);
  _tile_stored(1, sums + W, LINE);
  if (A == 2) {
    _tile_stored(2, sums + TILE_ROWS * OUTPUTS, LINE);
    _tile_stored(3, sums + TILE_ROWS * OUTPUTS + W, LINE);
  }
}

// One row's results for a whole group: one line of the cache. `past_caches` writes it straight to memory,
// without reading the line first. Numbers below 1e-38 become zeros.
inline void finish_line(const Layer& layer, int64_t row, int64_t at, const Floats* sums,
                        bool past_caches) {
  Floats values[PANELS];
  for (int p = 0; p < PANELS; ++p) {
    const Floats sum = sums[p] + load<Floats>(layer.bias + at + p * W);
    values[p] = layer.gelu ? gelu(sum) : sum;
  }
  const auto line = (__m512i)_mm512_cvtne2ps_pbh((__m512)values[1], (__m512)values[0]);
  bf16* const to = static_cast<bf16*>(layer.y) + row * layer.outputs + at;
  if (past_caches) _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
  else _mm512_storeu_si512(to, line);
}

template <typename Op>
void linear_block(const Layer& layer) {
  const int64_t tiles = (layer.depth + TILE_WORDS * Op::PER_WORD - 1) / (TILE_WORDS * Op::PER_WORD);
  const int64_t words = tiles * TILE_WORDS, row_tile = tiles * TILE;
  const int64_t row_tiles = (layer.rows + TILE_ROWS - 1) / TILE_ROWS, passes = (row_tiles + 1) / 2;
  const int64_t groups = (layer.outputs + OUTPUTS - 1) / OUTPUTS;
  char* const packed = kept<char, PACKED>(row_tiles * row_tile);
  float* const row_scales = kept<float, SCALES>(layer.rows);
  const auto* const weights = static_cast<const char*>(layer.weights);
  auto* const y = static_cast<bf16*>(layer.y);
  const bool past_caches = layer.rows * layer.outputs * 2 > CACHED_BYTES &&
                           layer.outputs % OUTPUTS == 0 && reinterpret_cast<uintptr_t>(y) % 64 == 0;
  const int64_t lines = (STREAM_LINES + passes - 1) / passes;

#pragma omp parallel if (layer.rows * layer.depth * layer.outputs > SMALL)
  {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < layer.rows; ++r)
      row_scales[r] = Op::pack(layer, r, words, packed + r / TILE_ROWS * row_tile + r % TILE_ROWS * 64);

    const Tiles tiles_in_use;
    alignas(64) typename Op::Sum sums[2 * TILE_ROWS * OUTPUTS];
#pragma omp for schedule(static)
    for (int64_t g = 0; g < groups; ++g) {
      const char* const group = weights + g * tiles * PANELS * TILE;
      const char* const next = group + tiles * PANELS * TILE;
      const int64_t at = g * OUTPUTS;
      for (int64_t pass = 0; pass < passes; ++pass) {
        const int64_t begin = pass * 2 * TILE_ROWS, end = std::min(layer.rows, begin + 2 * TILE_ROWS);
        if (!past_caches)
          for (int64_t r = begin; r < end; ++r) __builtin_prefetch(y + r * layer.outputs + at, 1);
        const int64_t fetched = pass * lines;
        (end - begin > TILE_ROWS ? multiply<Op, 2> : multiply<Op, 1>)(
            tiles, packed + pass * 2 * row_tile, row_tile, group, sums,
            next + fetched * tiles * 64, fetched < STREAM_LINES ? lines : 0);
        for (int64_t r = begin; r < end; ++r) {
          const auto* const of_row = sums + (r - begin) * OUTPUTS;
          const Floats values[PANELS] = {Op::value(layer, at, row_scales[r], of_row),
                                         Op::value(layer, at + W, row_scales[r], of_row + W)};
          if (at + OUTPUTS <= layer.outputs) finish_line(layer, r, at, values, past_caches);
          else finish<bf16>(layer, r, at, values);
        }
      }
    }
  }
}

template <typename Op>
void linear(const Layer& layer) {
  const int64_t most = std::max<int64_t>(
      2 * TILE_ROWS, BLOCK_BYTES * Op::PER_WORD / 4 / layer.depth / (2 * TILE_ROWS) * (2 * TILE_ROWS));
  for (int64_t begin = 0; begin < layer.rows; begin += most) {
    Layer part = layer;
    part.x = static_cast<const bf16*>(layer.x) + begin * layer.depth;
    part.y = static_cast<bf16*>(layer.y) + begin * layer.outputs;
    part.rows = std::min(most, layer.rows - begin);
    linear_block<Op>(part);
  }
}

}  // namespace

extern "C" int32_t amx_allowed() { return request_tiles(); }

EXPORT(linear_amx_bf16, linear<Bfloat>)
EXPORT(linear_amx_int8, linear<Int8>)

#endif
