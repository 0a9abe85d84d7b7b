// Draws the next token of each row. What it computes is defined by its plain-torch twin,
// runtime/sampling/drawing.py:draw; this does the same without sorting a vocabulary, row by row, each row in the
// cache of one core. No instruction set is named here.
//
// Two ideas save work. First, the nucleus is not computed: the winner among all tokens is drawn, and
// it is the winner of the nucleus if the tokens better than it have a mass below top_p. Otherwise
// neither it nor any token after it is in the nucleus, and the remaining tokens are drawn from again
// (with top_p 0.9 in one case of ten). Second, noise has an upper bound that needs no logarithm; the
// noise itself is computed only for the few tokens that can still win. Where a row has a mask, a third:
// blocks of tokens of which none is allowed are not even read, and most masks of a grammar allow few.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "../registers.h"

namespace {

constexpr int64_t BLOCK = 128;      // tokens examined together
constexpr size_t TOGETHER = 4;      // blocks of which the best tokens are compared
constexpr int64_t SMALL = 1 << 16;  // logits not worth a second thread
constexpr float NEVER = -std::numeric_limits<float>::infinity();

inline Floats load(const float* from) { return load<Floats>(from); }

inline Floats load(const bf16* from) {
  return (Floats)(__builtin_convertvector(load<Halves>(from), Words) << 16);
}

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

inline float largest(Floats x) {
  float best = x[0];
  for (int i = 1; i < W; ++i) best = std::max(best, x[i]);
  return best;
}

inline double sum_of(Floats x) {
  double sum = 0;
  for (int i = 0; i < W; ++i) sum += x[i];
  return sum;
}

template <typename T>  // uint32_t or Words
inline T mix(T x) {    // Wellons' "lowbias32"
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

inline uint32_t key_of(uint64_t seed, uint64_t position) {  // the finaliser of splitmix64
  uint64_t z = seed * 0x9e3779b97f4a7c15u + position * 0xd1b54a32d192ed03u + 1;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>(z ^ (z >> 31)) ^ 0x80000000u;
}

// The rows' settings, in the order of runtime.sampling.drawing.Asked. [R], then [R][edits].
struct Asked {
  const int64_t *seeds, *prompt, *top_k;
  const float *temperature, *top_p, *min_p, *typical_p, *repetition, *presence, *frequency;
  const int64_t *edited, *until;
  const float* gains;
};

inline bool is_penalised(const Asked& asked, int64_t row) {
  return asked.repetition[row] != 1 || asked.presence[row] != 0 || asked.frequency[row] != 0;
}

// The known tokens of each row. [R][length], [R]
struct History {
  int64_t* ids;
  int64_t length;
  int64_t* known;

  void append(int64_t row, int64_t token) const {
    ids[row * length + std::min(known[row], length - 1)] = token;
    ++known[row];
  }
};

// The tokens that some rows may draw, a bit for each token of the vocabulary. [masks][words], [R]:
// which mask a row has, or -1
struct Masks {
  const uint32_t* bits;
  const int64_t* places;  // null: no row has one
  int64_t words;

  const uint32_t* of(int64_t row) const {
    return places && places[row] >= 0 ? bits + places[row] * words : nullptr;
  }
};

// The order in which sets take tokens: by key, and by id among equal keys. Returns which of W tokens
// from `first` on come before the place (key, id).
inline Ints are_before(const float* keys, int64_t first, float key, int64_t id) {
  Ints lanes;
  for (int i = 0; i < W; ++i) lanes[i] = i;
  const Floats x = load(keys + first);
  return (x > key) | ((x == key) & (lanes < static_cast<int32_t>(id - first)));
}

// How many tokens a mask allows.
inline int64_t allowed_by(const uint32_t* mask, int64_t from, int64_t end) {
  int64_t allowed = 0;
  for (int64_t i = from; i < end; i += 32) allowed += __builtin_popcount(mask[i / 32]);
  return allowed;
}

inline bool allows(const uint32_t* mask, int64_t token) {
  return mask[token / 32] >> (token % 32) & 1;
}

// The first of the largest scores that were looked at; token 0 if all are NEVER.
struct Best {
  float score = NEVER;
  int64_t token = 0;

  template <typename T>
  void look(const T* scores, const uint32_t* mask, int64_t from, int64_t end) {
    for (int64_t i = from; i < end; ++i)
      if (const float it = widen(scores[i]); it > score && (!mask || allows(mask, i)))
        score = it, token = i;
  }

  template <typename T>
  void look_at_block(const T* scores, const uint32_t* mask, int64_t b) {
    Floats top = load(scores + b);
    for (int64_t i = b + W; i < b + BLOCK; i += W) top = larger(top, load(scores + i));
    if (largest(top) > score) look(scores, mask, b, b + BLOCK);
  }
};

template <typename T>
int64_t first_of_best(const T* scores, const uint32_t* mask, int64_t size) {
  const int64_t whole = size / BLOCK * BLOCK;
  Best best;
  for (int64_t b = 0; b < whole; b += BLOCK)
    if (!mask || allowed_by(mask, b, b + BLOCK)) best.look_at_block(scores, mask, b);
  best.look(scores, mask, whole, size);
  return best.token;
}

// A row in progress. Excluded tokens have the score NEVER; what is not in a block of `blocks` is
// excluded without having one.
struct Row {
  int64_t size = 0;             // of the vocabulary
  std::vector<int64_t> blocks;  // the first tokens of those with any that is allowed
  std::vector<float> scores, masses, keys;
  std::vector<uint32_t> mixed;  // of token ids
  std::vector<int32_t> counts;  // zeros between rows
  std::vector<float> tops;
  std::vector<int64_t> chosen;

  // Reads the allowed tokens, all without a mask, and returns how many they are.
  template <typename T>
  int64_t read(const T* logits, int64_t vocabulary, const uint32_t* mask) {
    size = vocabulary;
    const int64_t padded = (size + BLOCK - 1) / BLOCK * BLOCK;  // with excluded tokens
    scores.resize(padded);
    masses.resize(padded);
    for (int64_t i = mixed.size(); i < padded; ++i) mixed.push_back(mix(static_cast<uint32_t>(i)));
    blocks.clear();
    int64_t left = 0;
    for (int64_t b = 0; b < padded; b += BLOCK) {
      const int64_t end = std::min(size, b + BLOCK), whole = end / W * W;
      const int64_t allowed = mask ? allowed_by(mask, b, end) : end - b;
      if (!allowed) continue;
      left += allowed;
      blocks.push_back(b);
      for (int64_t i = b; i < whole; i += W) store(&scores[i], load(logits + i));
      for (int64_t i = whole; i < b + BLOCK; ++i) scores[i] = i < end ? widen(logits[i]) : NEVER;
      if (allowed < end - b) exclude(mask, b, end);
    }
    return left;
  }

  void exclude(const uint32_t* mask, int64_t from, int64_t end) {
    Words lanes;
    for (int i = 0; i < W; ++i) lanes[i] = i;
    for (int64_t first = from; first < end; first += 32) {
      const uint32_t word = mask[first / 32];
      for (int64_t i = 0; i < 32; i += W) {
        const Words bits = (Words{} + word) >> (lanes + static_cast<uint32_t>(i)) & 1u;
        float* const at = &scores[first + i];
        store(at, bits != 0 ? load(at) : Floats{} + NEVER);
      }
    }
  }

  // Applies penalties and bias to the tokens that they name.
  void edit(const Asked& asked, const History& history, int64_t edits, int64_t row) {
    const int64_t known = history.known[row];
    if (is_penalised(asked, row)) {
      const float rate = asked.repetition[row];
      const float presence = asked.presence[row], frequency = asked.frequency[row];
      const int64_t* ids = history.ids + row * history.length;
      if (static_cast<int64_t>(counts.size()) < size) counts.resize(size);
      for (int64_t i = asked.prompt[row]; i < known; ++i) ++counts[ids[i]];
      for (int64_t i = 0; i < known; ++i) {
        int32_t& count = counts[ids[i]];
        if (count < 0) continue;  // done
        float& score = scores[ids[i]];
        score = score < 0 ? score * rate : score / rate;
        score -= static_cast<float>(count) * frequency + (count > 0 ? presence : 0.0f);
        count = -1;
      }
      for (int64_t i = 0; i < known; ++i) counts[ids[i]] = 0;
    }
    for (int64_t i = row * edits; i < (row + 1) * edits; ++i)
      if (known < asked.until[i]) scores[asked.edited[i]] += asked.gains[i];
  }

  // Some allowed tokens may have been excluded, by a bias or by min_tokens; if all have been, they
  // are equal.
  void restore(const uint32_t* mask) {
    for (const int64_t b : blocks)
      for (int64_t i = b; i < b + BLOCK; ++i)
        if (scores[i] > NEVER) return;
    for (const int64_t b : blocks)
      for (int64_t i = b; i < std::min(size, b + BLOCK); ++i)
        if (allows(mask, i)) scores[i] = 0;
  }

  int64_t best() const {
    Best best;
    for (const int64_t b : blocks) best.look_at_block(scores.data(), nullptr, b);
    return best.token;
  }

  float divide(float temperature) {
    float* const s = scores.data();
    Floats best = Floats{} + NEVER;
    for (const int64_t b : blocks)
      for (int64_t i = b; i < b + BLOCK; i += W) {
        const Floats score = load(s + i) / temperature;
        store(s + i, score);
        best = larger(best, score);
      }
    return largest(best);
  }

  // Keeps the tokens that come before a place.
  void cut(const float* by, float key, int64_t id) {
    float* const s = scores.data();
    for (const int64_t b : blocks)
      for (int64_t i = b; i < b + BLOCK; i += W)
        store(s + i, are_before(by, i, key, id) ? load(s + i) : Floats{} + NEVER);
  }

  bool is_better(int64_t a, int64_t b) const {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
  }

  // Keeps the best `count` tokens. The best of each group of tokens gives a lower bound for them, so
  // that few others are examined.
  void keep_best(int64_t count) {
    const float* const s = scores.data();
    tops.clear();
    for (size_t n = 0; n < blocks.size(); n += TOGETHER) {
      Floats top = Floats{} + NEVER;
      for (size_t m = n; m < std::min(blocks.size(), n + TOGETHER); ++m)
        for (int64_t i = blocks[m]; i < blocks[m] + BLOCK; i += W) top = larger(top, load(s + i));
      for (int i = 0; i < W; ++i) tops.push_back(top[i]);
    }
    float least = NEVER;
    if (count <= static_cast<int64_t>(tops.size())) {
      std::nth_element(tops.begin(), tops.begin() + count - 1, tops.end(), std::greater<float>());
      least = tops[count - 1];
    }
    choose(least);
    const auto last = chosen.begin() + count - 1;
    std::nth_element(chosen.begin(), last, chosen.end(),
                     [this](int64_t a, int64_t b) { return is_better(a, b); });
    cut(s, s[*last], *last + 1);
  }

  // Keeps the nucleus, from which the typical set is taken: rare enough to sort.
  void keep_nucleus(float share, double total) {
    choose(std::numeric_limits<float>::lowest());
    std::sort(chosen.begin(), chosen.end(),
              [this](int64_t a, int64_t b) { return is_better(a, b); });
    double before = 0;
    for (const int64_t token : chosen) {
      if (before >= share * total) scores[token] = NEVER;
      before += masses[token];
    }
  }

  void choose(float least) {
    const float* const s = scores.data();
    chosen.clear();
    for (const int64_t b : blocks) {
      Floats top = load(s + b);
      for (int64_t i = b + W; i < b + BLOCK; i += W) top = larger(top, load(s + i));
      if (largest(top) < least) continue;
      for (int64_t i = b; i < std::min(size, b + BLOCK); ++i)
        if (s[i] >= least) chosen.push_back(i);
    }
  }

  // Probabilities without their common factor, the best being 1, and their sum.
  double weigh(float best) {
    const float* const s = scores.data();
    float* const m = masses.data();
    double total = 0;
    for (const int64_t b : blocks) {
      Floats sum = {};
      for (int64_t i = b; i < b + BLOCK; i += W) {
        const Floats score = load(s + i);
        const Floats mass = score > NEVER ? exp_negative(score - best) : Floats{};
        store(m + i, mass);
        sum += mass;
      }
      total += sum_of(sum);
    }
    return total;
  }

  // The mass of the tokens before a token.
  double before(const float* by, int64_t token) const {
    const float* const m = masses.data();
    const float key = by[token];
    double total = 0;
    for (const int64_t b : blocks) {
      Floats sum = {};
      for (int64_t i = b; i < b + BLOCK; i += W)
        sum += are_before(by, i, key, token) ? load(m + i) : Floats{};
      total += sum_of(sum);
    }
    return total;
  }

  // How typical: the negative distance of a token's surprise from the entropy.
  void set_keys(float best, double total) {
    const float log_total = static_cast<float>(std::log(total));
    double sum = 0;
    for (const int64_t b : blocks)
      for (int64_t i = b; i < b + BLOCK; ++i)
        if (masses[i] > 0) sum += masses[i] * (best + log_total - scores[i]);
    const float entropy = static_cast<float>(sum / total);
    keys.resize(scores.size());
    for (const int64_t b : blocks)
      for (int64_t i = b; i < b + BLOCK; ++i)
        keys[i] = -std::fabs(best + log_total - scores[i] - entropy);
  }

  // The token with the largest sum of score and noise, the first of equals, or -1.
  //
  // Noise is -log(-log u). Since -log u >= 1 - u, it is at most -log(1 - u), which is at most what
  // the line through exponent and mantissa gives: log2(2^e m) >= e + m - 1 for 1 <= m <= 2.
  int64_t winner(uint32_t key) const {
    const float* const s = scores.data();
    const uint32_t* const hashes = mixed.data();
    float best = NEVER;
    int64_t found = -1;
    for (const int64_t b : blocks) {
      float bounds[BLOCK];
      Floats top = Floats{} + NEVER;
      for (int64_t i = b; i < b + BLOCK; i += W) {
        const Words bits = mix(load<Words>(hashes + i) ^ key) >> 9;
        const Floats rest = 8388607.5f - __builtin_convertvector((Ints)bits, Floats);  // (1-u) 2^23
        const Floats log2 = __builtin_convertvector((Ints)rest, Floats) * 0x1p-23f - 150.0f;
        const Floats bound = load(s + i) + (1e-4f - 0.693147181f * log2);
        store(bounds + i - b, bound);
        top = larger(top, bound);
      }
      if (!(largest(top) > best)) continue;
      for (int64_t i = b; i < b + BLOCK; ++i) {
        if (!(bounds[i - b] > best)) continue;
        const uint32_t bits = mix(hashes[i] ^ key) >> 9;
        const float uniform = (static_cast<float>(bits) + 0.5f) * 0x1p-23f;
        const float sum = s[i] - std::log(-std::log(uniform));
        if (sum > best) best = sum, found = i;
      }
    }
    return found;
  }
};

template <typename T>
int64_t draw_row(Row& row, const T* logits, int64_t size, const Asked& asked,
                 const History& history, int64_t edits, const Masks& masks, int64_t r) {
  const float temperature = asked.temperature[r], top_p = asked.top_p[r];
  const uint32_t* const mask = masks.of(r);
  const bool shaped = edits > 0 || is_penalised(asked, r);
  if (temperature == 0 && !shaped) return first_of_best(logits, mask, size);
  const int64_t left = row.read(logits, size, mask);
  if (shaped) row.edit(asked, history, edits, r);
  if (shaped && mask) row.restore(mask);
  if (temperature == 0) return row.best();

  const float best = row.divide(temperature);
  if (!(best > NEVER)) return 0;
  if (asked.min_p[r] > 0)
    row.cut(row.scores.data(), best + std::log(asked.min_p[r]), std::numeric_limits<int32_t>::max());
  if (asked.top_k[r] < left) row.keep_best(asked.top_k[r]);

  const bool typical = asked.typical_p[r] < 1;
  const float share = typical ? asked.typical_p[r] : top_p;
  double total = 0;
  if (share < 1) total = row.weigh(best);
  if (typical) {
    if (top_p < 1) {
      row.keep_nucleus(top_p, total);
      total = row.weigh(best);
    }
    row.set_keys(best, total);
  }
  const float* const by = (typical ? row.keys : row.scores).data();
  const uint32_t key = key_of(asked.seeds[r], history.known[r]);
  for (int64_t token = row.winner(key);;) {
    if (!(share < 1) || token < 0) return std::max<int64_t>(token, 0);
    if (!(row.before(by, token) >= share * total)) return token;
    row.cut(by, by[token], token);
    token = row.winner(key);
  }
}

template <typename T>
void draw(const T* logits, int64_t rows, int64_t size, const Asked& asked, int64_t edits,
          const Masks& masks, const History& history, int64_t* tokens) {
#pragma omp parallel if (rows * size > SMALL)
  {
    static thread_local Row row;
#pragma omp for schedule(dynamic, 1)
    for (int64_t r = 0; r < rows; ++r) {
      tokens[r] = draw_row(row, logits + r * size, size, asked, history, edits, masks, r);
      history.append(r, tokens[r]);
    }
  }
}

}  // namespace

// logits: [rows][size]. asked: the addresses of its members. edited, until, gains: [rows][edits].
// bits: [masks][words], places: [rows], or null.
// ids: [rows][length], which need not hold them all where no row asks for a penalty; known: how many
// tokens of a row are known. tokens: [rows], which are known from then on.
#define EXPORT(name, T)                                                                          \
  extern "C" void name(const T* logits, int64_t rows, int64_t size, const void* const* asked,    \
                       int64_t edits, const uint32_t* bits, const int64_t* places, int64_t words, \
                       int64_t* ids, int64_t length, int64_t* known, int64_t* tokens) {           \
    Asked members;                                                                               \
    std::memcpy(&members, asked, sizeof members);                                                \
    draw(logits, rows, size, members, edits, Masks{bits, places, words},                         \
         History{ids, length, known}, tokens);                                                   \
  }
EXPORT(draw_f32, float)
EXPORT(draw_bf16, bf16)
