// The `cpu` backend, host side: cuts a problem into tasks, runs them on threads, and lets the reference redo what holds
// NaN or infinities.
#include <fmt/format.h>

#include "core/problem.hpp"
#include "cpu/backends.hpp"
#include "cpu/kernels.hpp"
#include "cpu/parallel.hpp"
#include "cpu/reference.hpp"

namespace attend::cpu {
namespace {

using core::Problem;
using core::Sequence;

void forward(const Problem& p, Stream /*stream*/) {
  const std::int64_t blocks = ceil_div(p.max_seqlen_q, kForwardBlockM);
  const std::int64_t heads = p.num_sequences * p.num_heads_q;
  parallel_for(blocks * heads, [&](std::int64_t index) {
    // The last rows first: under a causal mask they are the longest tasks, and a long task last leaves threads idle.
    const std::int64_t block = blocks - 1 - index / heads;
    const Sequence sequence = p.sequence(index % heads / p.num_heads_q);
    const std::int64_t row_begin = block * kForwardBlockM;
    if (row_begin >= sequence.seqlen_q) return;
    const ForwardTask task = {sequence, index % p.num_heads_q, row_begin,
                              std::min<std::int64_t>(row_begin + kForwardBlockM, sequence.seqlen_q)};
    if (!forward_rows(p, task, Scratch::of_this_thread())) {
      reference_forward_rows(p, sequence, task.head, task.row_begin, task.row_end);
    }
    Scratch::of_this_thread().release_if_large();
  });
}

std::optional<std::string> unsupported(const Problem& p) {
  const std::pair<const char*, const Tensor*> tensors[] = {{"q", &p.q}, {"k", &p.k}, {"v", &p.v}, {"o", &p.o}};
  for (const auto& [name, tensor] : tensors) {
    if (tensor->dtype == DType::kF64) return fmt::format("{}: dtype f64, compute 'cpu' allows f32, f16, bf16", name);
    if (tensor->dtype != p.q.dtype) {
      return fmt::format("{}: dtype {}, allowed {}, the dtype of q", name, dtype_name(tensor->dtype), dtype_name(p.q.dtype));
    }
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
  static const core::Backend kBackend = {
      "cpu", "tiled online softmax, SIMD, threads", DeviceType::kCPU, forward, reference_backend().backward, unsupported};
  return kBackend;
}

}  // namespace attend::cpu

namespace attend {

int cpu_threads() { return cpu::max_threads(); }

std::string cpu_simd_target() { return cpu::simd_target_name(); }

}  // namespace attend
