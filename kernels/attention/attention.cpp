// Ragged attention on a CPU: each row of an iteration brings n new tokens and attends to its own
// past of any length; one call serves a whole iteration of one layer.
//
// What it computes is defined by its plain-torch twin, runtime/attention.py:attend_rows. Keys and values
// are in the blocks of a pool, in float or bfloat16; all arithmetic is float. Loops are written so
// that a compiler vectorises them for the machine; no instruction set is named here.

#include "attention.h"
#include "attention_packed.h"

#include <omp.h>

#include <algorithm>
#include <type_traits>
#include <vector>

namespace {

constexpr int C = HEAD_DIM / W;  // vectors of a head
constexpr int64_t TOKENS = 16;   // of a row, that read keys and values together
// Queries of a decoding row that share each conversion of a key: their sums take half the registers.
constexpr int TOGETHER = std::max(1, std::min(4, (W == 16 ? 16 : 8) / C));
static_assert(HEAD_DIM % W == 0, "heads of whole vectors");
// Calls use(c, x) for each vector c of a head, as floats. bfloat16 is read two numbers at a time: of
// each pair of vectors, the first holds the numbers at even places and the second those at odd
// places. That takes one operation a vector; a conversion in order takes four with GCC.
// `store_head` restores the order.
template <typename Use>
INLINE void each_vector(const float* head, Use use) {
  for (int c = 0; c < C; ++c) {
    use(c, load<Floats>(head + c * W));
  }
}

template <typename Use>
INLINE void each_vector(const bf16* head, Use use) {
  for (int c = 0; c + 1 < C; c += 2) {
    const auto pairs = load<Words>(head + c * W);
    use(c, (Floats)(pairs << 16));
    use(c + 1, (Floats)(pairs & 0xffff0000));
  }
  if (C % 2) {
    const auto half = load<Halves>(head + (C - 1) * W);
    use(C - 1, (Floats)(__builtin_convertvector(half, Words) << 16));
  }
}

inline void store_head(float* to, const Floats* head) {
  for (int c = 0; c < C; ++c) store(to + c * W, head[c]);
}

inline void store_head(bf16* to, const Floats* head) {
  for (int c = 0; c + 1 < C; c += 2) {
    const Words pairs = (rounded(head[c]) >> 16) | (rounded(head[c + 1]) & 0xffff0000);
    store(to + c * W, pairs);
  }
  if (C % 2) store(to + (C - 1) * W, to_halves(head[C - 1]));
}

// Adds neighbours: sums of a's pairs, then sums of b's.
template <int... I>
inline Floats add_pairs(Floats a, Floats b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, 2 * I...) + __builtin_shufflevector(a, b, 2 * I + 1 ...);
}

// Hides from the compiler how the address came about. It would otherwise compute all addresses of a
// loop in advance, many more than there are registers.
template <typename T>
inline void hide(const T*& address) {
  asm volatile("" : "+r"(address));
}

// What will be read soon: a head's keys or values at positions that are `stride` apart. Where they lie
// far apart the processor predicts neither the next position nor the next block; without this,
// decoding over long contexts took twice as long. Each is prefetched between two positions that are
// computed: many prefetches in a row would wait for each other. They fill the second-level cache, since
// more requests to memory may wait there than in the first, with which this took up to 1.6 times as long.
template <typename T>
struct Ahead {
  const T* at;
  const int64_t stride;

  INLINE void prefetch() {
    for (size_t byte = 0; byte < C * W * sizeof(T); byte += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(at) + byte, 0, 2);
    at += stride;
    hide(at);
  }
};

// Scores of Q queries for the next N keys, `stride` apart, 16 / N partial sums of each. The recursion
// keeps all sums in registers. Prefetches from `next` on, unless it is null.
template <int N, int Q, typename T, typename Next>
INLINE void score(const Floats* queries, const T*& key, int64_t stride, Next& next,
                  Floats (&sums)[Q]) {
  if constexpr (N == 1) {
    if constexpr (!std::is_null_pointer_v<Next>) next.prefetch();
    for (int q = 0; q < Q; ++q) sums[q] = Floats{};
    each_vector(key, [&](int c, Floats x) INLINE_LAMBDA {
      for (int q = 0; q < Q; ++q) sums[q] += queries[q * C + c] * x;
    });
    key += stride;
    hide(key);
  } else {
    Floats left[Q], right[Q];
    score<N / 2>(queries, key, stride, next, left);
    score<N / 2>(queries, key, stride, next, right);
    for (int q = 0; q < Q; ++q) sums[q] = add_pairs(left[q], right[q], std::make_integer_sequence<int, W>());
  }
}

// Adds n values, `stride` apart, to the sums of Q queries, whose weights are `width` apart.
template <int Q, typename T, typename Next>
inline void add_values(const float* weights, int64_t width, const T* values, int64_t stride,
                       int64_t n, Floats* sums, Next next) {
  Floats total[Q][C];
  for (int q = 0; q < Q; ++q)
    for (int c = 0; c < C; ++c) total[q][c] = sums[q * C + c];
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (!std::is_null_pointer_v<Next>) next.prefetch();
    each_vector(values + i * stride, [&](int c, Floats x) {
      for (int q = 0; q < Q; ++q) total[q][c] += weights[q * width + i] * x;
    });
  }
  for (int q = 0; q < Q; ++q)
    for (int c = 0; c < C; ++c) sums[q * C + c] = total[q][c];
}

// Softmax of the scores from `low` to `end` of `width`, which is a multiple of W.
inline void softmax(float* scores, int64_t low, int64_t end, int64_t width) {
  std::fill(scores, scores + low, -INFINITY);
  std::fill(scores + end, scores + width, -INFINITY);
  const auto each = [&](auto change) {
    for (int64_t t = 0; t < width; t += W) {
      auto x = load<Floats>(scores + t);
      change(x);
      store(scores + t, x);
    }
  };
  Floats peaks = Floats{} - INFINITY, totals{};
  each([&](Floats& x) { peaks = x > peaks ? x : peaks; });
  const float peak = reduce(peaks, [](auto a, auto b) { return a > b ? a : b; });
  each([&](Floats& x) { totals += x = exp_negative(x - peak); });
  const float share = 1 / reduce(totals, [](auto a, auto b) { return a + b; });
  each([&](Floats& x) { x *= share; });
}

// Calls use(how many, the first) for `count` things, at most MOST at a time.
template <int MOST, typename Use>
inline void in_groups(int64_t count, Use use) {
  int64_t at = 0;
  for (; count - at >= MOST; at += MOST) use(std::integral_constant<int, MOST>{}, at);
  if constexpr (MOST > 1)
    if (at < count)
      in_groups<MOST - 1>(count - at, [&](auto some, int64_t i) { use(some, at + i); });
}

// The scratch memory of a thread. In vectors, which are lines of the cache where vectors are longest:
// reading across two lines takes twice as long.
struct Scratch {
  std::vector<Floats> scores, keys, values, query, sum;

  // positions: a multiple of W.
  void reserve(int64_t queries, int64_t positions) {
    grow(scores, queries * positions / W);
    grow(query, queries * C);
    grow(sum, queries * C);
  }

  static void grow(std::vector<Floats>& memory, int64_t size) {
    if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
  }

  float* score(int64_t at) { return reinterpret_cast<float*>(scores.data()) + at; }
  float* value(int64_t at) { return reinterpret_cast<float*>(values.data()) + at; }
  float* key(int64_t at) { return reinterpret_cast<float*>(keys.data()) + at; }
};

// Some neighbouring heads of one row.
template <typename T>
struct Task : Row<T> {
  using Row<T>::call, Row<T>::row, Row<T>::dim, Row<T>::token, Row<T>::group, Row<T>::lowest;
  Scratch& scratch;
  const int64_t head, heads;  // of keys and values: the first, and their number

  Task(const Call<T>& call, int64_t row, Scratch& scratch, int64_t head, int64_t heads)
      : Row<T>(call, row), scratch(scratch), head(head), heads(heads) {}

  int64_t slot(int64_t position) const { return Row<T>::slot(position) + head * dim; }

  // Scales the queries of a token and begins their sums, from place `to` of the scratch on.
  void begin(int64_t query_token, int64_t to) {
    const T* queries = call.q + query_token * call.q_stride + head * group * dim;
    for (int64_t j = 0; j < heads * group; ++j)
      each_vector(queries + j * dim, [&](int c, Floats x) {
        scratch.query[(to + j) * C + c] = x * call.scale;
        scratch.sum[(to + j) * C + c] = Floats{};
      });
  }

  void finish(int64_t query_token, int64_t from) {
    T* result = call.out + (query_token * call.heads + head * group) * dim;
    for (int64_t j = 0; j < heads * group; ++j)
      store_head(result + j * dim, &scratch.sum[(from + j) * C]);
  }

  // Of a row with one new token. `written`: its keys and values are in their slot already.
  void attend_one(bool written) {
    if (!written) this->write(0, head, heads);
    const int64_t end = call.start[row] + 1, low = lowest(end), from = low / W * W;
    const int64_t width = (end - from + W - 1) / W * W;
    begin(call.first[row], 0);
    // (how many queries together, the first, keys or values of its head, what to prefetch), of 16
    // positions at `now` before `next`. A head's queries read the same, so only the first prefetch.
    // Whole tokens are prefetched in the order of memory, whichever head is computed: in the order of
    // heads, decoding waited for memory twice as long.
    const bool whole = heads == call.kv_heads;
    const auto each = [&](const T* now, const T* next, auto work) {
      for (int64_t h = 0; h < heads; ++h) {
        const T* const ahead = next + h * (whole ? W : 1) * dim;
        in_groups<TOGETHER>(group, [&](auto queries, int64_t j) {
          if (j) work(queries, h * group + j, now + h * dim, nullptr);
          else work(queries, h * group, now + h * dim, Ahead<T>{ahead, whole ? dim : token});
        });
      }
    };
    for (int64_t t = from; t < end; t += W)
      each(call.keys + slot(t), t + W < end ? call.keys + slot(t + W) : call.values + slot(from),
           [&](auto queries, int64_t j, const T* key, auto next) {
             Floats of[queries.value];
             score<W>(&scratch.query[j * C], key, token, next, of);
             for (int q = 0; q < queries.value; ++q)
               store(scratch.score((j + q) * width + t - from), of[q]);
           });
    for (int64_t j = 0; j < heads * group; ++j)
      softmax(scratch.score(j * width), low - from, end - from, width);
    for (int64_t t = from; t < end; t += W) {
      const int64_t skip = std::max<int64_t>(0, low - t), stop = std::min<int64_t>(W, end - t);
      each(call.values + slot(t), call.values + slot(std::min(t + W, (end - 1) / W * W)),
           [&](auto queries, int64_t j, const T* values, auto next) {
             add_values<queries.value>(scratch.score(j * width + t - from + skip), width,
                                       values + skip * token, token, stop - skip,
                                       &scratch.sum[j * C], next);
           });
    }
    finish(call.first[row], 0);
  }

  // Of the new tokens from `first` to `last` of a row, which read the same keys. Gathered and
  // converted to floats, all of them stay in the second-level cache, and 16 in the first while TOKENS
  // tokens read them. `heads` is 1.
  void attend_several(int64_t first, int64_t last) {
    const int64_t low = lowest(call.start[row] + first + 1) / W * W;
    const int64_t end = call.start[row] + last;
    const int64_t positions = (end - low + W - 1) / W * W;  // keys are read W at a time
    scratch.reserve(TOKENS * group, positions);
    scratch.grow(scratch.keys, positions * C);
    scratch.grow(scratch.values, positions * C);
    for (int64_t t = low; t < end; ++t) {
      const int64_t from = slot(t), to = (t - low) * dim;
      each_vector(call.keys + from, [&](int c, Floats x) { store(scratch.key(to + c * W), x); });
      each_vector(call.values + from,
                  [&](int c, Floats x) { store(scratch.value(to + c * W), x); });
    }
    for (int64_t i = first; i < last; i += TOKENS) attend_some(i, std::min(last, i + TOKENS), low);
  }

  void attend_some(int64_t first, int64_t last, int64_t from) {
    const int64_t start = call.start[row], width = (start + last - from + W - 1) / W * W;
    const int64_t count = (last - first) * group;
    const auto stop_of = [&](int64_t j) { return start + first + j / group + 1; };
    for (int64_t i = first; i < last; ++i) begin(call.first[row] + i, (i - first) * group);
    for (int64_t t = from; t < start + last; t += W)
      for (int64_t j = 0; j < count; j += 2) {
        const int64_t both = std::min(j + 1, count - 1);
        if (t >= stop_of(both) || t + W <= lowest(stop_of(j))) continue;
        if (both > j) score_some<2>(j, t - from, width);
        else score_some<1>(j, t - from, width);
      }
    for (int64_t j = 0; j < count; ++j) {
      const int64_t low = lowest(stop_of(j)), own = low / W * W;
      softmax(scratch.score(j * width + own - from), low - own, stop_of(j) - own,
              (stop_of(j) - own + W - 1) / W * W);
    }
    for (int64_t t = from; t < start + last; t += W)
      for (int64_t j = 0; j < count; j += 2) {
        const auto add = [&](auto queries, int64_t j, int64_t begin, int64_t end) {
          begin = std::max(begin, t), end = std::min(end, t + W);
          if (begin < end)
            add_values<queries.value>(scratch.score(j * width + begin - from), width,
                                      scratch.value((begin - from) * dim), dim, end - begin,
                                      &scratch.sum[j * C], nullptr);
        };
        constexpr std::integral_constant<int, 1> one;
        constexpr std::integral_constant<int, 2> two;
        const int64_t stop = stop_of(j), low = lowest(stop);
        if (j + 1 == count) {
          add(one, j, low, stop);
          continue;
        }
        // what only the first sees, both see, only the second sees
        const int64_t next_stop = stop_of(j + 1), next_low = lowest(next_stop);
        add(one, j, low, std::min(next_low, stop));
        add(two, j, next_low, stop);
        add(one, j + 1, std::max(next_low, stop), next_stop);
      }
    for (int64_t i = first; i < last; ++i) finish(call.first[row] + i, (i - first) * group);
  }

  // Of Q queries from j on, for the keys at `at` and after it.
  template <int Q>
  void score_some(int64_t j, int64_t at, int64_t width) {
    const float* key = scratch.key(at * dim);
    auto none = nullptr;
    Floats of[Q];
    score<W>(&scratch.query[j * C], key, dim, none, of);
    for (int q = 0; q < Q; ++q) store(scratch.score((j + q) * width + at), of[q]);
  }
};

// Neighbouring heads of keys and values that a task of a decoding row takes. All of them read whole
// tokens in sequence, which is fastest, but every thread needs tasks: one if they are equally long,
// otherwise some.
inline int64_t heads_together(int64_t rows, int64_t kv_heads) {
  const int64_t wanted = (rows > 1 ? 4 : 1) * omp_get_max_threads();
  int64_t tasks = 1;
  while (kv_heads % tasks || (tasks < kv_heads && rows * tasks < wanted)) ++tasks;
  return kv_heads / tasks;
}

// Some new tokens of a row that has several.
struct Piece {
  int64_t row, first, last;
};

// Attends for one.
template <typename T>
struct PlainPrompts {
  Scratch scratch;

  void attend(const Call<T>& call, const Piece& of, int64_t head) {
    Task<T>(call, of.row, scratch, head, 1).attend_several(of.first, of.last);
  }
};

// Of all rows with several new tokens; those of a row that see most come first. Rows are cut only if
// there would be few tasks for a thread, since keys are gathered for each piece.
template <typename T>
std::vector<Piece> pieces_of(const Call<T>& call) {
  constexpr int64_t LEAST = 128, TASKS = 4;  // tokens of a piece; wanted for each thread
  const auto several = [](int64_t count) { return count > 1; };
  const int64_t prompts = std::count_if(call.count, call.count + call.rows, several);
  std::vector<Piece> pieces;
  for (int64_t row = 0; row < call.rows; ++row) {
    if (!several(call.count[row])) continue;
    const int64_t cuts = TASKS * omp_get_max_threads() / (prompts * call.kv_heads) + 1;
    const int64_t length = std::max(LEAST, (call.count[row] + cuts - 1) / cuts);
    for (int64_t last = call.count[row]; last > 0; last = (last - 1) / length * length)
      pieces.push_back({row, (last - 1) / length * length, last});
  }
  return pieces;
}

template <typename T, typename Prompts>
void attend_rows(const Call<T>& call) {
  int64_t longest = 0;   // of the rows with one new token
  bool drafted = false;  // a sequence has several of them, which read each other's keys
  for (int64_t r = 0; r < call.rows; ++r) {
    if (call.count[r] == 1) longest = std::max(longest, call.start[r] + 1);
    drafted |= r && call.tables[r] == call.tables[r - 1];
  }
  const std::vector<Piece> pieces = pieces_of(call);
  const int64_t heads = heads_together(call.rows, call.kv_heads), tasks = call.kv_heads / heads;
#pragma omp parallel
  {
    // rows differ in length, so a free thread takes the next task; the longest tasks come first
    if (!pieces.empty()) {
      // whole tokens: those of a head lie far apart in memory
      for (int64_t row = 0; row < call.rows; ++row)
        if (call.count[row] > 1) {
          const Row<T> of(call, row);
#pragma omp for schedule(static) nowait
          for (int64_t i = 0; i < call.count[row]; ++i) of.write(i, 0, call.kv_heads);
        }
#pragma omp barrier
      Prompts prompts;
#pragma omp for schedule(dynamic) nowait
      for (size_t task = 0; task < pieces.size() * call.kv_heads; ++task)
        prompts.attend(call, pieces[task / call.kv_heads], task % call.kv_heads);
    }
    if (drafted) {
#pragma omp for schedule(static)
      for (int64_t row = 0; row < call.rows; ++row)
        if (call.count[row] == 1) Row<T>(call, row).write(0, 0, call.kv_heads);
    }
    Scratch scratch;
    scratch.reserve(heads * (call.heads / call.kv_heads), (longest + 2 * W) / W * W);
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < call.rows * tasks; ++task) {
      const int64_t row = task / tasks, head = task % tasks * heads;
      if (call.count[row] == 1) Task<T>(call, row, scratch, head, heads).attend_one(drafted);
    }
  }
}

}  // namespace

// q: [tokens, heads, HEAD_DIM], k, v: [tokens, kv_heads, HEAD_DIM], each with as many elements from
// token to token as its stride says. Query head h reads head h / (heads / kv_heads) of keys and
// values. out: as q, contiguous. keys, values: a layer's pools [blocks, block_tokens, kv_heads,
// HEAD_DIM]; block_tokens is a multiple of 16. Per row r: tokens first[r] .. first[r] + count[r] take
// the positions from start[r] on in the blocks that the int32 at tables[r] name; each attends to
// itself and the window - 1 positions before it. Rows with one new token each may belong to one
// sequence, at consecutive positions: they follow each other and name the same tables[r]. No rows of
// two sequences may write to the same block.
#define EXPORT(name, T, Prompts)                                                                 \
  extern "C" void name(const T* q, const T* k, const T* v, T* out, int64_t rows, int64_t heads,  \
                       int64_t kv_heads, int64_t q_stride, int64_t k_stride, int64_t v_stride,   \
                       const int64_t* first, const int64_t* count, const int64_t* start,         \
                       const int64_t* tables, T* keys, T* values, int64_t block_tokens,          \
                       int64_t window, float scale) {                                            \
    attend_rows<T, Prompts>({q, k, v, out, rows, heads, kv_heads, q_stride, k_stride, v_stride,  \
                             first, count, start, tables, keys, values, block_tokens, window,    \
                             scale});                                                            \
  }
EXPORT(attend_f32, float, PlainPrompts<float>)
EXPORT(attend_bf16, bf16, PlainPrompts<bf16>)

#if defined(__AVX512BF16__)
EXPORT(attend_dot_bf16, bf16, PackedPrompts<ByDot>)
#endif

#if defined(HAS_AMX)
extern "C" int32_t amx_allowed() { return request_tiles(); }

EXPORT(attend_amx_bf16, bf16, PackedPrompts<ByTiles>)
#endif
