// Computes causal attention of one long sequence in float64. The single-threaded reference would take hours for such a
// sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// Results for some rows of one head.
struct HeadRows {
  std::int64_t head;
  std::vector<std::int64_t> rows;
  std::vector<double> first, second;  // each has shape (rows, head_dim)
};

/// Float64 results of a causal problem. The problem has one sequence. The causal mask is the only option that changes a
/// score. The numbers of queries and keys must be equal and a multiple of 64. q, k and v must have the same head_dim, a
/// multiple of 4. exp() of every score must be finite. Uses all cores.
class LongTruth {
 public:
  explicit LongTruth(const Inputs& in);

  /// Returns o, with shape (heads, seqlen, head_dim).
  [[nodiscard]] const std::vector<double>& o() const { return o_; }

  /// Returns dq of the given rows in HeadRows::first.
  [[nodiscard]] HeadRows dq(std::int64_t head, const std::vector<std::int64_t>& rows) const;

  /// Returns dk of the given keys in HeadRows::first, and dv in HeadRows::second.
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
  std::vector<double> o_, sum_, delta_;  // sum_ holds the sum of exp(score) of each row, and delta_ holds <dout, o>
};

}  // namespace attend::test
