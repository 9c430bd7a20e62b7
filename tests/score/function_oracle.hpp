// Computes attention with a score function from the mathematics. Uses full matrices in long double, and C++ versions of
// the function texts. Derivatives come from dual numbers. The result does not depend on the parser of the expression
// language or on the library's derivatives.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "score/score_case.hpp"
#include "support/dense_oracle.hpp"

namespace attend::test {

/// The position at which a score function is evaluated.
struct ScorePlace {
  std::int64_t b, h, q, k, q_len, k_len;
};

/// The derivative of the score with respect to one element of a capture.
struct ByElement {
  std::string capture;
  std::int64_t element;  // row-major index of the element
  long double derivative;
};

struct FunctionValue {
  long double score, slope;
  std::vector<ByElement> by_elements = {};
};

using OracleFunction = std::function<FunctionValue(long double score, const ScorePlace& at)>;

/// The captures of a case, for the C++ version of the score function.
class OracleCaptures {
 public:
  explicit OracleCaptures(const ScoreCase& c);

  /// Returns an element of a float capture. Subscripts outside the tensor are clamped.
  [[nodiscard]] Dual load(const std::string& name, const std::vector<std::int64_t>& subscripts) const;
  /// Returns an element of an integer or bool capture.
  [[nodiscard]] std::int64_t load_int(const std::string& name, const std::vector<std::int64_t>& subscripts) const;

 private:
  friend OracleFunction oracle_function(
      const ScoreCase& c,
      std::function<Dual(const Dual& score, const ScorePlace& at, const OracleCaptures& captures)> function);

  [[nodiscard]] std::int64_t element(const std::string& name, const std::vector<std::int64_t>& subscripts) const;

  std::map<std::string, std::vector<double>> values_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
  mutable std::vector<std::pair<std::string, std::int64_t>> loaded_;
  std::pair<std::string, std::int64_t> growing_ = {"", -1};
};

/// Returns an oracle that evaluates the C++ version of a score function.
[[nodiscard]] OracleFunction oracle_function(
    const ScoreCase& c,
    std::function<Dual(const Dual& score, const ScorePlace& at, const OracleCaptures& captures)> function);

/// Returns the results that every backend is expected to give.
[[nodiscard]] ScoreResults oracle_results(const ScoreCase& c, const Inputs& in, const OracleFunction& function);

}  // namespace attend::test
