// Ragged attention on a CPU: each row of an iteration brings n new tokens and attends to its own
// past of any length; one call serves a whole iteration of one layer.
//
// What it computes is defined by its plain-torch twin, gpt/attention.py:attend_rows. Keys and values
// are in the blocks of a pool, in float or bfloat16; all arithmetic is float. Loops are written so
// that a compiler vectorises them for the machine; no instruction set is named here.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int W = 16;  // lanes; compilers split these vectors where registers are narrower
constexpr int C = HEAD_DIM / W;  // vectors of a head
static_assert(HEAD_DIM % W == 0, "heads of whole vectors");
typedef float Floats __attribute__((vector_size(4 * W)));
typedef uint32_t Words __attribute__((vector_size(4 * W)));
typedef uint16_t Halves __attribute__((vector_size(2 * W)));

struct bf16 {
  uint16_t bits;
};

inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline Floats load(const bf16* from) {
  Halves half;
  std::memcpy(&half, from, sizeof half);
  const Words wide = __builtin_convertvector(half, Words) << 16;
  Floats x;
  std::memcpy(&x, &wide, sizeof x);
  return x;
}

inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

inline void store(bf16* to, Floats x) {
  Words wide;
  std::memcpy(&wide, &x, sizeof wide);
  wide += 0x7fff + ((wide >> 16) & 1);  // round to nearest, ties to even
  const Halves half = __builtin_convertvector(wide >> 16, Halves);
  std::memcpy(to, &half, sizeof half);
}

// Adds neighbours: sums of a's pairs, then sums of b's.
inline Floats add_pairs(Floats a, Floats b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

// exp for x <= 0 to about 2 ulp, branch-free (expf does not vectorise): Cephes' scheme, 2^n times a
// polynomial on [-ln2/2, ln2/2].
inline float exp_negative(float x) {
  x = std::max(x, -87.0f);
  const float n = std::nearbyint(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &exponent, sizeof scale);
  return p * scale;
}


// Prefetches one head's keys or values at 16 positions. Positions are a whole token apart, so the
// processor predicts neither the next position nor the next block; without this, decoding over long
// contexts took twice as long.
template <typename T>
inline void prefetch(const T* at, int64_t stride) {
  for (int i = 0; i < W; ++i)
    for (size_t byte = 0; byte < C * W * sizeof(T); byte += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(at + i * stride) + byte);
}

// Scores of one query for 16 keys at distances of `stride`, summed together.
template <typename T>
inline void score(const Floats* query, const T* keys, int64_t stride, float* scores) {
  Floats dots[W];
  for (int i = 0; i < W; ++i) {
    const T* key = keys + i * stride;
    dots[i] = query[0] * load(key);
    for (int c = 1; c < C; ++c) dots[i] += query[c] * load(key + c * W);
  }
  for (int n = W / 2; n > 0; n /= 2)
    for (int i = 0; i < n; ++i) dots[i] = add_pairs(dots[2 * i], dots[2 * i + 1]);
  store(scores, dots[0]);
}

template <typename T>
inline void add_values(const float* weights, const T* values, int64_t stride, int64_t n,
                       Floats* sum) {
  Floats total[C];
  for (int c = 0; c < C; ++c) total[c] = sum[c];
  for (int64_t i = 0; i < n; ++i)
    for (int c = 0; c < C; ++c) total[c] += weights[i] * load(values + i * stride + c * W);
  for (int c = 0; c < C; ++c) sum[c] = total[c];
}

inline void softmax(float* scores, int64_t n) {
  const float peak = *std::max_element(scores, scores + n);
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t t = 0; t < n; ++t) {
    scores[t] = exp_negative(scores[t] - peak);
    total += scores[t];
  }
  for (int64_t t = 0; t < n; ++t) scores[t] /= total;
}

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

// The scratch memory of a thread.
struct Scratch {
  std::vector<float> scores, keys, values;
  std::vector<Floats> query, sum;
};

// Some neighbouring heads of one row.
template <typename T>
struct Task {
  static constexpr int64_t dim = HEAD_DIM;
  const Call<T>& call;
  Scratch& scratch;
  const int64_t row, head, heads;  // of keys and values: the first, and their number
  const int64_t group = call.heads / call.kv_heads;  // queries to each of them
  const int64_t token = call.kv_heads * dim;
  const int32_t* table = reinterpret_cast<const int32_t*>(call.tables[row]);

  int64_t slot(int64_t position) const {
    const int64_t block = table[position / call.block_tokens];
    return (block * call.block_tokens + position % call.block_tokens) * token + head * dim;
  }

  void run() {
    const int64_t first = call.first[row], count = call.count[row], start = call.start[row];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t to = slot(start + i), from = first + i;
      std::memcpy(call.keys + to, call.k + from * call.k_stride + head * dim, heads * dim * sizeof(T));
      std::memcpy(call.values + to, call.v + from * call.v_stride + head * dim, heads * dim * sizeof(T));
    }
    if (count == 1) {
      attend(first, start + 1, head, heads, [&](const T* pool, int64_t t) { return pool + slot(t); },
             call.keys, call.values, token);
      return;
    }
    // many queries read the same keys: gathered and converted to floats, they stay in the cache
    const int64_t low = lowest(start + 1) / W * W, end = start + count;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = low; t < end; ++t) {
        const int64_t from = slot(t) + h * dim, to = (t - low) * dim;
        for (int c = 0; c < C; ++c) {
          store(&scratch.keys[to + c * W], load(call.keys + from + c * W));
          store(&scratch.values[to + c * W], load(call.values + from + c * W));
        }
      }
      for (int64_t i = 0; i < count; ++i)
        attend(first + i, start + i + 1, head + h, 1,
               [&](const float* packed, int64_t t) { return packed + (t - low) * dim; },
               scratch.keys.data(), scratch.values.data(), dim);
    }
  }

  int64_t lowest(int64_t end) const { return std::max<int64_t>(0, end - call.window); }

  // One token's queries of `n` heads from `h0` on, over the positions before `end`. `at` gives the
  // address of the first of these heads at a position, `stride` the distance within 16 positions.
  template <typename S, typename At>
  void attend(int64_t query_token, int64_t end, int64_t h0, int64_t n, At at, const S* keys,
              const S* values, int64_t stride) {
    const int64_t low = lowest(end), from = low / W * W, width = (end - from + W - 1) / W * W;
    const T* queries = call.q + query_token * call.q_stride + h0 * group * dim;
    for (int64_t i = 0; i < n * group * C; ++i) {
      scratch.query[i] = load(queries + i * W) * call.scale;
      scratch.sum[i] = Floats{};
    }
    const auto each = [&](auto work) {  // (head, its query, place of the query's scratch)
      for (int64_t h = 0; h < n; ++h)
        for (int64_t j = h * group; j < (h + 1) * group; ++j) work(h, j);
    };
    for (int64_t t = from; t < end; t += W) {
      const S *now = at(keys, t), *next = t + W < end ? at(keys, t + W) : at(values, from);
      each([&](int64_t h, int64_t j) {
        if (j == h * group) prefetch(next + h * dim, stride);
        score(&scratch.query[j * C], now + h * dim, stride, &scratch.scores[j * width + t - from]);
      });
    }
    for (int64_t j = 0; j < n * group; ++j)
      softmax(&scratch.scores[j * width + low - from], end - low);
    for (int64_t t = from; t < end; t += W) {
      const S *now = at(values, t), *next = at(values, std::min(t + W, (end - 1) / W * W));
      const int64_t skip = std::max<int64_t>(0, low - t), stop = std::min<int64_t>(W, end - t);
      each([&](int64_t h, int64_t j) {
        if (j == h * group) prefetch(next + h * dim, stride);
        add_values(&scratch.scores[j * width + t - from + skip], now + h * dim + skip * stride,
                      stride, stop - skip, &scratch.sum[j * C]);
      });
    }
    T* result = call.out + (query_token * call.heads + h0 * group) * dim;
    for (int64_t i = 0; i < n * group * C; ++i) store(result + i * W, scratch.sum[i]);
  }
};

// Heads per task: neighbours share pages and streams of memory, but every thread needs work.
inline int64_t heads_together(int64_t rows, int64_t kv_heads) {
  int64_t together = 1;
  while (together < 8 && kv_heads % (2 * together) == 0 &&
         rows * kv_heads >= 2 * together * 2 * omp_get_max_threads())
    together *= 2;
  return together;
}

template <typename T>
void attend_rows(const Call<T>& call) {
  int64_t longest = 0, most = 0;
  for (int64_t r = 0; r < call.rows; ++r) {
    longest = std::max(longest, call.start[r] + call.count[r] + W);
    most = std::max(most, call.count[r]);
  }
  const int64_t heads = heads_together(call.rows, call.kv_heads), tasks = call.kv_heads / heads;
  const int64_t queries = heads * (call.heads / call.kv_heads);
#pragma omp parallel
  {
    Scratch scratch;
    scratch.scores.resize(queries * longest);
    scratch.query.resize(queries * C);
    scratch.sum.resize(queries * C);
    if (most > 1) {
      scratch.keys.resize(longest * HEAD_DIM);
      scratch.values.resize(longest * HEAD_DIM);
    }
    // rows differ in length, so a free thread takes the next task
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < call.rows * tasks; ++task)
      if (call.count[task / tasks])
        Task<T>{call, scratch, task / tasks, task % tasks * heads, heads}.run();
  }
}

}  // namespace

// q: [tokens, heads, HEAD_DIM], k, v: [tokens, kv_heads, HEAD_DIM], each with as many elements from
// token to token as its stride says. Query head h reads head h / (heads / kv_heads) of keys and
// values. out: as q, contiguous. keys, values: a layer's pools [blocks, block_tokens, kv_heads,
// HEAD_DIM]; block_tokens is a multiple of 16. Per row r: tokens first[r] .. first[r] + count[r] take
// the positions from start[r] on in the blocks that the int32 at tables[r] name; each attends to
// itself and the window - 1 positions before it. No two rows may write to the same block.
#define EXPORT(name, T)                                                                          \
  extern "C" void name(const T* q, const T* k, const T* v, T* out, int64_t rows, int64_t heads,  \
                       int64_t kv_heads, int64_t q_stride, int64_t k_stride, int64_t v_stride,   \
                       const int64_t* first, const int64_t* count, const int64_t* start,         \
                       const int64_t* tables, T* keys, T* values, int64_t block_tokens,          \
                       int64_t window, float scale) {                                            \
    attend_rows<T>({q, k, v, out, rows, heads, kv_heads, q_stride, k_stride, v_stride, first,    \
                    count, start, tables, keys, values, block_tokens, window, scale});           \
  }
EXPORT(attend_f32, float)
EXPORT(attend_bf16, bf16)
