// Causal attention of one long sequence in float64, for problems of which the reference, on one thread, would take
// hours.
#pragma once

#include <cstdint>
#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// Rows of a head, one after another.
struct HeadRows {
  std::int64_t head;
  std::vector<std::int64_t> rows;
  std::vector<double> first, second;  // (rows, head_dim) each
};

/// The truth of a causal problem of one sequence, as many keys as queries, a multiple of 64, one head_dim, a multiple
/// of 4, and nothing else that changes a score. exp() of its scores has to be finite. On all cores.
class LongTruth {
 public:
  explicit LongTruth(const Inputs& in);

  /// (heads, seqlen, head_dim).
  [[nodiscard]] const std::vector<double>& o() const { return o_; }

  /// dq of these rows, in `first`.
  [[nodiscard]] HeadRows dq(std::int64_t head, const std::vector<std::int64_t>& rows) const;

  /// dk (first) and dv (second) of these keys.
  [[nodiscard]] HeadRows dk_dv(std::int64_t head, const std::vector<std::int64_t>& keys) const;

 private:
  [[nodiscard]] const double* row(const std::vector<double>& tensor, std::int64_t head, std::int64_t at) const {
    return tensor.data() + (head * seqlen_ + at) * head_dim_;
  }
  void compute_rows(std::int64_t head, std::int64_t begin);
  [[nodiscard]] double weight(std::int64_t head, std::int64_t query, std::int64_t key) const;

  std::int64_t heads_, group_, seqlen_, head_dim_;
  double scale_;
  std::vector<double> q_, k_, v_, dout_, keys_by_column_;
  std::vector<double> o_, sum_, delta_;  // of exp(score); <dout, o>
};

}  // namespace attend::test
