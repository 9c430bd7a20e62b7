// Implements attend::append and attend::merge. They check the arguments and compute on the tensors' device.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "attend/serving.hpp"
#include "core/append_problem.hpp"
#include "core/merge_problem.hpp"
#include "cpu/serving/decode_backends.hpp"
#include "cuda/driver/nvtx.hpp"
#include "cuda/serving/append.hpp"
#include "cuda/serving/merge.hpp"

namespace attend {

void append(const AppendCall& call) {
  const cuda::NvtxRange range([&] {
    return fmt::format("attend::append ({}) {}, cache ({})", fmt::join(call.k.shape, ", "), dtype_name(call.k.dtype),
                       fmt::join(call.k_cache.shape, ", "));
  });
  const core::AppendProblem problem = core::make_append_problem(call);
  if (problem.k.device.type == DeviceType::kCUDA) return cuda::append(problem, call.stream);
  cpu::append(problem);
}

void merge(std::span<const PartialState> states, const Tensor& o, const Tensor* lse, const MergeParams& params,
           Stream stream) {
  const cuda::NvtxRange range([&] {
    return fmt::format("attend::merge {} of ({}) {}", states.size(), fmt::join(o.shape, ", "), dtype_name(o.dtype));
  });
  const core::MergeProblem problem = core::make_merge_problem(states, o, lse, params);
  if (problem.o.device.type == DeviceType::kCUDA) return cuda::merge(problem, stream);
  cpu::merge(problem);
}

}  // namespace attend
