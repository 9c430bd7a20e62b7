// Decoding by its formula, in float64, one query row at a time. Tests compare the other backends with it.
//
// In the formulas, i is the query row, j is a key that the row sees, f is the score transform, and off is
// seqlen_k - seqlen_q. Keys that the row does not see are not visited.
//
//   s_j = f(scale <q, k_j>) - slope |i + off - j|
//   lse = log(sum_j exp(s_j) + exp(sink))
//   o = sum_j exp(s_j - lse) v_j
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "core/elements.hpp"
#include "core/merged_lse.hpp"
#include "cpu/parallel.hpp"
#include "cpu/serving/decode_backends.hpp"
#include "kernels/attention/score_transform.cuh"

namespace attend::cpu {
namespace {

using core::CacheRun;
using core::DecodeProblem;
using core::DecodeSequence;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Returns the columns of a cached key or value in float64.
std::vector<double> cached_row(const Tensor& t, const core::Descale& descale, std::int64_t sequence, const CacheRun& at,
                               std::int64_t head) {
  const double factor =
      descale.data != nullptr ? core::multiplier(*descale.of(sequence, head, {at.block, at.row})) : 1.0;
  std::vector<double> row(static_cast<std::size_t>(t.shape[3]));
  const void* data = core::element(t, at.block, head, at.row);
  for (std::size_t c = 0; c < row.size(); ++c) {
    row[c] = factor * core::load(data, t.dtype, static_cast<std::int64_t>(c));
  }
  return row;
}

/// A visible key of a row and its score.
struct SeenKey {
  double score;
  std::int64_t key;
};

class Row {
 public:
  Row(const DecodeProblem& p, const DecodeSequence& s, std::int64_t head, std::int64_t i)
      : p_(p), s_(s), head_(head), key_head_(head / p.heads_per_group()), i_(i) {}

  void compute() const {
    const std::vector<SeenKey> seen = seen_keys();
    double row_max = -kInfinity;
    for (const SeenKey& at : seen) {
      if (!(at.score <= row_max)) row_max = at.score;  // a NaN becomes the maximum, so that it reaches the row
      if (std::isnan(row_max)) break;
    }
    std::vector<double> o(static_cast<std::size_t>(p_.head_dim_v));
    double row_sum = 0;
    for (const SeenKey& at : seen) {
      if (row_max == -kInfinity || std::isnan(row_max)) break;
      const double weight = std::exp(at.score - row_max);
      row_sum += weight;
      const std::vector<double> v = cached_row(p_.v, p_.v_descale, s_.index, p_.run(s_, at.key), key_head_);
      for (std::size_t c = 0; c < o.size(); ++c) o[c] += weight * v[c];
    }
    write(o, row_max, row_sum);
  }

 private:
  [[nodiscard]] std::vector<SeenKey> seen_keys() const {
    const core::Matrix q = core::q_matrix(p_.q, s_, head_);
    const KeyRange range = p_.keys_of_row(s_, i_);
    std::vector<SeenKey> seen;
    for (std::int64_t j = range.begin; j < range.end; ++j) {
      const CacheRun at = p_.run(s_, j);
      if (at.block < 0 || p_.tree_hides(s_, i_, j)) continue;
      const std::vector<double> k = cached_row(p_.k, p_.k_descale, s_.index, at, key_head_);
      double product = 0;
      for (std::int64_t c = 0; c < p_.head_dim; ++c) product += core::load(q, i_, c) * k[static_cast<std::size_t>(c)];
      seen.push_back({score(product, j), j});
    }
    return seen;
  }

  [[nodiscard]] double score(double product, std::int64_t j) const {
    double s = p_.scale * product;
    if (p_.transforms_scores()) s = TransformedScore<double>::of(s, p_.transform_cap).value;
    if (p_.alibi_slopes) {
      const double slope = core::load(*p_.alibi_slopes, s_.index, head_, 0, 0);
      s -= slope * std::abs(static_cast<double>(i_ + s_.seqlen_k - s_.seqlen_q - j));
    }
    return s;
  }

  void write(const std::vector<double>& o, double row_max, double row_sum) const {
    const bool saw_no_key = row_max == -kInfinity;
    double lse = saw_no_key ? -kInfinity : row_max + std::log(row_sum);
    if (std::isnan(row_max)) lse = row_max;
    double share = 1;  // part of the row's sum that belongs to keys and not to the sink
    if (p_.sinks && !s_.dead) {
      const core::MergedLse all = core::merge_lse(lse, core::load(*p_.sinks, s_.index, head_, 0, 0));
      lse = all.lse;
      share = all.weight_a;
    }
    const core::Matrix out = core::q_matrix(p_.o, s_, head_);
    for (std::int64_t c = 0; c < p_.head_dim_v; ++c) {
      const double mean = o[static_cast<std::size_t>(c)] / row_sum * share;
      core::store(out, i_, c, saw_no_key ? 0.0 : std::isnan(row_max) ? row_max : mean);
    }
    if (!p_.lse) return;
    core::store(core::q_matrix(*p_.lse, s_, head_), i_, 0, p_.lse_base2 ? lse / std::log(2.0) : lse);
  }

  const DecodeProblem& p_;
  const DecodeSequence& s_;
  std::int64_t head_;
  std::int64_t key_head_;
  std::int64_t i_;
};

}  // namespace

void decode_reference(const DecodeProblem& p) {
  InterruptPoint interrupt;
  for (std::int64_t index = 0; index < p.num_sequences; ++index) {
    const DecodeSequence s = p.sequence(index);
    for (std::int64_t head = 0; head < p.num_heads_q; ++head) {
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        Row(p, s, head, i).compute();
        interrupt.after(s.seqlen_k);
      }
    }
  }
}

}  // namespace attend::cpu
