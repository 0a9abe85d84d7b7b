// What attention is called with; the pool and the tokens of a row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "../registers.h"

// Compilers leave calls in loops whose sums then live in memory instead of registers.
#define INLINE __attribute__((always_inline)) inline
#define INLINE_LAMBDA __attribute__((always_inline))

namespace {

static_assert(HEAD_DIM % W == 0, "heads of whole vectors");

template <typename T>
struct Call {
  const T *q, *k, *v;
  T* out;
  int64_t rows, heads, kv_heads, q_stride, k_stride, v_stride;
  const int64_t *first, *count, *start, *tables;
  T *keys, *values;
  int64_t block_tokens, window;
  float scale;
};

template <typename T>
struct Row {
  static constexpr int64_t dim = HEAD_DIM;
  const Call<T>& call;
  const int64_t row;
  const int64_t group = call.heads / call.kv_heads;  // queries to each head of keys and values
  const int64_t token = call.kv_heads * dim;
  const int32_t* table = reinterpret_cast<const int32_t*>(call.tables[row]);

  Row(const Call<T>& call, int64_t row) : call(call), row(row) {}

  // Of the first head of keys and of values.
  int64_t slot(int64_t position) const {
    const int64_t block = table[position / call.block_tokens];
    return (block * call.block_tokens + position % call.block_tokens) * token;
  }

  // The first position that a token sees whose own is `end` - 1.
  int64_t lowest(int64_t end) const { return std::max<int64_t>(0, end - call.window); }

  // Copies some heads of new token i's keys and values to its slot.
  void write(int64_t i, int64_t head, int64_t heads) const {
    const size_t bytes = heads * dim * sizeof(T);
    const int64_t to = slot(call.start[row] + i) + head * dim, from = call.first[row] + i;
    std::memcpy(call.keys + to, call.k + from * call.k_stride + head * dim, bytes);
    std::memcpy(call.values + to, call.v + from * call.v_stride + head * dim, bytes);
  }
};

}  // namespace
