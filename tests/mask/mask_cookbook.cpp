#include "mask/mask_cookbook.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace attend::test {
namespace {

using Index = std::int64_t;
using Buffers = std::vector<CaptureBuffer>;

Buffers none(const MaskSizes& /*sizes*/) {
  return {};
}

std::vector<double> as_doubles(const std::vector<Index>& integers) {
  return {integers.begin(), integers.end()};
}

Buffers documents(const MaskSizes& s) {
  return {{"doc", DType::kI32, {static_cast<Index>(s.doc.size())}, as_doubles(s.doc), CaptureStrides::kSpread}};
}

/// Returns the number of tokens of sequence b that are not padding.
Index valid_tokens(Index b) {
  return 70 + 50 * b;
}

/// Returns whether token k is an ancestor of token q in a tree of draft tokens. The parent of token n is (n - 1) / 2.
bool is_ancestor(Index k, Index q) {
  while (q > k) q = (q - 1) / 2;
  return q == k;
}

std::vector<MaskRecipe> of_positions() {
  return {
      {"Causal", "k <= q", none, [](const MaskSizes&, Index, Index, Index q, Index k) { return k <= q; }},
      {"Causal, aligned at the end", "k <= q + k_len - q_len", none,
       [](const MaskSizes& s, Index, Index, Index q, Index k) { return k <= q + s.shape.seqlen_k - s.shape.seqlen_q; }},
      {"Sliding window", "k <= q && q - k <= 100", none,
       [](const MaskSizes&, Index, Index, Index q, Index k) { return k <= q && q - k <= 100; }},
      {"Dilated window", "abs(q - k) <= 90 && (q - k) % 3 == 0", none,
       [](const MaskSizes&, Index, Index, Index q, Index k) {
         return std::abs(q - k) <= 90 && std::abs(q - k) % 3 == 0;
       }},
      {"Global and sliding", "k < 4 || q < 4 || abs(q - k) <= 64", none,
       [](const MaskSizes&, Index, Index, Index q, Index k) { return k < 4 || q < 4 || std::abs(q - k) <= 64; }},
      {"Prefix of a language model", "k < 100 || k <= q", none,
       [](const MaskSizes&, Index, Index, Index q, Index k) { return k < 100 || k <= q; }},
      {"Block diffusion", "q // 48 >= k // 48", none,
       [](const MaskSizes&, Index, Index, Index q, Index k) { return q / 48 >= k / 48; }},
      {"Neighbours in an image", "let w = 16; abs(q // w - k // w) <= 3 && abs(q % w - k % w) <= 3", none,
       [](const MaskSizes&, Index, Index, Index q, Index k) {
         return std::abs(q / 16 - k / 16) <= 3 && std::abs(q % 16 - k % 16) <= 3;
       }},
      {"Sliding tiles", "abs(q // 64 - k // 64) <= 1", none,
       [](const MaskSizes&, Index, Index, Index q, Index k) { return std::abs(q / 64 - k / 64) <= 1; }},
      {"Heads of different reach", "q - k <= 32 << h && k <= q", none,
       [](const MaskSizes&, Index, Index h, Index q, Index k) { return q - k <= (Index{32} << h) && k <= q; }},
      {"Nothing", "false", none, [](const MaskSizes&, Index, Index, Index, Index) { return false; }},
      {"Everything", "1", none, [](const MaskSizes&, Index, Index, Index, Index) { return true; }},
  };
}

std::vector<MaskRecipe> of_captures() {
  return {
      {"Documents", "doc[q] == doc[k]", documents,
       [](const MaskSizes& s, Index, Index, Index q, Index k) { return s.doc[q] == s.doc[k]; }},
      {"Causal documents", "k <= q && doc[q] == doc[k]", documents,
       [](const MaskSizes& s, Index, Index, Index q, Index k) { return k <= q && s.doc[q] == s.doc[k]; }},
      {"Shared prefix", "doc[k] == 0 || doc[q] == doc[k]", documents,
       [](const MaskSizes& s, Index, Index, Index q, Index k) { return s.doc[k] == 0 || s.doc[q] == s.doc[k]; }},
      {"Padding", "k < valid[b] && q < valid[b]",
       [](const MaskSizes& s) {
         std::vector<double> valid;
         for (Index b = 0; b < s.shape.batch; ++b) valid.push_back(static_cast<double>(valid_tokens(b)));
         return Buffers{{"valid", DType::kI64, {s.shape.batch}, valid}};
       },
       [](const MaskSizes&, Index b, Index, Index q, Index k) { return k < valid_tokens(b) && q < valid_tokens(b); }},
      {"Drafts in a tree", "tree[q][k]",
       [](const MaskSizes& s) {
         const Index n = static_cast<Index>(s.doc.size());
         std::vector<double> tree;
         for (Index at = 0; at < n * n; ++at) tree.push_back(is_ancestor(at % n, at / n) ? 1 : 0);
         return Buffers{{"tree", DType::kBool, {n, n}, tree, CaptureStrides::kTransposed}};
       },
       [](const MaskSizes&, Index, Index, Index q, Index k) { return is_ancestor(k, q); }},
      {"Media before the text", "media[k] <= seen[q]",
       [](const MaskSizes& s) {
         std::vector<double> seen = as_doubles(s.doc), media = seen;
         for (double& x : seen) x = x * 0.5 + 0.25;
         media.front() = NAN;  // no row reads this element
         const Index n = static_cast<Index>(s.doc.size());
         return Buffers{{"media", DType::kF32, {n}, media, CaptureStrides::kNegative},
                        {"seen", DType::kF64, {n}, seen}};
       },
       [](const MaskSizes& s, Index, Index, Index q, Index k) {
         return k != 0 && static_cast<double>(s.doc[k]) <= static_cast<double>(s.doc[q]) * 0.5 + 0.25;
       }},
      {"Selected blocks", "keep[b, h, q // 32, k // 32]",
       [](const MaskSizes& s) {
         const Index rows = (s.shape.seqlen_q + 31) / 32 + 1, columns = (s.shape.seqlen_k + 31) / 32 + 1;
         std::vector<double> keep;
         for (Index n = 0; n < s.shape.batch * s.shape.num_heads * rows * columns; ++n)
           keep.push_back(n % 5 < 2 ? 1 : 0);
         return Buffers{{"keep", DType::kBool, {s.shape.batch, s.shape.num_heads, rows, columns}, keep}};
       },
       [](const MaskSizes& s, Index b, Index h, Index q, Index k) {
         const Index rows = (s.shape.seqlen_q + 31) / 32 + 1, columns = (s.shape.seqlen_k + 31) / 32 + 1;
         return (((b * s.shape.num_heads + h) * rows + q / 32) * columns + k / 32) % 5 < 2;
       }},
  };
}

}  // namespace

MaskSizes mask_sizes(const BlockMaskShape& shape) {
  MaskSizes sizes = {shape, {}};
  const Index tokens = std::max<Index>({shape.seqlen_q, shape.seqlen_k, 1});
  for (Index n = 0, doc = 0, left = 20; n < tokens; ++n) {
    if (left-- == 0) ++doc, left = 30 + 37 * doc % 101;
    sizes.doc.push_back(doc);
  }
  return sizes;
}

const std::vector<MaskRecipe>& mask_cookbook() {
  static const std::vector<MaskRecipe> all = [] {
    std::vector<MaskRecipe> recipes = of_positions();
    for (MaskRecipe& recipe : of_captures()) recipes.push_back(std::move(recipe));
    return recipes;
  }();
  return all;
}

MaskFunction function_of(const MaskRecipe& recipe, const std::vector<CaptureBuffer>& captures) {
  std::vector<ScoreCapture> views;
  for (const CaptureBuffer& b : captures) views.push_back(b.capture());
  return MaskFunction(recipe.text, views);
}

}  // namespace attend::test
