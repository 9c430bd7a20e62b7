#include "support/compare.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>
#include <numeric>

#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr std::size_t kWorstPositions = 10;

enum class Class : std::uint8_t { kFinite, kNaN, kPlusInfinity, kMinusInfinity };

Class class_of(double x) {
  if (std::isnan(x)) return Class::kNaN;
  if (std::isinf(x)) return x > 0 ? Class::kPlusInfinity : Class::kMinusInfinity;
  return Class::kFinite;
}

/// Returns |a - b|. Two NaN or two equal infinities have distance 0. Otherwise, if one value is not finite, the
/// distance is infinite.
double distance(double a, double b) {
  if (class_of(a) != class_of(b)) return INFINITY;
  return class_of(a) == Class::kFinite ? std::abs(a - b) : 0.0;
}

double number(double x) {
  return std::isfinite(x) ? x : 0.0;
}

std::string position(const Shape& shape, std::size_t at) {
  const auto i = static_cast<std::int64_t>(at);
  char text[96];
  std::snprintf(text, sizeof text, "(%lld, %lld, %lld, %lld)",
                static_cast<long long>(i / shape[3] / shape[2] / shape[1]),
                static_cast<long long>(i / shape[3] / shape[2] % shape[1]),
                static_cast<long long>(i / shape[3] % shape[2]), static_cast<long long>(i % shape[3]));
  return text;
}

/// Lists the worst positions, one line each, worst first.
std::string worst_positions(const Comparand& c, const std::vector<double>& ratio) {
  std::vector<std::size_t> order(ratio.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t count = std::min(kWorstPositions, order.size());
  const auto badness = [&](std::size_t at) { return std::isnan(ratio[at]) ? INFINITY : ratio[at]; };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::size_t a, std::size_t b) { return badness(a) > badness(b); });
  std::string text;
  for (std::size_t n = 0; n < count; ++n) {
    const std::size_t at = order[n];
    char line[256];
    std::snprintf(line, sizeof line,
                  "\n    %s at (b, h, row, col) = %s: got %.9g, want %.9g, standard %.9g, error/budget %.3g", c.name,
                  position(c.standard.shape, at).c_str(), c.result[at], c.truth[at], c.standard.value[at], ratio[at]);
    text += line;
  }
  return text;
}

/// Errors within one block of rows: those of the result, those of the standard implementation, and those that rounding
/// alone can cause.
struct BlockErrors {
  double error = 0, standard = 0, noise = 0, largest = 0;  // maxima over the block
  double error_sum = 0, standard_sum = 0, noise_sum = 0;   // sums of squares over the block
  std::int64_t count = 0;

  void add(const Comparand& c, std::size_t at) {
    const double e = distance(c.result[at], c.truth[at]);
    const double s = number(std::abs(c.standard.value[at] - c.truth[at]));
    error = std::max(error, e);
    standard = std::max(standard, s);
    const double n = number(c.standard.walk[at]) + number(c.standard.bound[at]);
    noise = std::max(noise, n);
    largest = std::max(largest, std::abs(number(c.truth[at])));
    error_sum += e * e;
    standard_sum += s * s;
    noise_sum += n * n;
    ++count;
  }

  /// Returns the largest error that the result may have: the scaled error of the standard implementation, plus the
  /// rounding of intermediate values and of the output.
  [[nodiscard]] double budget(const Comparand& c) const {
    return c.factor * standard + noise + unit_roundoff(c.dtype) * std::max(largest, min_normal(c.dtype));
  }

  [[nodiscard]] double rms_ratio(const Comparand& c) const {
    if (count < kRmsMinElements) return 0;
    const double n = static_cast<double>(count);
    const double allowed = c.factor * std::sqrt(standard_sum / n) + std::sqrt(noise_sum / n) +
                           unit_roundoff(c.dtype) * min_normal(c.dtype);
    return std::sqrt(error_sum / n) / allowed;
  }
};

/// Returns how far the slope of result against truth deviates from 1, divided by the allowed deviation. Returns 0 for
/// tensors with fewer than kSlopeMinElements elements.
double slope_ratio(const Comparand& c) {
  const StandardTensor& standard = c.for_slope != nullptr ? *c.for_slope : c.standard;
  double cross = 0, square = 0, standard_cross = 0, standard_error = 0, bound = 0;
  std::int64_t count = 0;
  for (std::size_t at = 0; at < c.truth.size(); ++at) {
    const double t = c.truth[at], r = c.result[at], s = standard.value[at];
    if (!std::isfinite(t) || !std::isfinite(r) || !std::isfinite(s)) continue;
    cross += (r - t) * t;
    square += t * t;
    standard_cross += (s - t) * t;
    standard_error += (s - t) * (s - t) * t * t;
    bound += number(standard.bound[at]) * std::abs(t);
    count += t != 0;
  }
  if (count < kSlopeMinElements) return 0;
  // Errors within a row may share a cause (LSE, delta). Therefore rows, not elements, are counted as independent
  // samples.
  const double row_correlation = std::sqrt(static_cast<double>(standard.shape[3]));
  const double sigma = std::sqrt(standard_error) * row_correlation / square;
  const double smallest = 0x1p-1000;  // keeps the division 0 / 0 from failing the check
  const double allowed =
      2 * std::abs(standard_cross / square) + kSlopeSigmas * sigma + bound / square + c.slope_floor + smallest;
  return std::abs(cross / square) / allowed;
}

/// Returns the number of rows of the next block if the head has `left` rows left.
std::size_t rows_of_block(std::size_t left) {
  return left < kRowsPerBlock + kFewRows ? left : kRowsPerBlock;
}

void keep_worst(Comparison& result, double ratio, double error, double standard, double budget) {
  if (!(ratio <= result.ratio)) {
    result.ratio = ratio;
    result.budget = budget;
    result.block_error = error;
  }
  if (!(error <= result.error)) result.error = error;
  result.standard = std::max(result.standard, standard);
}

void finish(Comparison& result, const Comparand& c, const std::vector<double>& position_ratio, double rms,
            double slope) {
  result.ok = result.ratio <= 1 && rms <= 1 && slope <= 1;  // a NaN fails, because NaN <= 1 is false
  char text[192];
  std::snprintf(text, sizeof text,
                "%s: error %.3g standard's %.3g budget %.3g (of budget: max %.2f rms %.2f slope %.2f)", c.name,
                result.error, result.standard, result.budget, result.ratio, rms, slope);
  result.report = text;
  if (!result.ok) result.report += worst_positions(c, position_ratio);
}

}  // namespace

Comparison compare(const Comparand& c) {
  Comparison result;
  const std::size_t n = c.truth.size();
  if (c.result.size() != n || c.standard.value.size() != n)
    return {.ok = false, .error = NAN, .standard = NAN, .ratio = NAN, .report = "sizes differ"};
  const auto cols = static_cast<std::size_t>(c.standard.shape[3]);
  const auto rows = static_cast<std::size_t>(c.standard.shape[2]);
  std::vector<double> position_ratio(n);
  double rms = 0;
  for (std::size_t head = 0; head * rows * cols < n; ++head) {
    for (std::size_t row = 0, next = 0; row < rows; row = next) {
      next = row + rows_of_block(rows - row);
      const std::size_t begin = (head * rows + row) * cols;
      const std::size_t end = (head * rows + next) * cols;
      BlockErrors block;
      for (std::size_t at = begin; at < end; ++at) block.add(c, at);
      const double budget = block.budget(c);
      for (std::size_t at = begin; at < end; ++at) position_ratio[at] = distance(c.result[at], c.truth[at]) / budget;
      keep_worst(result, block.error / budget, block.error, block.standard, budget);
      rms = std::max(rms, block.rms_ratio(c));
    }
  }
  finish(result, c, position_ratio, rms, slope_ratio(c));
  return result;
}

Comparison compare_lse(const std::vector<double>& lse, const std::vector<double>& truth,
                       const StandardTensor& standard) {
  Comparison result;
  const Comparand c = {"lse", DType::kF32, kForwardFactor, lse, truth, standard};
  if (lse.size() != truth.size() || standard.value.size() != truth.size())
    return {.ok = false, .error = NAN, .standard = NAN, .ratio = NAN, .report = "sizes differ"};
  std::vector<double> position_ratio(truth.size());
  const auto rows = static_cast<std::size_t>(standard.shape[2]);
  for (std::size_t begin = 0, end = 0; begin < truth.size(); begin = end) {
    end = begin + rows_of_block(rows - begin % rows);
    double standard_error = 0;
    for (std::size_t at = begin; at < end; ++at) {
      standard_error = std::max(standard_error, number(std::abs(standard.value[at] - truth[at])));
    }
    for (std::size_t at = begin; at < end; ++at) {
      // standard.bound holds 2^-24 times the largest score magnitude of the row. Dividing by 2^-24 restores that
      // magnitude.
      const double rounding = kLseMagnitude / unit_roundoff(DType::kF32) * number(standard.bound[at]);
      const double budget = kForwardFactor * standard_error + kLseAbsolute + rounding;
      const double error = distance(lse[at], truth[at]);
      position_ratio[at] = error / budget;
      keep_worst(result, position_ratio[at], error, standard_error, budget);
    }
  }
  finish(result, c, position_ratio, 0, 0);
  return result;
}

namespace {

/// The values that results are compared with.
struct Expectation {
  Outputs truth;
  Standard standard;
  std::optional<Standard> rounded;  // standard implementation that also rounds p in ds (KeptP::kRounded)
};

/// Returns all bytes on which the expected values depend. The bytes are the key under which the expected values are
/// cached.
std::string content_of(const Inputs& in) {
  std::string content = describe(in.options);
  const auto add = [&content](const TensorBuffer& t) {
    const std::vector<std::byte> bytes = t.bytes();
    content.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  for (const TensorBuffer* t : {&in.q, &in.k, &in.v, &in.dout}) add(*t);
  for (const auto* t : {&in.bias, &in.mask, &in.slopes, &in.dlse, &in.sinks}) {
    if (*t) add(**t);
  }
  return content;
}

/// Returns KeptP::kRounded for backends that round p to the inputs' dtype, because p and the accumulators do not fit in
/// registers together. The error budgets of these backends equal those of other backends. Only the slope check uses a
/// standard that rounds p as well.
KeptP kept_p_of(std::string_view compute) {
  return compute == "sm90_backward" ? KeptP::kRounded : KeptP::kFloat;
}

/// Returns the expected values of the inputs. The last result is cached, because tests usually run several backends on
/// the same case in sequence.
std::shared_ptr<const Expectation> expectation_of(const Inputs& in, KeptP kept) {
  static std::mutex mutex;
  static std::string last_content;
  static std::shared_ptr<const Expectation> last;
  const std::lock_guard lock(mutex);
  std::string content = content_of(in) + (kept == KeptP::kRounded ? "rounded" : "");
  if (last == nullptr || last_content != content) {
    Expectation made = {run(as_f64(in), "reference"), run_standard(in), {}};
    if (kept == KeptP::kRounded) made.rounded = run_standard(in, kept);
    last = std::make_shared<const Expectation>(std::move(made));
    last_content = std::move(content);
  }
  return last;
}

}  // namespace

std::vector<TensorCheck> compare_outputs(const Inputs& in, const Outputs& out, KeptP kept, bool with_gradients) {
  const auto [truth, standard, rounded] = *expectation_of(in, kept);
  std::vector<TensorCheck> checks;
  const DType dtype = in.options.dtype;
  const auto check = [&](const char* name, const Comparison& c, const TensorBuffer& t) {
    EXPECT_TRUE(c.ok) << c.report;
    EXPECT_TRUE(t.gaps_intact()) << "memory outside of an output was written; " << c.report;
    checks.push_back({name, c});
  };
  const auto check_tensor = [&](const char* name, double factor, const TensorBuffer& got, const TensorBuffer& want,
                                const StandardTensor& s, const StandardTensor* for_slope = nullptr) {
    check(name, compare({name, dtype, factor, got.values(), want.values(), s, for_slope}), got);
  };
  const bool is_two_valued = is_half(dtype) && in.options.softcap > 0 && in.options.softcap <= kTwoValuedSoftcap;
  const double slope_floor = is_two_valued ? unit_roundoff(dtype) / 2 : 0;
  check("o", compare({"o", dtype, kForwardFactor, out.o.values(), truth.o.values(), standard.o, nullptr, slope_floor}),
        out.o);
  check("lse", compare_lse(out.lse.values(), truth.lse.values(), standard.lse), out.lse);
  if (!with_gradients) return checks;
  check_tensor("dq", kGradientFactor, out.dq, truth.dq, standard.dq, rounded ? &rounded->dq : nullptr);
  check_tensor("dk", kGradientFactor, out.dk, truth.dk, standard.dk, rounded ? &rounded->dk : nullptr);
  check_tensor("dv", kGradientFactor, out.dv, truth.dv, standard.dv);
  if (out.dbias) check_tensor("dbias", kGradientFactor, *out.dbias, *truth.dbias, *standard.dbias);
  if (out.dsinks) check_tensor("dsinks", kGradientFactor, *out.dsinks, *truth.dsinks, *standard.dsinks);
  return checks;
}

std::vector<TensorCheck> compare_with_reference(const Inputs& in, std::string_view compute) {
  SCOPED_TRACE(describe(in.options) + " on " + std::string(compute));
  const std::vector<const TensorBuffer*> inputs = {&in.q, &in.k, &in.v, &in.dout};
  std::vector<std::vector<std::byte>> before;
  for (const TensorBuffer* t : inputs) before.push_back(t->memory());

  const Outputs out = run(in, compute);

  const Outputs without_lse = make_outputs(in);
  run_forward(in, without_lse, compute, false);
  EXPECT_EQ(without_lse.o.bytes(), out.o.bytes()) << "o depends on whether lse is asked for";
  for (std::size_t n = 0; n < inputs.size(); ++n) EXPECT_EQ(inputs[n]->memory(), before[n]) << "an input was written";
  return compare_outputs(in, out, kept_p_of(compute), has_backward(compute));
}

std::string check_against_reference(const Inputs& in, std::string_view compute) {
  std::string line;
  for (const TensorCheck& check : compare_with_reference(in, compute)) {
    const std::string& report = check.comparison.report;
    line += (line.empty() ? "" : "; ") + report.substr(0, report.find('\n'));
  }
  return line;
}

}  // namespace attend::test
