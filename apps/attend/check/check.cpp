#include "check/check.hpp"

#include <fmt/format.h>

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

#include "check/capture_check.hpp"
#include "check/standard.hpp"
#include "core/dtype_traits.hpp"
#include "core/elements.hpp"
#include "cpu/reference.hpp"
#include "process/interrupt.hpp"
#include "process/progress.hpp"

namespace attend::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kF64Tolerance = 1e-12;
constexpr double kF32ForwardTolerance = 1e-5;
constexpr double kF32GradientTolerance = 1e-4;  // relative to the largest |element| of the reference
constexpr double kHalfFloor = 1e-5;             // relative to the largest |element| of the reference
constexpr double kStandardFactor = 2.0;

/// Calls task(0) to task(count - 1) on the threads of the CPU backend. If a call throws, rethrows the first exception.
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

/// Computes o and lse head by head. If `mode` includes backward, also computes dq, dk and dv.
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

double largest_finite(const Tensor& t) {
  double largest = 0;
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    const double x = std::abs(core::load(t.data, t.dtype, i));
    if (x < kInfinity) largest = std::max(largest, x);
  }
  return largest;
}

/// The float64 reference for the inputs of a workload. On the first request, the class also computes the result of the
/// standard algorithm, and the noise, which is the error that rounding can cause.
class Truth {
 public:
  Truth(const Workload& w, Mode mode) : inputs_(w), mode_(mode), reference_(w.inputs_as(DType::kF64)) {
    compute_by_head(reference_, mode, "float64 reference", reference_forward_head, cpu::reference_backward_group);
    if (mode == Mode::kForward) return;
    cpu::reference_option_gradients(reference_.backward_problem());
    if (!reference_.capture_gradients.empty()) cpu::reference_captured_gradients(reference_.backward_problem());
  }

  [[nodiscard]] const Workload& reference() const { return reference_; }

  [[nodiscard]] const Workload& standard() {
    if (!standard_) {
      standard_.emplace(inputs_.inputs_as(inputs_.q.dtype()));
      compute_by_head(*standard_, mode_, "plain algorithm", standard_forward_head, standard_backward_group);
    }
    return *standard_;
  }

  /// Returns a workload whose dq, dk and dv contain the noise of each element (gradient_noise_group). The noise
  /// includes the rounding of float32 sums. If `with_rounded_o` is set, the noise also includes the rounding of O to
  /// its storage type.
  [[nodiscard]] const Workload& noise(bool with_rounded_o) {
    std::optional<Workload>& noise = with_rounded_o ? noise_ : noise_of_sums_;
    if (noise) return *noise;
    make_noise(noise, with_rounded_o ? inputs_.o.dtype() : DType::kF32);
    const core::Problem p = noise->backward_problem();
    Progress progress("noise of gradients", p.num_sequences * p.num_heads_k);
    parallel_for(p.num_sequences * p.num_heads_k, progress, [&](std::int64_t task) {
      gradient_noise_group(p, p.sequence(task / p.num_heads_k), task % p.num_heads_k);
    });
    return *noise;
  }

  /// Returns a tensor with the noise of every element of o (output_noise_head).
  [[nodiscard]] const Tensor& output_noise() {
    if (!noise_of_o_) {
      make_noise(noise_of_o_, DType::kF32);
      const core::Problem p = noise_of_o_->forward_problem();
      Progress progress("noise of o", p.num_sequences * p.num_heads_q);
      parallel_for(p.num_sequences * p.num_heads_q, progress, [&](std::int64_t task) {
        output_noise_head(p, p.sequence(task / p.num_heads_q), task % p.num_heads_q);
      });
    }
    return noise_of_o_->o.view();
  }

  /// Returns the largest noise of an option's gradient. `row` is an index into core::kScoreTensors.
  [[nodiscard]] double largest_option_noise(std::size_t row) {
    std::optional<Workload> noise;
    make_noise(noise, inputs_.o.dtype());
    option_noise(noise->backward_problem());
    return largest_finite(noise->score_gradients[row]->view());
  }

  [[nodiscard]] std::vector<TensorError> judged_captures() const {
    if (inputs_.capture_gradients.empty()) return {};
    std::optional<Workload> noise;
    make_noise(noise, inputs_.o.dtype());
    return check_captures(inputs_, reference_, *noise);
  }

 private:
  /// Returns a copy of the inputs and results of the reference, with new memory for the noise.
  void make_noise(std::optional<Workload>& noise, DType o_dtype) const {
    noise.emplace(inputs_.inputs_as(DType::kF64));
    noise->o = reference_.o.converted(o_dtype);
    noise->lse = reference_.lse.converted(DType::kF64);
    noise->allocate_backward();
  }

  const Workload& inputs_;
  Mode mode_;
  Workload reference_;
  std::optional<Workload> standard_, noise_, noise_of_sums_, noise_of_o_;
};

using Member = io::HostTensor Workload::*;

/// Returns the unit roundoff of a result that was computed in float32 and stored as `dtype`.
double unit_roundoff(DType dtype) {
  return std::max(core::dtype_traits(dtype).unit_roundoff, core::dtype_traits(DType::kF32).unit_roundoff);
}
double smallest_normal(DType dtype) {
  return std::max(core::dtype_traits(dtype).smallest_normal, core::dtype_traits(DType::kF32).smallest_normal);
}

void set_passed(TensorError& error) {
  // If the standard algorithm overflows, the tolerance is infinite. An infinite error, which means a misplaced NaN or
  // infinity, must fail nevertheless.
  error.passed = error.max_abs <= error.tolerance && error.max_abs < kInfinity && error.fault.empty();
}

bool needs_more(const TensorError& error) {
  return !(error.max_abs <= error.tolerance) && error.max_abs < kInfinity;
}

double square(double x) {
  return x * x;
}

double mean_square(const Tensor& t) {
  double sum = 0;
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    const double x = core::load(t.data, t.dtype, i);
    if (std::isfinite(x)) sum += x * x;
  }
  return t.numel() == 0 ? 0 : sum / static_cast<double>(t.numel());
}

/// Returns |got - want|. It is 0 if both are NaN or the same infinity, and infinity if only one of them is finite.
double distance(double got, double want) {
  const bool same = got == want || (std::isnan(got) && std::isnan(want));
  return same ? 0 : std::isfinite(got) && std::isfinite(want) ? std::abs(got - want) : kInfinity;
}

/// Largest error of a range of elements of a tensor, and the tolerance for this range.
struct Block {
  double error = 0, tolerance = 0;
};

/// Checks each group of 64 rows of a head separately. Otherwise, the tolerance for rows with large values would hide
/// errors of rows with small values. block_of(begin, end) returns the error and tolerance of the elements in [begin,
/// end).
template <class BlockOf>
void judge_by_blocks(TensorError& error, const Tensor& reference, BlockOf block_of) {
  constexpr std::int64_t kRows = 64;
  // Smallest number of rows in a group. If fewer rows remain at the end, they belong to the preceding group, because
  // the largest error of very few rows varies too much.
  constexpr std::int64_t kFewRows = 8;
  const std::int64_t rows = reference.shape[2];
  const std::int64_t cols = reference.shape[3];
  double worst = 1;
  for (std::int64_t head = 0; head < reference.shape[0] * reference.shape[1]; ++head) {
    for (std::int64_t row = 0, next = 0; row < rows; row = next) {
      next = rows - row < kRows + kFewRows ? rows : row + kRows;
      const Block found = block_of((head * rows + row) * cols, (head * rows + next) * cols);
      error.tolerance = std::max(error.tolerance, found.tolerance);
      if (found.error <= worst * found.tolerance) continue;
      worst = found.error / found.tolerance;
      error.fault = fmt::format("{:.2e} in rows {} to {} of batch {}, head {}, allowed {:.2e}", found.error, row,
                                next - 1, head / reference.shape[1], head % reference.shape[1], found.tolerance);
    }
  }
}

double largest_of(const Tensor& t, std::int64_t begin, std::int64_t end) {
  double largest = 0;
  for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, core::load(t.data, t.dtype, i));
  return std::isfinite(largest) ? largest : 0;
}

/// A result with 16-bit elements or from 16-bit inputs, and the tensors with which it is compared.
struct HalfResult {
  const Tensor& result;
  const Tensor& reference;
  const Tensor& standard;
  std::function<const Tensor&()> noise;  // empty for a result of forward

  [[nodiscard]] Block block(std::int64_t begin, std::int64_t end) const {
    const double smallest = smallest_normal(result.dtype);
    double magnitude = 0;
    double standard_error = 0;
    Block block;
    for (std::int64_t i = begin; i < end; ++i) {
      const double want = core::load(reference.data, reference.dtype, i);
      if (std::isfinite(want)) magnitude = std::max(magnitude, std::abs(want));
      block.error = std::max(block.error, distance(core::load(result.data, result.dtype, i), want));
      standard_error = std::max(standard_error, distance(core::load(standard.data, standard.dtype, i), want));
    }
    block.tolerance = kStandardFactor * standard_error + kHalfFloor * magnitude +
                      unit_roundoff(result.dtype) * std::max(magnitude, smallest);
    if (!noise || block.error <= block.tolerance || block.error == kInfinity) return block;
    block.tolerance += largest_of(noise(), begin, end);
    return block;
  }

  void judge(TensorError& error) const {
    judge_by_blocks(error, reference, [this](std::int64_t begin, std::int64_t end) { return block(begin, end); });
  }
};

/// Returns the tolerance of the mean squared error of a 16-bit result.
double allowed_mse(const TensorError& standard, const Tensor& reference, DType result) {
  // Smallest number of rows. For fewer rows, mse is not checked, because the error of a row's delta affects all
  // elements of the row.
  constexpr std::int64_t kMinRows = 64;
  constexpr std::int64_t kMinEntries = 512;
  const std::int64_t entries = reference.numel();
  if (!core::is_narrow(result) || entries < kMinEntries || entries / reference.shape[3] < kMinRows) return kInfinity;
  const double smallest = smallest_normal(result);
  const double unit = unit_roundoff(result);
  return square(kStandardFactor * std::sqrt(standard.mse) + unit / 2 * std::sqrt(mean_square(reference)) +
                unit * smallest);
}

void judge_half(TensorError& error, const Workload& w, Truth& truth, Member member, bool gradient) {
  const Tensor& reference = (truth.reference().*member).view();
  const Tensor& standard = (truth.standard().*member).view();
  const Tensor& result = (w.*member).view();
  HalfResult half = {result, reference, standard, {}};
  if (gradient) half.noise = [&]() -> const Tensor& { return (truth.noise(true).*member).view(); };
  half.judge(error);
  error.mse_tolerance = allowed_mse(compare(error.name, standard, reference), reference, result.dtype);
  if (gradient && error.mse > error.mse_tolerance && error.mse < kInfinity) {
    const double root = std::sqrt(mean_square((truth.noise(false).*member).view()));
    error.mse_tolerance = square(std::sqrt(error.mse_tolerance) + root);
  }
  if (error.fault.empty() && error.mse > error.mse_tolerance) {
    error.fault = fmt::format("MSE {:.2e}, allowed {:.2e}", error.mse, error.mse_tolerance);
  }
}

TensorError judge(const char* name, const Workload& w, Truth& truth, Member member, bool gradient) {
  const Tensor& reference = (truth.reference().*member).view();
  TensorError error = compare(name, (w.*member).view(), reference);
  const double magnitude = largest_finite(reference);
  // Chooses the type with fewer bits from two types. One is the type of Q, to which the standard algorithm rounds. The
  // other is the type of the stored result.
  const DType result_dtype = (w.*member).dtype();
  const DType dtype = dtype_bytes(result_dtype) < dtype_bytes(w.q.dtype()) ? result_dtype : w.q.dtype();
  if (dtype == DType::kF64) {
    error.tolerance = kF64Tolerance * std::max(1.0, magnitude);
  } else if (dtype == DType::kF32) {
    error.tolerance = gradient ? kF32GradientTolerance * magnitude : kF32ForwardTolerance * std::max(1.0, magnitude);
    if (needs_more(error)) {
      const Tensor& standard = (truth.standard().*member).view();
      error.tolerance = std::max(error.tolerance, kStandardFactor * compare(name, standard, reference).max_abs);
    }
    const bool has_noise = gradient || member == &Workload::o;
    if (has_noise && needs_more(error)) {
      const Tensor& noise = gradient ? (truth.noise(true).*member).view() : truth.output_noise();
      const Tensor& result = (w.*member).view();
      judge_by_blocks(error, reference, [&, most = error.tolerance](std::int64_t begin, std::int64_t end) {
        Block block = {0, most + largest_of(noise, begin, end)};
        for (std::int64_t i = begin; i < end; ++i) {
          const double want = core::load(reference.data, reference.dtype, i);
          block.error = std::max(block.error, distance(core::load(result.data, result.dtype, i), want));
        }
        return block;
      });
    }
  } else {
    judge_half(error, w, truth, member, gradient);
  }
  set_passed(error);
  return error;
}

/// Checks the gradient of an option tensor. `row` is an index into core::kScoreTensors. The standard algorithm does not
/// compute these gradients, so it gives no tolerance. If neither Q nor the gradient has 16 bits, the tolerance is that
/// of float32. Otherwise it is four units of bfloat16. If the error exceeds this tolerance, two numbers are added to
/// it. They are the noise of the gradient, and the smallest normal float32, because GPUs flush smaller numbers to 0.
TensorError judge_option(const Workload& w, Truth& truth, std::size_t row) {
  const Tensor& reference = truth.reference().score_gradients[row]->view();
  const io::HostTensor& result = *w.score_gradients[row];
  TensorError error = compare(core::kScoreTensors[row].gradient, result.view(), reference);
  const bool half = core::is_narrow(w.q.dtype()) || core::is_narrow(result.dtype());
  constexpr double kHalfTolerance = 4 * 0x1p-8;  // four times the unit roundoff of bfloat16
  error.tolerance = (half ? kHalfTolerance : kF32GradientTolerance) * largest_finite(reference);
  if (needs_more(error)) error.tolerance += truth.largest_option_noise(row) + std::numeric_limits<float>::min();
  set_passed(error);
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
    const double off = distance(got, want);
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
    for (std::size_t row = 0; row < w.score_gradients.size(); ++row) {
      if (w.score_gradients[row]) report.backward.push_back(judge_option(w, truth, row));
    }
    for (TensorError& error : truth.judged_captures()) report.backward.push_back(std::move(error));
  }
  return report;
}

}  // namespace attend::cli
