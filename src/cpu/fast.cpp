// The part of the `cpu` backend that splits a problem into tasks and runs the tasks on threads. If results contain NaN
// or infinities, the reference recomputes them.
#include <fmt/format.h>

#include <atomic>
#include <vector>

#include "core/dtype_traits.hpp"
#include "core/lack.hpp"
#include "core/problem.hpp"
#include "core/score_options.hpp"
#include "cpu/backends.hpp"
#include "cpu/bf16_dot.hpp"
#include "cpu/kernels.hpp"
#include "cpu/parallel.hpp"
#include "cpu/reference.hpp"
#include "cpu/work_list.hpp"

namespace attend::cpu {
namespace {

using core::Problem;
using core::Sequence;

/// Returns the number of scores: query rows times keys, summed over all sequences and heads.
double num_scores(const Problem& p) {
  double of_head = 0;
  for (std::int64_t index = 0; index < p.num_sequences; ++index) {
    const Sequence s = p.sequence(index);
    of_head += static_cast<double>(s.seqlen_q) * static_cast<double>(s.seqlen_k);
  }
  return of_head * static_cast<double>(p.num_heads_q);
}

/// Returns the number of threads to use. Small problems use one thread, because starting the threads takes as long as
/// about 2^18 multiplications, and even milliseconds on a busy machine.
int threads_for(const Problem& p) {
  constexpr double kWorkWorthThreads = 1 << 18;
  return num_scores(p) * static_cast<double>(p.head_dim + p.head_dim_v) < kWorkWorthThreads ? 1 : max_threads();
}

std::atomic<std::int64_t> redone = 0;

/// Selects the SIMD target. Must be called before threads start, because the selection may throw an exception about an
/// environment variable, and only an exception of this thread reaches the caller.
void choose_instructions() {
  choose_simd_target();
  (void)bf16_unit();
}

/// Returns the number of query rows in a forward task. The number is less than kForwardBlockM if there would otherwise
/// be fewer tasks than threads. The choice does not change the bits of a result.
std::int64_t forward_block(const Problem& p, int threads) {
  std::int64_t rows = kForwardBlockM;
  while (rows > kPanel && WorkList(p, BlocksOf::kRows, rows).size() < threads) rows /= 2;
  return rows;
}

void forward(const Problem& p, Stream /*stream*/) {
  choose_instructions();
  const int threads = threads_for(p);
  const WorkList work(p, BlocksOf::kRows, forward_block(p, threads));
  parallel_for(work.size(), threads, [&](std::int64_t number) {
    const auto [sequence, head, begin, end] = work.at(number);
    if (!forward_rows(p, {sequence, head, begin, end}, Scratch::of_this_thread())) {
      ++redone;
      reference_forward_rows(p, sequence, head, begin, end);
    }
    Scratch::of_this_thread().release_if_large();
  });
}

/// Returns the average fraction of busy threads for `tasks` equal tasks.
double busy_share(std::int64_t tasks, std::int64_t threads) {
  return static_cast<double>(tasks) / static_cast<double>(ceil_div(tasks, threads) * threads);
}

/// One flag per key head. The flag is true if a task has found NaN or infinities; the reference must then recompute the
/// head. Several threads write the flags.
using RedoFlags = std::vector<std::atomic<bool>>;

/// Computes dq, dk and dv with one task per key head: five products per tile.
void backward_by_group(const Problem& p, const RowCorrections& corrections, RedoFlags& redo) {
  parallel_for(p.num_sequences * p.num_heads_k, threads_for(p), [&](std::int64_t group) {
    const Sequence sequence = p.sequence(group / p.num_heads_k);
    const BackwardKeysTask task = {sequence, group % p.num_heads_k, 0, sequence.seqlen_k, true, corrections};
    if (!backward_keys(p, task, Scratch::of_this_thread())) redo[group] = true;
    Scratch::of_this_thread().release_if_large();
  });
}

/// Computes the same gradients with smaller tasks. Some tasks compute dk and dv for a range of keys, and the other
/// tasks compute dq for a range of rows. This needs seven products per tile.
void backward_by_tile(const Problem& p, const RowCorrections& corrections, RedoFlags& redo) {
  const WorkList key_work(p, BlocksOf::kKeys, kBackwardKeysPerTask);
  const WorkList row_work(p, BlocksOf::kRows, kBackwardBlockM);
  parallel_for(key_work.size() + row_work.size(), threads_for(p), [&](std::int64_t number) {
    Scratch& scratch = Scratch::of_this_thread();
    if (number < key_work.size()) {  // larger tasks first
      const auto [sequence, head, begin, end] = key_work.at(number);
      const bool finite = backward_keys(p, {sequence, head, begin, end, false, corrections}, scratch);
      if (!finite) redo[sequence.index * p.num_heads_k + head] = true;
    } else {
      const auto [sequence, head, begin, end] = row_work.at(number - key_work.size());
      const bool finite = backward_rows(p, {sequence, head, begin, end, corrections}, scratch);
      if (!finite) redo[sequence.index * p.num_heads_k + head / p.heads_per_group()] = true;
    }
    scratch.release_if_large();
  });
}

std::int64_t num_query_rows(const Problem& p) {
  return p.q.shape[0] * p.q.shape[1] * p.q.shape[2];
}

/// Returns the result of exact_log2_sums() for each row: log2 of the row's sum of exp(s - lse). Returns an empty vector
/// if every lse is precise enough. Also returns an empty vector if the problem is a part of a larger problem, because
/// lse then includes keys outside the part.
std::vector<float> log2_sums_of(const Problem& p) {
  const bool adds = p.bias || p.alibi_slopes || p.custom_score != nullptr;
  if (!adds || p.placement() != nullptr) return {};
  const WorkList work(p, BlocksOf::kRows, kBackwardBlockM);
  std::vector<std::atomic<bool>> is_coarse(static_cast<std::size_t>(work.size()));
  std::atomic<bool> any = false;
  parallel_for(work.size(), threads_for(p), [&](std::int64_t number) {
    const auto [sequence, head, begin, end] = work.at(number);
    for (std::int64_t row = begin; row < end; ++row) {
      if (!lse_is_coarse(p, sequence, head, row)) continue;
      is_coarse[number] = any = true;
      return;
    }
  });
  if (!any) return {};
  std::vector<float> log2_sums(static_cast<std::size_t>(num_query_rows(p)));
  parallel_for(work.size(), threads_for(p), [&](std::int64_t number) {
    if (!is_coarse[number]) return;
    const auto [sequence, head, begin, end] = work.at(number);
    exact_log2_sums(p, {sequence, head, begin, end, {}}, log2_sums.data(), Scratch::of_this_thread());
    Scratch::of_this_thread().release_if_large();
  });
  return log2_sums;
}

/// Returns the result of exact_deltas() for each row: <dout, o> - dlse. Returns an empty vector if o is precise enough.
std::vector<float> deltas_of(const Problem& p, const RowCorrections& corrections) {
  const bool coarse = core::is_narrow(p.o.dtype);
  if (!coarse || p.dropout_p == 0 || p.delta() != nullptr) return {};
  std::vector<float> deltas(static_cast<std::size_t>(num_query_rows(p)));
  const WorkList work(p, BlocksOf::kRows, kBackwardBlockM);
  parallel_for(work.size(), threads_for(p), [&](std::int64_t number) {
    const auto [sequence, head, begin, end] = work.at(number);
    exact_deltas(p, {sequence, head, begin, end, corrections}, deltas.data(), Scratch::of_this_thread());
    Scratch::of_this_thread().release_if_large();
  });
  return deltas;
}

void backward_bias(const Problem& p, const RowCorrections& corrections) {
  const Shape& shape = p.dbias->shape;
  const std::int64_t row_tiles = ceil_div(shape[2], kBackwardBlockM);
  const std::int64_t key_tiles = ceil_div(shape[3], kBlockN);
  std::atomic<bool> finite = true;
  parallel_for(shape[0] * shape[1] * row_tiles * key_tiles, threads_for(p), [&](std::int64_t index) {
    const std::int64_t row_tile = index / key_tiles % row_tiles;
    const std::int64_t head = index / key_tiles / row_tiles;
    const DbiasTask task = {head / shape[1], head % shape[1], row_tile * kBackwardBlockM, index % key_tiles * kBlockN,
                            corrections};
    if (!dbias_tile(p, task, Scratch::of_this_thread())) finite = false;
    Scratch::of_this_thread().release_if_large();
  });
  if (finite) return;
  ++redone;
  reference_dbias(p);
}

void backward_captures(const Problem& p, const RowCorrections& corrections) {
  if (p.captured_gradients.empty() || capture_gradients(p, corrections, threads_for(p))) return;
  ++redone;
  reference_captured_gradients(p);
}

/// Returns whether the method with one task per key head should be used. There must be enough key heads to keep the
/// threads busy, and the sums of a key head must fit into the memory limit of a thread.
bool groups_suffice(const Problem& p) {
  constexpr double kWorthOfFiveInsteadOfSeven = 5.0 / 7.0;
  constexpr std::int64_t kMostBytesOfGroup = 96 << 20;
  const std::int64_t groups = p.num_sequences * p.num_heads_k;
  if (groups == 0) return true;
  if (busy_share(groups, threads_for(p)) < kWorthOfFiveInsteadOfSeven) return false;
  for (std::int64_t index = 0; index < (p.varlen ? p.num_sequences : 1); ++index) {
    if (backward_keys_bytes(p, p.sequence(index)) > kMostBytesOfGroup) return false;
  }
  return true;
}

void backward(const Problem& p, Stream /*stream*/) {
  choose_instructions();
  const std::int64_t groups = p.num_sequences * p.num_heads_k;
  const auto pointer = [](const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); };
  const std::vector<float> log2_sums = log2_sums_of(p);
  RowCorrections corrections = {.log2_sums = pointer(log2_sums)};
  const std::vector<float> deltas = deltas_of(p, corrections);
  corrections.deltas = pointer(deltas);
  RedoFlags redo(static_cast<std::size_t>(groups));
  if (groups_suffice(p)) {
    backward_by_group(p, corrections, redo);
  } else {
    backward_by_tile(p, corrections, redo);
  }
  parallel_for(groups, threads_for(p), [&](std::int64_t group) {
    if (!redo[group]) return;
    ++redone;
    reference_backward_group(p, p.sequence(group / p.num_heads_k), group % p.num_heads_k);
  });
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    if (row.gradient == nullptr || !(p.*row.gradient_tensor)) continue;
    if (row.mod == ScoreMod::kBias) {
      backward_bias(p, corrections);
    } else {
      reference_option_gradient(p, row);
    }
  }
  backward_captures(p, corrections);
}

/// Returns the reason why the backend cannot run the call, if there is one. Every tensor is converted to and from
/// float, so any mix of f32, f16 and bf16 is supported.
std::optional<std::string> unsupported(const Problem& p) {
  if (auto lack = core::custom_score_lack(p, "cpu", /*runs_programs=*/true)) return lack;
  constexpr core::DTypes kTaken = {core::dtype_bit(DType::kF32) | core::dtype_bit(DType::kF16) |
                                   core::dtype_bit(DType::kBF16)};
  const auto lack = [](const char* name, DType dtype) {
    return fmt::format("{}: dtype {}, allowed with compute 'cpu': f32, f16, bf16", name, dtype_name(dtype));
  };
  for (const auto& [name, tensor] : core::NamedTensors(p)) {
    if (!kTaken.has(tensor->dtype)) return lack(name, tensor->dtype);
  }
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    const std::optional<Tensor>& tensor = p.*row.tensor;
    if (tensor && !row.dtype && !kTaken.has(tensor->dtype)) return lack(row.name, tensor->dtype);
    if (row.gradient == nullptr || !(p.*row.gradient_tensor)) continue;
    const DType gradient = (p.*row.gradient_tensor)->dtype;
    if (!kTaken.has(gradient) && gradient != DType::kF64) return lack(row.gradient, gradient);
  }
  return std::nullopt;
}

}  // namespace

Scratch& Scratch::of_this_thread() {
  thread_local Scratch scratch;
  return scratch;
}

void Scratch::throw_out_of_memory(std::int64_t floats) {
  throw Error(ErrorCode::kInternal, fmt::format("out of memory: {} bytes of scratch for one thread", floats * 4));
}

const core::Backend& fast_backend() {
  static const core::Backend kBackend = {.name = "cpu",
                                         .description = "tiled online softmax, SIMD, threads",
                                         .device = DeviceType::kCPU,
                                         .forward = forward,
                                         .backward = backward,
                                         .unsupported = unsupported};
  return kBackend;
}

std::int64_t parts_redone() {
  return redone;
}

}  // namespace attend::cpu

namespace attend {

std::string cpu_simd_target() {
  return cpu::simd_target_name();
}

std::string cpu_bf16_unit() {
  switch (cpu::bf16_unit()) {
    case cpu::Bf16Unit::kAmx:
      return "AMX";
    case cpu::Bf16Unit::kEmulatedAmx:
      return "emulated AMX";
    case cpu::Bf16Unit::kDot:
      return "AVX512_BF16";
    case cpu::Bf16Unit::kNone:
      break;
  }
  return "float32";
}

}  // namespace attend
