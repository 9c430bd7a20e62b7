#include "check/capture_check.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "check/standard.hpp"
#include "core/dtype_traits.hpp"
#include "core/elements.hpp"
#include "cpu/capture_sums.hpp"
#include "cpu/reference_function.hpp"
#include "cpu/reference_rows.hpp"

namespace attend::cli {
namespace {

/// Returns the noise (possible rounding error) of each element of each gradient. It is the sum of the noise of all
/// score gradients that contribute to the element.
std::vector<double> noise_of(const core::Problem& p, const cpu::CaptureLayout& layout) {
  using cpu::reference::Rows;
  std::vector<double> sums(static_cast<std::size_t>(layout.size()));
  for (std::int64_t index = 0; index < p.num_sequences; ++index) {
    const core::Sequence s = p.sequence(index);
    for (std::int64_t head = 0; head < p.num_heads_q; ++head) {
      const Rows q(core::q_matrix(p.q, s, head)), k(core::k_matrix(p.k, s, head / p.heads_per_group()));
      const cpu::reference::Scores scores(p, s, head);
      cpu::ReferenceFunction function(p, s, head, expr::ScoreProgram::results_of(layout.loads()));
      score_gradient_noise(p, s, head, [&](std::int64_t i, std::int64_t j, float noise) {
        const double q_dot_k = cpu::reference::dot(q.row(i), k.row(j), p.head_dim);
        const std::span<const double> values = function.nodes_at(i, j, scores.at(i, j, q_dot_k).before_function);
        std::size_t result = 0;
        for (std::size_t n = 0; n < layout.loads().size(); ++n) {
          const std::size_t rank = layout.loads()[n].rank;
          std::array<std::int64_t, expr::kMostSubscripts> at = {};
          for (std::size_t d = 0; d < rank; ++d) at[d] = static_cast<std::int64_t>(values[result + 1 + d]);
          const double term = noise * std::abs(values[result]);
          if (std::isfinite(term)) sums[static_cast<std::size_t>(layout.place(n, {at.data(), rank}))] += term;
          result += 1 + rank;
        }
      });
    }
  }
  return sums;
}

}  // namespace

std::vector<TensorError> check_captures(const Workload& w, const Workload& reference, const Workload& noise_inputs) {
  std::vector<TensorError> errors;
  if (w.capture_gradients.empty()) return errors;
  const core::Problem p = noise_inputs.backward_problem();
  const std::vector<double> noise = noise_of(p, cpu::CaptureLayout(p));
  const auto floats = w.score->learned_captures();
  std::size_t at = 0;
  for (std::size_t n = 0; n < floats.size(); ++n) {
    const Tensor& truth = reference.capture_gradients[n].view();
    TensorError error = compare("d_" + floats[n]->name, w.capture_gradients[n].view(), truth);
    double magnitude = 0, largest_noise = 0;
    for (std::int64_t i = 0; i < truth.numel(); ++i, ++at) {
      const double x = std::abs(core::load(truth.data, truth.dtype, i));
      if (std::isfinite(x)) magnitude = std::max(magnitude, x);
      largest_noise = std::max(largest_noise, noise[at]);
    }
    constexpr double kHalf = 4 * 0x1p-8, kF32 = 1e-4, kF64 = 1e-12;  // relative to the largest |gradient|
    const bool is_f64 = w.q.dtype() == DType::kF64;
    const double factor = is_f64 ? kF64 : core::is_narrow(w.q.dtype()) ? kHalf : kF32;
    error.tolerance = factor * magnitude + (is_f64 ? kF64 * largest_noise * 0x1p24 : largest_noise);
    error.passed = error.max_abs <= error.tolerance && std::isfinite(error.max_abs);
    errors.push_back(error);
  }
  return errors;
}

}  // namespace attend::cli
