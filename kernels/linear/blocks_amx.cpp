// Linear layers over weights of 8 or 4 bits with a scale for each 32 inputs, by AMX.
//
// One instruction multiplies the blocks of 16 outputs by those of 16 rows. The sums pass through
// memory, where vectors scale and add them in the order of blocks.h, so results are the same to the last
// bit. A tile of few rows is therefore left to vectors, which take less time than a tile that is mostly
// empty.

#include "blocks.h"

#if defined(HAS_AMX) && defined(__AVX512BW__) && defined(__AVX512VNNI__)

namespace {

constexpr int FEW_ROWS = 7;
constexpr int64_t UNPACKED = BLOCK * W;  // bytes of the integers of a block and a panel
constexpr int64_t PANELS_TOGETHER = 4;  // meet a tile of inputs while the first-level cache holds it

// The integers of a stretch, signed, as words [block][word][W].
alignas(64) thread_local int8_t integers[PANELS_TOGETHER][STRETCH * 2 * UNPACKED];

struct ByTiles {
  // Tiles 0 and 1 hold sums, 2 and 3 inputs, 4 and 5 weights.
  struct State : Tiles {
    State() : Tiles(shapes()) {}

    static TileShapes shapes() {
      TileShapes found;
      found.row_bytes[2] = found.row_bytes[3] = BLOCK;
      found.rows[4] = found.rows[5] = WORDS;
      return found;
    }
  };

  // A pair of blocks. Inputs are [block][R]: the rows read past them are not used.
  template <int R>
  static inline void multiply(const Inputs* x, const int8_t* weights, int32_t (*sums)[TILE_ROWS * W]) {
    asm volatile("" : : : "memory");  // GCC's intrinsic does not declare what it reads
    _tile_zero(0);
    _tile_loadd(2, x, sizeof(Inputs));
    _tile_loadd(4, weights, 64);
    _tile_dpbssd(0, 2, 4);
    _tile_stored(0, sums[0], 64);
    _tile_zero(1);
    _tile_loadd(3, x + R, sizeof(Inputs));
    _tile_loadd(5, weights + UNPACKED, 64);
    _tile_dpbssd(1, 3, 5);
    _tile_stored(1, sums[1], 64);
  }

  // A pair of blocks. Fetches what follows a stretch later into the second-level cache, since other
  // panels come first.
  template <typename F>
  static inline void unpack(const uint8_t* at, int8_t* to) {
#pragma GCC unroll 32
    for (int64_t line = 0; line < F::PAIR; line += 64)
      __builtin_prefetch(at + STRETCH * F::PAIR + line, 0, 2);
    for (int b = 0; b < 2; ++b, to += UNPACKED) {
      Quads words[WORDS];
      F::read(at + 2 * F::HEAD + b * F::BYTES, words);
#pragma GCC unroll 8
      for (int k = 0; k < WORDS; ++k)
        store(to + k * 64, _mm512_sub_epi8(words[k], _mm512_set1_epi8(static_cast<char>(F::OFFSET))));
    }
  }

  template <typename F, int R>
  static void tile(int64_t pairs, const Inputs* inputs, const uint8_t* weights, bool fresh,
                   bool first, int64_t panel, float* to) {
    int8_t* const unpacked = integers[panel];
    const auto unpack_pair = [&](int64_t p) {
      if (first && p < pairs) unpack<F>(weights + p * F::PAIR, unpacked + p * 2 * UNPACKED);
    };
    alignas(64) int32_t whole[2][2][TILE_ROWS * W];
    Numbers sums[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sums[r] = fresh ? Numbers{} : load<Numbers>(to + r * W);
    unpack_pair(0);
    unpack_pair(1);
    multiply<R>(inputs, unpacked, whole[0]);
    // each pair is multiplied before the one before it is added, which hides the time to memory
    for (int64_t p = 0; p < pairs; ++p) {
      unpack_pair(p + 2);
      if (p + 1 < pairs)
        multiply<R>(inputs + (p + 1) * 2 * R, unpacked + (p + 1) * 2 * UNPACKED, whole[(p + 1) % 2]);
#pragma GCC unroll 2
      for (int b = 0; b < 2; ++b) {
        const uint8_t* const head = weights + p * F::PAIR + b * F::HEAD;
        const Numbers scale = load_halves(head);
        const Inputs* const x = inputs + (2 * p + b) * R;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const Numbers sum = to_numbers(load<Quads>(whole[p % 2][b] + r * W));
          sums[r] = multiply_add(sum, scale * every(x[r].scale), sums[r]);
          if constexpr (F::NUMBERS == 2)
            sums[r] = multiply_add(load_halves(head + 2 * W), every(x[r].total), sums[r]);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) store(to + r * W, sums[r]);
  }

  static constexpr int64_t UNIT = TILE_ROWS;

  static Split split(int64_t rows) {
    return {rows / TILE_ROWS, TILE_ROWS, rows % TILE_ROWS != 0, rows % TILE_ROWS};
  }

  static int64_t panels(int64_t rows) { return rows <= TILE_ROWS ? 1 : PANELS_TOGETHER; }

  static int64_t stretch(int64_t rows, int64_t pairs) {
    const int64_t stretches = (pairs + STRETCH - 1) / STRETCH;
    return rows <= FEW_ROWS ? pairs : (pairs + stretches - 1) / stretches;
  }

  template <typename F, int... I>
  static Tile of(int64_t rows, std::integer_sequence<int, I...>) {
    static constexpr Tile tiles[] = {(I < FEW_ROWS ? ::tile<F, I + 1> : tile<F, I + 1>)...};
    return tiles[rows - 1];
  }
};

}  // namespace

extern "C" int32_t amx_allowed() { return request_tiles(); }

EXPORT(linear_amx_q8_0, (linear<Q8_0, ByTiles>))
EXPORT(linear_amx_q4_0, (linear<Q4_0, ByTiles>))
EXPORT(linear_amx_q4_1, (linear<Q4_1, ByTiles>))

#endif
