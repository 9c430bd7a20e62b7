#include "check.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "core/elements.hpp"
#include "cpu/reference.hpp"
#include "interrupt.hpp"
#include "progress.hpp"
#include "standard.hpp"

namespace attend::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kF64Tolerance = 1e-12;
constexpr double kF32ForwardTolerance = 1e-5;
constexpr double kF32GradientTolerance = 1e-4;  // of the largest magnitude
constexpr double kHalfFloor = 1e-5;             // of the largest magnitude
constexpr double kStandardFactor = 2.0;

/// Calls task(0) .. task(count - 1) on the threads of the CPU backend. Rethrows the first exception.
void parallel_for(std::int64_t count, Progress& progress, const std::function<void(std::int64_t)>& task) {
  std::atomic<std::int64_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::int64_t i = next++; i < count; i = next++) {
      try {
        stop_if_interrupted();
        task(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
        next = count;
      }
      progress.advance();
    }
  };
  {
    std::vector<std::jthread> threads;
    const std::int64_t wanted = std::min<std::int64_t>(cpu_threads(), count);
    for (std::int64_t t = 1; t < wanted; ++t) threads.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

using ForwardHead = void (*)(const core::Problem&, const core::Sequence&, std::int64_t);

void reference_forward_head(const core::Problem& p, const core::Sequence& s, std::int64_t head) {
  cpu::reference_forward_rows(p, s, head, 0, s.seqlen_q);
}

/// Fills o and lse, and with a backward mode dq, dk, dv, head by head.
void compute_by_head(Workload& w, Mode mode, const char* label, ForwardHead forward_head, ForwardHead backward_group) {
  w.allocate_forward();
  const core::Problem forward = w.forward_problem();
  const bool with_backward = mode != Mode::kForward;
  const std::int64_t forward_tasks = forward.num_sequences * forward.num_heads_q;
  const std::int64_t backward_tasks = with_backward ? forward.num_sequences * forward.num_heads_k : 0;
  Progress progress(label, forward_tasks + backward_tasks);
  parallel_for(forward_tasks, progress, [&](std::int64_t task) {
    forward_head(forward, forward.sequence(task / forward.num_heads_q), task % forward.num_heads_q);
  });
  if (!with_backward) return;
  w.allocate_backward();
  const core::Problem backward = w.backward_problem();
  parallel_for(backward_tasks, progress, [&](std::int64_t task) {
    backward_group(backward, backward.sequence(task / backward.num_heads_k), task % backward.num_heads_k);
  });
}

/// The reference and, once asked for, the plain algorithm, on the inputs of a workload.
class Truth {
 public:
  Truth(const Workload& w, Mode mode) : inputs_(w), mode_(mode), reference_(w.inputs_as(DType::kF64)) {
    compute_by_head(reference_, mode, "float64 reference", reference_forward_head, cpu::reference_backward_group);
    if (reference_.dbias) cpu::reference_dbias(reference_.backward_problem());
  }

  [[nodiscard]] const Workload& reference() const { return reference_; }

  [[nodiscard]] const Workload& standard() {
    if (!standard_) {
      standard_.emplace(inputs_.inputs_as(inputs_.q.dtype()));
      compute_by_head(*standard_, mode_, "plain algorithm", standard_forward_head, standard_backward_group);
    }
    return *standard_;
  }

 private:
  const Workload& inputs_;
  Mode mode_;
  Workload reference_;
  std::optional<Workload> standard_;
};

using Member = io::HostTensor Workload::*;

double largest_finite(const Tensor& t) {
  double largest = 0;
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    const double x = std::abs(core::load(t.data, t.dtype, i));
    if (x < kInfinity) largest = std::max(largest, x);
  }
  return largest;
}

TensorError judge(const char* name, const Workload& w, Truth& truth, Member member, bool gradient) {
  const Tensor& reference = (truth.reference().*member).view();
  TensorError error = compare(name, (w.*member).view(), reference);
  const double magnitude = largest_finite(reference);
  const auto standard_error = [&] { return compare(name, (truth.standard().*member).view(), reference).max_abs; };
  // Of Q, in which the plain algorithm rounds, and the result, as which it is stored, the one with fewer bits.
  const DType result_dtype = (w.*member).dtype();
  const DType dtype = dtype_bytes(result_dtype) < dtype_bytes(w.q.dtype()) ? result_dtype : w.q.dtype();
  if (dtype == DType::kF64) {
    error.tolerance = kF64Tolerance * std::max(1.0, magnitude);
  } else if (dtype == DType::kF32) {
    error.tolerance = gradient ? kF32GradientTolerance * magnitude : kF32ForwardTolerance * std::max(1.0, magnitude);
    const bool near = !(error.max_abs <= error.tolerance) && error.max_abs < kInfinity;
    if (near) error.tolerance = std::max(error.tolerance, kStandardFactor * standard_error());
  } else {
    error.tolerance = kStandardFactor * standard_error() + kHalfFloor * magnitude;
  }
  // An infinite tolerance (the plain algorithm overflowed) must not excuse a NaN or a misplaced infinity.
  error.passed = error.max_abs <= error.tolerance && error.max_abs < kInfinity;
  return error;
}

/// dbias is summed by the reference only: its tolerance is that of float32, or of its own type's rounding.
TensorError judge_dbias(const Workload& w, const Truth& truth) {
  const Tensor& reference = truth.reference().dbias->view();
  TensorError error = compare("dbias", w.dbias->view(), reference);
  const auto is_half = [](DType dtype) { return dtype_bytes(dtype) == 2; };
  const bool half = is_half(w.q.dtype()) || is_half(w.dbias->dtype());
  constexpr double kHalfTolerance = 4 * 0x1p-8;  // bfloat16's spacing
  error.tolerance = (half ? kHalfTolerance : kF32GradientTolerance) * largest_finite(reference);
  error.passed = error.max_abs <= error.tolerance && error.max_abs < kInfinity;
  return error;
}

}  // namespace

TensorError compare(std::string name, const Tensor& result, const Tensor& reference) {
  TensorError error;
  error.name = std::move(name);
  const std::int64_t count = reference.numel();
  double largest = 0;
  double sum = 0;
  double sum_of_squares = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double want = core::load(reference.data, reference.dtype, i);
    const double got = core::load(result.data, result.dtype, i);
    const bool same = got == want || (std::isnan(got) && std::isnan(want));
    const double off = same ? 0 : std::isfinite(got) && std::isfinite(want) ? std::abs(got - want) : kInfinity;
    if (std::isfinite(want)) largest = std::max(largest, std::abs(want));
    error.max_abs = std::max(error.max_abs, off);
    sum += off;
    sum_of_squares += off * off;
  }
  if (count > 0) {
    error.mean_abs = sum / static_cast<double>(count);
    error.mse = sum_of_squares / static_cast<double>(count);
  }
  error.max_rel = error.max_abs == 0 ? 0 : error.max_abs / largest;
  return error;
}

CheckReport check(const Workload& w, Mode mode) {
  Truth truth(w, mode);
  CheckReport report;
  if (mode != Mode::kBackward) {
    report.forward.push_back(judge("O", w, truth, &Workload::o, false));
    report.forward.push_back(judge("logsumexp", w, truth, &Workload::lse, false));
  }
  if (mode != Mode::kForward) {
    report.backward.push_back(judge("dQ", w, truth, &Workload::dq, true));
    report.backward.push_back(judge("dK", w, truth, &Workload::dk, true));
    report.backward.push_back(judge("dV", w, truth, &Workload::dv, true));
    if (w.dbias) report.backward.push_back(judge_dbias(w, truth));
  }
  return report;
}

}  // namespace attend::cli
