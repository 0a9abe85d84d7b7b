// Attention of rows with several new tokens in bfloat16, where the processor multiplies pairs of
// bfloat16 numbers: by AMX's tiles, or by VDPBF16PS.
//
// Keys are transposed and values interleaved once for each row and head, as both expect their second
// operand: 16 lines of 16 words, each of two neighbouring numbers of a column. Then 32 queries at a
// time: their scores for all keys that one of them sees, the softmax, the weighted sum of the values.
// Weights are rounded to bfloat16 and divided by their sum at the end, as by torch's operator.
//
// Keys are taken in blocks of 32 from position 0 on, and what a token does not see counts as exactly
// zero. So a token's result is the same to the last bit however its prompt is divided, as long as
// it is computed here.
#pragma once

#include "attention.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>

namespace {

constexpr int64_t LINES = 16;  // of a step, each of one word of every column

// Multiplies 32 rows of words with 2 x 16 columns, `steps` times 16 words; the second 16 columns are
// `next_column` lines after the first. Writes at least the first `count` rows of sums,
// `to_stride` floats from row to row. STEPS: `steps`, if known.
struct ByDot {
  template <int64_t STEPS>
  static void multiply(int64_t count, int64_t steps, const void* rows, int64_t rows_stride,
                       const Words* columns, int64_t next_column, float* to, int64_t to_stride) {
    constexpr int TOGETHER = 8;  // rows: with so many sums, no operation waits for the one before
    for (int64_t i = 0; i < count; i += TOGETHER) {
      Floats sums[TOGETHER][2] = {};
      const char* word = static_cast<const char*>(rows) + i * rows_stride;
      for (int64_t k = 0; k < (STEPS ? STEPS : steps) * LINES; ++k, word += 4) {
        const auto left = (__m512bh)load<Words>(columns + k);
        const auto right = (__m512bh)load<Words>(columns + next_column + k);
#pragma GCC unroll 8
        for (int r = 0; r < TOGETHER; ++r) {
          int32_t pair;
          std::memcpy(&pair, word + r * rows_stride, sizeof pair);
          const auto x = (__m512bh)_mm512_set1_epi32(pair);
          sums[r][0] = (Floats)_mm512_dpbf16_ps((__m512)sums[r][0], x, left);
          sums[r][1] = (Floats)_mm512_dpbf16_ps((__m512)sums[r][1], x, right);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < TOGETHER; ++r)
        for (int c = 0; c < 2; ++c) store(to + (i + r) * to_stride + c * W, sums[r][c]);
    }
  }
};

#if defined(HAS_AMX)
struct ByTiles {
  template <int64_t STEPS>
  static void multiply(int64_t, int64_t steps, const void* rows, int64_t rows_stride,
                       const Words* columns, int64_t next_column, float* to, int64_t to_stride) {
    const char* const first = static_cast<const char*>(rows);
    const char* const second = first + TILE_ROWS * rows_stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t s = 0; s < (STEPS ? STEPS : steps); ++s) {
      const Words* const column = columns + s * TILE_ROWS;
      _tile_loadd(4, first + s * 64, rows_stride);
      _tile_loadd(6, column, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, column + next_column, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, second + s * 64, rows_stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, to, to_stride * 4);
    _tile_stored(1, to + W, to_stride * 4);
    _tile_stored(2, to + TILE_ROWS * to_stride, to_stride * 4);
    _tile_stored(3, to + TILE_ROWS * to_stride + W, to_stride * 4);
  }

 private:
  const Tiles tiles_;
};
#endif

template <typename Multiplier>
class PackedPrompts {
 public:
  template <typename Piece>
  void attend(const Call<bf16>& call, const Piece& piece, int64_t head) {
    const Row<bf16> of(call, piece.row);
    const int64_t start = call.start[piece.row];
    low_ = of.lowest(start + piece.first + 1) / KEYS * KEYS;
    end_ = start + piece.last;
    blocks_ = (end_ - low_ + KEYS - 1) / KEYS;
    pack_keys(of, head);
    pack_values(of, head);
    const int64_t last = piece.last * of.group;
    for (int64_t first = piece.first * of.group; first < last; first += QUERIES)
      attend_some(of, head, first, std::min(QUERIES, last - first));
  }

 private:
  static constexpr int64_t QUERIES = 32, KEYS = 32;
  static constexpr int64_t STEPS = (HEAD_DIM + 31) / 32;     // of a score: 32 products each
  static constexpr int64_t COLUMNS = (HEAD_DIM + 31) / 32 * 2;  // tiles of values, an even number
  enum Purpose { PACKED_KEYS, PACKED_VALUES, PACKED_QUERIES, SCORES, WEIGHTS, RESULTS };

  // [16 keys][step][word][key]
  void pack_keys(const Row<bf16>& of, int64_t head) {
    keys_ = kept<Words, PACKED_KEYS>(blocks_ * 2 * STEPS * LINES);
    for (int64_t first = low_; first < low_ + blocks_ * KEYS; first += LINES) {
      Words lines[STEPS][LINES] = {};
      for (int64_t i = 0; i < LINES && first + i < end_; ++i)
        each_line(of.call.keys + of.slot(first + i) + head * HEAD_DIM,
                  [&](int64_t step, Words line) { lines[step][i] = line; });
      Words* to = keys_ + (first - low_) * STEPS;
      for (auto& step : lines) {
        transpose(step);
        for (const Words& line : step) store(to++, line);
      }
    }
  }

  // [16 columns][32 keys][two keys][column]
  void pack_values(const Row<bf16>& of, int64_t head) {
    values_ = kept<Words, PACKED_VALUES>(COLUMNS * blocks_ * LINES);
    for (int64_t t = 0; t < blocks_ * KEYS; t += 2) {
      Halves pair[2][COLUMNS] = {};
      for (int64_t i = 0; i < 2 && low_ + t + i < end_; ++i)
        for (int64_t c = 0; c < HEAD_DIM / W; ++c)
          pair[i][c] = load<Halves>(of.call.values + of.slot(low_ + t + i) + head * HEAD_DIM + c * W);
      for (int64_t c = 0; c < COLUMNS; ++c)
        values_[c * blocks_ * LINES + t / 2] = __builtin_convertvector(pair[0][c], Words) |
                                               __builtin_convertvector(pair[1][c], Words) << 16;
    }
  }

  // Calls use(step, line) for each 32 numbers of a head, zeros past its end.
  template <typename Use>
  static void each_line(const bf16* head, Use use) {
    for (int64_t step = 0; step < HEAD_DIM / 32; ++step) use(step, load<Words>(head + step * 32));
    if (HEAD_DIM % 32) {
      Words line{};
      std::memcpy(&line, head + HEAD_DIM / 32 * 32, HEAD_DIM % 32 * sizeof(bf16));
      use(STEPS - 1, line);
    }
  }

  // `count` queries, of all of the row's tokens and of this head: `group` for each token.
  void attend_some(const Row<bf16>& of, int64_t head, int64_t first, int64_t count) {
    const Call<bf16>& call = of.call;
    const auto place = [&](int64_t i, int64_t stride) {  // of query i on the flat axis
      const int64_t query = first + i;
      return (call.first[of.row] + query / of.group) * stride +
             (head * of.group + query % of.group) * HEAD_DIM;
    };
    const auto seen = [&](int64_t i) {  // positions from low_ on, as a pair: first and past the last
      const int64_t stop = call.start[of.row] + (first + i) / of.group + 1;
      return std::pair(of.lowest(stop) - low_, stop - low_);
    };
    const int64_t from = seen(0).first / KEYS, to = (seen(count - 1).second + KEYS - 1) / KEYS;
    const int64_t width = (to - from) * KEYS;
    // a line more than a row needs: rows at multiples of a page would share few lines of the cache
    const int64_t scores_stride = width + 16, weights_stride = width + 32;
    auto* const queries = kept<Words, PACKED_QUERIES>(QUERIES * STEPS);
    auto* const scores = kept<float, SCORES>(QUERIES * scores_stride);
    auto* const weights = kept<bf16, WEIGHTS>(QUERIES * weights_stride);
    auto* const results = kept<float, RESULTS>(QUERIES * COLUMNS * W);

    for (int64_t i = 0; i < count; ++i)
      each_line(call.q + place(i, call.q_stride),
                [&](int64_t step, Words line) { store(queries + i * STEPS + step, line); });
    for (int64_t block = from; block < to; ++block)
      multiplier_.template multiply<STEPS>(count, STEPS, queries, STEPS * 64,
                                           keys_ + block * 2 * STEPS * LINES, STEPS * LINES,
                                           scores + (block - from) * KEYS, scores_stride);
    float shares[QUERIES];
    for (int64_t i = 0; i < count; ++i) {
      const auto [begin, end] = seen(i);
      shares[i] = 1 / softmax(scores + i * scores_stride, begin - from * KEYS, end - from * KEYS, width,
                              call.scale, weights + i * weights_stride);
    }
    for (int64_t c = 0; c < COLUMNS; c += 2)
      multiplier_.template multiply<0>(count, to - from, weights, weights_stride * 2,
                                       values_ + (c * blocks_ + from) * LINES, blocks_ * LINES,
                                       results + c * W, COLUMNS * W);
    for (int64_t i = 0; i < count; ++i) {
      bf16* const out = call.out + place(i, call.heads * HEAD_DIM);
      for (int64_t c = 0; c < HEAD_DIM / W; ++c)
        store(out + c * W, to_halves(load<Floats>(results + (i * COLUMNS + c) * W) * shares[i]));
    }
  }

  // Weights of the positions from `begin` to `end` of `width`, not yet divided by their sum, which
  // it returns.
  static float softmax(float* scores, int64_t begin, int64_t end, int64_t width, float scale,
                       bf16* weights) {
    std::fill(scores, scores + begin, -INFINITY);
    std::fill(scores + end, scores + width, -INFINITY);
    scale *= 1.44269504f;  // from here on powers of 2
    Floats peaks = Floats{} - INFINITY, totals{};
    for (int64_t t = 0; t < width; t += W) {
      const Floats x = load<Floats>(scores + t) * scale;
      peaks = x > peaks ? x : peaks;
    }
    const float peak = _mm512_reduce_max_ps((__m512)peaks);
    for (int64_t t = 0; t < width; t += W) {
      const Floats x = power_of_2(load<Floats>(scores + t) * scale - peak);
      totals += x;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + t),
                          (__m256i)_mm512_cvtneps_pbh((__m512)x));
    }
    return _mm512_reduce_add_ps((__m512)totals);
  }

  // For x up to about 0, with a relative error of 2^-13: weights are rounded to 2^-9. Exactly zero
  // for x below -126.
  static Floats power_of_2(Floats x) {
    const __m512 n = _mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
    const Floats r = x - (Floats)n;
    Floats p = r * 0.05517166f + 0.24261114f;
    p = p * r + 0.69326099f;
    p = p * r + 0.99992807f;
    const __mmask16 seen = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126), _CMP_GE_OQ);
    return (Floats)_mm512_maskz_scalef_ps(seen, (__m512)p, n);
  }

  const Multiplier multiplier_{};
  int64_t low_ = 0, end_ = 0, blocks_ = 0;  // first position, past the last; blocks of KEYS
  Words *keys_ = nullptr, *values_ = nullptr;
};

}  // namespace

#endif
