// Compares random score functions, and every option combined with a function, with full matrices in long double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "cpu/score_function.hpp"
#include "expr/evaluate.hpp"
#include "expr/random_text.hpp"
#include "expr/score_program.hpp"
#include "score/function_oracle.hpp"
#include "support/option_cases.hpp"

namespace attend::test {
namespace {

/// Returns the tensors that the random function texts read.
std::vector<CaptureBuffer> buffers_of_texts() {
  std::vector<CaptureBuffer> buffers;
  const std::vector<expr::Capture> captures = some_captures();
  for (std::size_t n = 0; n < captures.size(); ++n) {
    std::vector<double> values;
    std::vector<std::int64_t> at(captures[n].shape.size());
    for (bool more = true; more;) {
      values.push_back(element_of_capture(static_cast<std::int32_t>(n), at));
      std::size_t d = at.size();
      while (d > 0 && ++at[d - 1] == captures[n].shape[d - 1]) at[--d] = 0;
      more = d > 0;
    }
    const DType dtype = captures[n].type == expr::Type::kFloat ? DType::kF32
                        : captures[n].type == expr::Type::kInt ? DType::kI64
                                                               : DType::kBool;
    buffers.emplace_back(captures[n].name, dtype, captures[n].shape, values, static_cast<CaptureStrides>(n % 4));
  }
  return buffers;
}

/// Evaluates a function text in float64 through its expression graph.
class Evaluated {
 public:
  explicit Evaluated(const std::string& text)
      : program_(expr::ScoreProgram::of("score", text, some_captures())),
        evaluator_(program_.graph, nodes(), element_of_capture) {}

  [[nodiscard]] FunctionValue at(long double score, const ScorePlace& p) {
    const auto number = [](std::int64_t n) { return static_cast<double>(n); };
    const std::span<const double> values = evaluator_.at({static_cast<double>(score), number(p.b), number(p.h),
                                                          number(p.q), number(p.k), number(p.q_len), number(p.k_len)});
    FunctionValue value = {values[0], values[1]};
    std::size_t at = 2;
    for (const expr::CaptureLoad& load : program_.loads) {
      const expr::Capture& capture = program_.graph.captures()[static_cast<std::size_t>(load.capture)];
      std::int64_t element = 0;
      for (std::size_t d = 0; d < load.rank; ++d) {
        const auto subscript = static_cast<std::int64_t>(values[at + 1 + d]);
        element = element * capture.shape[d] + std::clamp<std::int64_t>(subscript, 0, capture.shape[d] - 1);
      }
      value.by_elements.push_back({capture.name, element, values[at]});
      at += 1 + load.rank;
    }
    return value;
  }

  [[nodiscard]] const expr::ScoreProgram& program() const { return program_; }

  /// Returns the nodes of the result, of its derivative with respect to the score, and of the derivative and subscripts
  /// of each load.
  [[nodiscard]] std::vector<expr::Id> nodes() const {
    std::vector<expr::Id> all = {program_.result, program_.by_score};
    for (const expr::Id id : expr::ScoreProgram::results_of(program_.loads)) all.push_back(id);
    return all;
  }

 private:
  expr::ScoreProgram program_;
  expr::Evaluator evaluator_;
};

/// Returns whether float32 can compute the function at every score of the problem. The value and the derivatives must
/// be small and close to their float64 values. At a step or a steep slope, rounding would decide the result.
bool is_smooth(Evaluated& function, const Inputs& in, const std::vector<CaptureBuffer>& buffers) {
  std::vector<cpu::CapturedView> views;
  for (const CaptureBuffer& b : buffers) {
    const ConstStridedTensor t = b.capture().tensor;
    cpu::CapturedView view = {t.data, t.dtype == DType::kF32    ? cpu::CapturedType::kF32
                                      : t.dtype == DType::kBool ? cpu::CapturedType::kU8
                                                                : cpu::CapturedType::kI64};
    view.rank = static_cast<std::int32_t>(t.shape.size());
    std::copy(t.shape.begin(), t.shape.end(), view.extent);
    std::copy(t.stride.begin(), t.stride.end(), view.stride);
    views.push_back(view);
  }
  const expr::ScoreProgram& program = function.program();
  const expr::RowProgram all = expr::RowProgram::of(program.graph, function.nodes());
  cpu::RowFunction row(all, views, 1);
  const AttentionCase& c = in.options;
  // If o is rounded to 16 bits, each ds has an error, even if the ds of a row cancel. Steep slopes multiply this error.
  const double steepest = c.dtype == DType::kF32 ? 100 : 4;
  const auto number = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.heads_q; ++h) {
      for (std::int64_t i = 0; i < c.seqlen_q; ++i) {
        for (std::int64_t j = 0; j < c.seqlen_k; ++j) {
          double s = 0;
          for (std::int64_t d = 0; d < c.head_dim; ++d) {
            s += *c.scale * in.q.at(b, h, i, d) * in.k.at(b, h * c.heads_k / c.heads_q, j, d);
          }
          const auto score = static_cast<float>(s);
          const FunctionValue wanted = function.at(s, {b, h, i, j, c.seqlen_q, c.seqlen_k});
          row.run({number(b), number(h), number(i), number(c.seqlen_q), number(c.seqlen_k), number(j)}, &score, 1);
          const auto near = [](double got, long double want) {
            return std::abs(got - static_cast<double>(want)) <= 1e-6 * (1 + std::abs(static_cast<double>(want)));
          };
          if (!near(row.floats(0)[0], wanted.score) && !std::isinf(wanted.score)) return false;
          if (!near(row.floats(1)[0], wanted.slope) || !(std::abs(wanted.slope) < steepest)) return false;
          std::size_t result = 2;
          for (std::size_t n = 0; n < wanted.by_elements.size(); ++n) {
            const long double derivative = wanted.by_elements[n].derivative;
            const double error = row.floats(result)[0] - static_cast<double>(derivative);
            if (!(std::abs(derivative) < steepest)) return false;
            if (std::abs(error) > 1e-6 * std::abs(static_cast<double>(derivative))) return false;
            result += 1 + program.loads[n].rank;
          }
        }
      }
    }
  }
  return true;
}

/// Returns inputs whose products <q, k> are exact, so they are the same in every dtype.
Inputs exact_inputs(const AttentionCase& c) {
  Inputs in = make_inputs(c);
  for (const TensorBuffer* t : {&in.q, &in.k}) {
    t->generate([&](auto b, auto h, auto row, auto col) { return std::round(2 * t->at(b, h, row, col)) / 2; });
  }
  return in;
}

TEST(RandomScores, AreTheirGraphs) {
  int compared = 0;
  const std::vector<CaptureBuffer> buffers = buffers_of_texts();
  const int count = 1200 / ATTEND_TEST_STRIDE;
  for (int seed = 0; seed < count && !testing::Test::HasFailure(); ++seed) {
    RandomText random(static_cast<std::uint64_t>(seed) + 90000, /*is_mask=*/false);
    const std::string bounded = "clamp(" + random.of_float(2 + seed % 2) + ", -9.0, 9.0)";
    const std::string text = seed % 3 == 0 ? "(q + 2 * k) % 5 == 1 ? -inf : " + bounded : bounded;
    AttentionCase c = {.dtype = seed % 4 == 3 ? DType::kBF16 : DType::kF32,
                       .batch = 2,
                       .heads_q = 4,
                       .heads_k = 2,
                       .seqlen_q = 1 + seed % 23,
                       .seqlen_k = 1 + seed % 31,
                       .head_dim = 6,
                       .head_dim_v = 5,
                       .scale = 0.5,
                       .dlse = true,
                       .seed = static_cast<std::uint64_t>(seed) + 1};
    const ScoreCase score = {c, text, buffers};
    const Inputs in = exact_inputs(c);
    Evaluated function(text);
    if (!is_smooth(function, in, buffers)) continue;
    ++compared;
    SCOPED_TRACE(text + " " + describe(c));
    const OracleFunction at = [&](long double s, const ScorePlace& place) { return function.at(s, place); };
    const ScoreResults wanted = oracle_results(score, as_f64(in), at);
    (void)expect_close(run_score(score, as_f64(in), "reference"), wanted, 1e-11, 1e-10);
    const bool is_f32 = c.dtype == DType::kF32;
    (void)expect_close(run_score(score, in, "cpu"), wanted, is_f32 ? 1e-5 : 0x1p-7, is_f32 ? 1e-4 : 0x1p-5);
    if (is_f32) (void)expect_close(run_score(score, in, "cpu_naive", false), wanted, 1e-5, 1e-4);
  }
  std::printf("%d of %d functions compared\n", compared, count);
  EXPECT_GT(compared, count / 2);  // functions that float32 cannot compute are skipped, but most must be compared
}

/// Returns a case whose score function has varying slopes, some hidden keys, and capture elements that many scores
/// load.
ScoreCase function_beside(const AttentionCase& c) {
  return {c,
          "let s = gain[h] * tanh(score / 2) + table[b, clamp(q - k, -2, 2) + 2];\n"
          "(q + 3 * k) % 7 == 2 ? -inf : s",
          {{"gain", DType::kF32, {c.heads_q}, normal_values(c.heads_q, 5), CaptureStrides::kNegative},
           {"table", DType::kF32, {c.num_sequences(), 5}, normal_values(5 * c.num_sequences(), 6)}}};
}

Dual function_in_cpp(const Dual& score, const ScorePlace& at, const OracleCaptures& captures) {
  if ((at.q + 3 * at.k) % 7 == 2) return -INFINITY;
  return captures.load("gain", {at.h}) * tanh(score / Dual(2)) +
         captures.load("table", {at.b, std::clamp<std::int64_t>(at.q - at.k, -2, 2) + 2});
}

TEST(ScoreFunctions, ComposeWithEveryOption) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (const AttentionCase& c : option_cases(dtype)) {
      const ScoreCase score = function_beside(c);
      const Inputs in = make_inputs(c);
      SCOPED_TRACE(describe(c));
      const ScoreResults wanted = oracle_results(score, in, oracle_function(score, function_in_cpp));
      if (dtype == DType::kF64) {
        (void)expect_close(run_score(score, in, "reference"), wanted, 1e-11, 1e-10);
      } else {
        const bool is_f32 = dtype == DType::kF32;
        (void)expect_close(run_score(score, in, "cpu"), wanted, is_f32 ? 1e-5 : 0x1p-6, is_f32 ? 1e-4 : 0x1p-4);
      }
    }
  }
}

}  // namespace
}  // namespace attend::test
