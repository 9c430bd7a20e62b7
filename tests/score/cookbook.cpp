#include "score/cookbook.hpp"

#include <algorithm>
#include <cmath>

namespace attend::test {
namespace {

using Captures = OracleCaptures;
using Buffers = std::vector<CaptureBuffer>;

const Dual kHidden = -INFINITY;

std::int64_t longest(const AttentionCase& c) {
  std::int64_t most = std::max(c.seqlen_q, c.seqlen_k);
  for (const auto& lengths : {c.varlen_q, c.varlen_k}) {
    for (const std::int64_t length : lengths) most = std::max(most, length);
  }
  return most;
}

Buffers none(const AttentionCase& /*c*/) {
  return {};
}

/// Returns a tensor with values from N(0, 1). The memory layout depends on the seed.
CaptureBuffer normal(const char* name, DType dtype, std::vector<std::int64_t> shape, std::uint64_t seed) {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) n *= extent;
  return {name, dtype, std::move(shape), normal_values(n, seed), static_cast<CaptureStrides>(seed % 4)};
}

/// Returns a tensor with one value for each token.
CaptureBuffer of_tokens(const char* name, DType dtype, const AttentionCase& c, std::int64_t (*value)(std::int64_t)) {
  std::vector<double> values;
  for (std::int64_t n = 0; n < longest(c); ++n) values.push_back(static_cast<double>(value(n)));
  return {name, dtype, {longest(c)}, values, CaptureStrides::kSpread};
}

std::int64_t floor_mod(std::int64_t a, std::int64_t b) {
  return ((a % b) + b) % b;
}

std::vector<Recipe> positions() {
  return {
      {"ALiBi", "score - slope[h] * abs(q + k_len - q_len - k)",
       [](const AttentionCase& c) {
         std::vector<double> slopes;
         for (std::int64_t h = 0; h < c.heads_q; ++h) slopes.push_back(std::exp2(-0.5 * static_cast<double>(h + 1)));
         return Buffers{{"slope", DType::kF32, {c.heads_q}, slopes}};
       },
       [](const Dual& score, const ScorePlace& at, const Captures& c) {
         return score - c.load("slope", {at.h}) * Dual(std::abs(at.q + at.k_len - at.q_len - at.k));
       }},
      {"Relative positions", "score + table[h][clamp(q - k, -8, 7) + 8]",
       [](const AttentionCase& c) {
         return Buffers{normal("table", DType::kF32, {c.heads_q, 16}, 2)};
       },
       [](const Dual& score, const ScorePlace& at, const Captures& c) {
         return score + c.load("table", {at.h, std::clamp<std::int64_t>(at.q - at.k, -8, 7) + 8});
       }},
      {"T5 buckets",
       "let n = max(q + k_len - q_len - k, 0);\n"
       "let far = 8 + int(log(max(n, 1) / 8) / log(128 / 8) * 8 + 0.001);\n"
       "score + table[h][n < 8 ? n : min(far, 15)]",
       [](const AttentionCase& c) {
         return Buffers{normal("table", DType::kBF16, {c.heads_q, 16}, 3)};
       },
       [](const Dual& score, const ScorePlace& at, const Captures& c) {
         const std::int64_t n = std::max<std::int64_t>(at.q + at.k_len - at.q_len - at.k, 0);
         // From distance 8 on, there are two buckets for each power of 2. They begin at 8, 8 * 2^(1/2), 8 * 2, ...
         std::int64_t bucket = n;
         if (n >= 8) {
           bucket = 8;
           while (bucket < 15 && n * n >= 64 * (std::int64_t{1} << (bucket - 7))) ++bucket;
         }
         return score + c.load("table", {at.h, bucket});
       }},
      {"Decay", "score - rate * log1p(abs(q - k))",
       [](const AttentionCase&) { return Buffers{normal("rate", DType::kF64, {}, 4)}; },
       [](const Dual& score, const ScorePlace& at, const Captures& c) {
         return score - c.load("rate", {}) * Dual(std::log1p(static_cast<long double>(std::abs(at.q - at.k))));
       }},
      {"A bias for each row and key", "score + bias[h][q][k]",
       [](const AttentionCase& c) {
         return Buffers{normal("bias", DType::kF16, {c.heads_q, longest(c), longest(c)}, 5)};
       },
       [](const Dual& score, const ScorePlace& at, const Captures& c) {
         return score + c.load("bias", {at.h, at.q, at.k});
       }},
      {"A gain and a bias of keys", "gain[h] * score + key_bias[b][k]",
       [](const AttentionCase& c) {
         return Buffers{normal("gain", DType::kF32, {c.heads_q}, 6),
                        normal("key_bias", DType::kF32, {c.num_sequences(), longest(c)}, 7)};
       },
       [](const Dual& score, const ScorePlace& at, const Captures& c) {
         return c.load("gain", {at.h}) * score + c.load("key_bias", {at.b, at.k});
       }},
  };
}

std::vector<Recipe> activations() {
  return {
      {"Soft cap", "cap * tanh(score / cap)",
       [](const AttentionCase&) {
         return Buffers{{"cap", DType::kF32, {}, {1.5}}};
       },
       [](const Dual& score, const ScorePlace&, const Captures& c) {
         return c.load("cap", {}) * tanh(score / c.load("cap", {}));
       }},
      {"Weights of a sigmoid", "log(sigmoid(score) + 0.01)", none,
       [](const Dual& score, const ScorePlace&, const Captures&) {
         return log(Dual(1) / (Dual(1) + exp(Dual(0) - score)) + Dual(0.01L));
       }},
      {"Length scaling", "score * log(k_len + 1) / 3", none,
       [](const Dual& score, const ScorePlace& at, const Captures&) {
         return score * Dual(std::log(static_cast<long double>(at.k_len + 1)) / 3);
       }},
  };
}

std::vector<Recipe> masks_from_memory() {
  return {
      {"Documents", "where(doc[q] == doc[k], score, -inf)",
       [](const AttentionCase& c) {
         return Buffers{of_tokens("doc", DType::kI32, c, [](std::int64_t n) { return n / 11; })};
       },
       [](const Dual& score, const ScorePlace& at, const Captures& c) {
         return c.load_int("doc", {at.q}) == c.load_int("doc", {at.k}) ? score : kHidden;
       }},
      {"Documents, causal, some of them in the keys alone", "k <= q && doc_of_rows[q] == doc_of_keys[k] ? score : -inf",
       [](const AttentionCase& c) {
         return Buffers{
             of_tokens("doc_of_rows", DType::kI64, c, [](std::int64_t n) { return n % 5 == 3 ? -1 : n / 13; }),
             of_tokens("doc_of_keys", DType::kI32, c, [](std::int64_t n) { return n / 13; })};
       },
       [](const Dual& score, const ScorePlace& at, const Captures& c) {
         const bool is_same = c.load_int("doc_of_rows", {at.q}) == c.load_int("doc_of_keys", {at.k});
         return at.k <= at.q && is_same ? score : kHidden;
       }},
      {"Prefix LM", "where(k <= q || k < prefix[b], score, -inf)",
       [](const AttentionCase& c) {
         std::vector<double> lengths;
         for (std::int64_t b = 0; b < c.num_sequences(); ++b) lengths.push_back(static_cast<double>(3 + 7 * b));
         return Buffers{{"prefix", DType::kI32, {c.num_sequences()}, lengths}};
       },
       [](const Dual& score, const ScorePlace& at, const Captures& c) {
         return at.k <= at.q || at.k < c.load_int("prefix", {at.b}) ? score : kHidden;
       }},
      {"A mask in memory", "mask[q][k] ? score : -inf",
       [](const AttentionCase& c) {
         std::vector<double> values;
         for (const double x : normal_values(longest(c) * longest(c), 9)) values.push_back(x > 0.3 ? 1 : 0);
         return Buffers{{"mask", DType::kBool, {longest(c), longest(c)}, values, CaptureStrides::kTransposed}};
       },
       [](const Dual& score, const ScorePlace& at, const Captures& c) {
         return c.load_int("mask", {at.q, at.k}) != 0 ? score : kHidden;
       }},
  };
}

std::vector<Recipe> masks_by_position() {
  return {
      {"Sliding window", "where(abs(q - k) <= 4, score, -inf)", none,
       [](const Dual& score, const ScorePlace& at, const Captures&) {
         return std::abs(at.q - at.k) <= 4 ? score : kHidden;
       }},
      {"Sliding window with global keys", "where(k < 2 || abs(q - k) <= 3, score, -inf)", none,
       [](const Dual& score, const ScorePlace& at, const Captures&) {
         return at.k < 2 || std::abs(at.q - at.k) <= 3 ? score : kHidden;
       }},
      {"Dilated window", "where(k <= q && (q - k) % 3 == 0, score, -inf)", none,
       [](const Dual& score, const ScorePlace& at, const Captures&) {
         return at.k <= at.q && floor_mod(at.q - at.k, 3) == 0 ? score : kHidden;
       }},
      {"Blocks, causal", "where(k // 16 <= q // 16, score, -inf)", none,
       [](const Dual& score, const ScorePlace& at, const Captures&) {
         return at.k / 16 <= at.q / 16 ? score : kHidden;
       }},
      {"Neighbourhood in an image",
       "let rows = abs(q // 8 - k // 8);\n"
       "let columns = abs(q % 8 - k % 8);\n"
       "max(rows, columns) <= 1 ? score : -inf",
       none,
       [](const Dual& score, const ScorePlace& at, const Captures&) {
         const bool is_near = std::abs(at.q / 8 - at.k / 8) <= 1 && std::abs(at.q % 8 - at.k % 8) <= 1;
         return is_near ? score : kHidden;
       }},
  };
}

}  // namespace

const std::vector<Recipe>& cookbook() {
  static const std::vector<Recipe> all = [] {
    std::vector<Recipe> recipes = positions();
    for (const auto& more : {activations(), masks_from_memory(), masks_by_position()}) {
      recipes.insert(recipes.end(), more.begin(), more.end());
    }
    return recipes;
  }();
  return all;
}

ScoreCase with_recipe(const AttentionCase& c, const Recipe& recipe) {
  return {c, recipe.text, recipe.captures(c)};
}

}  // namespace attend::test
