// Implements explain_ring, which estimates the time of each algorithm for a problem that is given only by sizes.
#include <span>

#include "core/problem_checks.hpp"
#include "ring/plan/choice.hpp"

namespace attend {

std::vector<RingCandidate> explain_ring(const RingProblem& problem, const Params& params,
                                        const RingParams& ring_params) {
  if (problem.num_ranks < 1) core::refuse("num_ranks: {}, allowed >= 1", problem.num_ranks);
  const Device device = {problem.device, 0};
  std::uintptr_t place = 0;  // invented address of the next tensor; the memory of the tensors is never accessed
  const auto tensor = [&](DType dtype, std::int64_t heads, std::int64_t seqlen, std::int64_t columns) {
    place += std::uintptr_t{1} << 44;             // larger than any tensor
    auto* data = reinterpret_cast<void*>(place);  // NOLINT(performance-no-int-to-ptr)
    return Tensor::bhsd<void>(data, dtype, {problem.batch, heads, seqlen, columns}, device);
  };
  const auto share = [&](const char* name, std::int64_t seqlen, const std::int32_t* cu_seqlens) {
    if (seqlen < 0 || seqlen > core::kMaxLength)
      core::refuse("{}: {}, allowed 0 to {}", name, seqlen, core::kMaxLength);
    std::span<const std::int32_t> offsets;
    if (cu_seqlens != nullptr) offsets = {cu_seqlens, static_cast<std::size_t>(params.varlen->num_sequences) + 1};
    return shard_seqlen(ring_params.sharding, seqlen, 0, problem.num_ranks, offsets);
  };
  const Varlen varlen = params.varlen.value_or(Varlen{});
  const std::int64_t rows = share("seqlen_q", problem.seqlen_q, varlen.cu_seqlens_q);
  const std::int64_t keys = share("seqlen_k", problem.seqlen_k, varlen.cu_seqlens_k);
  const Tensor q = tensor(problem.dtype, problem.num_heads_q, rows, problem.head_dim);
  const Tensor k = tensor(problem.dtype, problem.num_heads_k, keys, problem.head_dim);
  const Tensor v = tensor(problem.dtype, problem.num_heads_k, keys, problem.head_dim_v);
  const Tensor o = tensor(problem.dtype, problem.num_heads_q, rows, problem.head_dim_v);
  const Tensor lse = tensor(problem.dtype == DType::kF64 ? DType::kF64 : DType::kF32, problem.num_heads_q, rows, 1);
  const core::WholeLengths whole = {problem.seqlen_q, problem.seqlen_k};
  const auto like = [&](const Tensor& t) { return tensor(t.dtype, t.shape[1], t.shape[2], t.shape[3]); };
  ring::Call call = {};
  call.problem = problem.is_backward ? core::make_backward_problem(like(o), q, k, v, o, lse, like(q), like(k), like(v),
                                                                   params, {}, &whole)
                                     : core::make_forward_problem(q, k, v, o, &lse, params, &whole);
  call.partial_dtype = problem.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  call.plan = ring::Plan(call.problem, whole, ring_params.sharding, 0, problem.num_ranks);
  call.heads_plan = ring::Plan(call.problem, whole, Sharding::kContiguous, 0, 1);
  std::vector<RingCandidate> all = ring::candidates_of(call, ring_params.algorithm);
  for (const RingCandidate& c : all) {
    if (c.chosen && c.steps.empty()) throw Error(ErrorCode::kUnsupported, c.lack);
  }
  return all;
}

}  // namespace attend
