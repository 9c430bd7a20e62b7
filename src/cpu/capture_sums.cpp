#include "cpu/capture_sums.hpp"

#include <algorithm>

#include "core/elements.hpp"

namespace attend::cpu {

CaptureLayout::CaptureLayout(const core::Problem& p) : p_(p) {
  for (const core::CapturedGradient& g : p.captured_gradients) {
    gradients_.push_back({size_, g.gradient.shape});
    size_ += g.gradient.numel();
  }
  for (const expr::CaptureLoad& load : p.custom_score->program->loads) {
    for (std::size_t g = 0; g < gradients_.size(); ++g) {
      if (p.captured_gradients[g].capture != static_cast<std::size_t>(load.capture)) continue;
      loads_.push_back(load);
      of_.push_back(g);
    }
  }
}

std::int64_t CaptureLayout::place(std::size_t n, std::span<const std::int64_t> subscripts) const {
  const Of& of = gradients_[of_[n]];
  std::int64_t at = 0;
  for (std::size_t d = 0; d < subscripts.size(); ++d) {
    at = at * of.extent[d] + std::clamp<std::int64_t>(subscripts[d], 0, of.extent[d] - 1);
  }
  return of.first + at;
}

void CaptureLayout::store(std::span<const double> sums) const {
  for (std::size_t g = 0; g < gradients_.size(); ++g) {
    const Tensor& to = p_.captured_gradients[g].gradient;
    std::int64_t from = gradients_[g].first;
    for (std::int64_t a = 0; a < to.shape[0]; ++a) {
      for (std::int64_t b = 0; b < to.shape[1]; ++b) {
        for (std::int64_t c = 0; c < to.shape[2]; ++c) {
          for (std::int64_t d = 0; d < to.shape[3]; ++d) {
            const std::int64_t at = a * to.stride[0] + b * to.stride[1] + c * to.stride[2] + d * to.stride[3];
            core::store(to.data, to.dtype, at, sums[static_cast<std::size_t>(from++)]);
          }
        }
      }
    }
  }
}

CaptureSums::CaptureSums(const core::Problem& p, const CaptureLayout& layout, double* sums)
    : layout_(layout),
      sums_(sums),
      captures_(captured_views(*p.custom_score)),
      program_(expr::RowProgram::of(p.custom_score->program->graph, expr::ScoreProgram::results_of(layout.loads()))),
      function_(program_, captures_, kMostKeys) {}

void CaptureSums::add(const FunctionRow& row, const float* scores, const float* ds, int count) {
  if (std::all_of(ds, ds + count, [](float x) { return x == 0; })) return;
  function_.run(row, scores, count);
  std::size_t result = 0;
  for (std::size_t n = 0; n < layout_.loads().size(); ++n) {
    const std::size_t rank = layout_.loads()[n].rank;
    const float* derivative = function_.floats(result);
    std::array<const std::int32_t*, expr::kMostSubscripts> subscripts = {};
    for (std::size_t d = 0; d < rank; ++d) subscripts[d] = function_.ints(result + 1 + d);
    for (int key = 0; key < count; ++key) {
      if (ds[key] == 0) continue;
      std::array<std::int64_t, expr::kMostSubscripts> at = {};
      for (std::size_t d = 0; d < rank; ++d) at[d] = subscripts[d][key];
      sums_[layout_.place(n, {at.data(), rank})] += static_cast<double>(ds[key]) * static_cast<double>(derivative[key]);
    }
    result += 1 + rank;
  }
}

}  // namespace attend::cpu
