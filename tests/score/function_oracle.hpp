// Attention with a score function, from the mathematics: full matrices in long double, and functions written in C++
// that match their texts. Derivatives come from dual numbers. The result is independent of the expression language and
// of the library's derivatives.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "score/score_case.hpp"
#include "support/dense_oracle.hpp"

namespace attend::test {

/// The arguments at which a function is evaluated.
struct ScorePlace {
  std::int64_t b, h, q, k, q_len, k_len;
};

/// Derivative of the score by an element of a capture.
struct ByElement {
  std::string capture;
  std::int64_t element;  // row-major index
  long double derivative;
};

struct FunctionValue {
  long double score, slope;
  std::vector<ByElement> by_elements = {};
};

using OracleFunction = std::function<FunctionValue(long double score, const ScorePlace& at)>;

/// The captures of a case as a function in C++ reads them.
class OracleCaptures {
 public:
  explicit OracleCaptures(const ScoreCase& c);

  /// Returns an element. Subscripts are clamped.
  [[nodiscard]] Dual load(const std::string& name, const std::vector<std::int64_t>& subscripts) const;
  /// Returns an element of integers or bools.
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

/// Returns the oracle of a function written in C++.
[[nodiscard]] OracleFunction oracle_function(
    const ScoreCase& c,
    std::function<Dual(const Dual& score, const ScorePlace& at, const OracleCaptures& captures)> function);

/// Returns the expected results for every backend.
[[nodiscard]] ScoreResults oracle_results(const ScoreCase& c, const Inputs& in, const OracleFunction& function);

}  // namespace attend::test
