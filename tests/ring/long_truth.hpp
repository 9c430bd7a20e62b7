// Causal attention of one long sequence in float64, for problems on which the single-threaded reference would take
// hours.
#pragma once

#include <cstdint>
#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// Rows of a head in sequence.
struct HeadRows {
  std::int64_t head;
  std::vector<std::int64_t> rows;
  std::vector<double> first, second;  // (rows, head_dim) each
};

/// Float64 results of a causal problem with one sequence and no other option that changes a score. There are as many
/// keys as queries, a multiple of 64, and a single head_dim, a multiple of 4. exp() of the scores must be finite. Uses
/// all cores.
class LongTruth {
 public:
  explicit LongTruth(const Inputs& in);

  /// Returns o with shape (heads, seqlen, head_dim).
  [[nodiscard]] const std::vector<double>& o() const { return o_; }

  /// Returns dq of these rows in `first`.
  [[nodiscard]] HeadRows dq(std::int64_t head, const std::vector<std::int64_t>& rows) const;

  /// Returns dk (`first`) and dv (`second`) of these keys.
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
  std::vector<double> o_, sum_, delta_;  // sum_: sum of exp(score); delta_: <dout, o>
};

}  // namespace attend::test
