// A tensor of any type, as kernels of serving take it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/problem.hpp"
#include "cuda/serving/cache_args.hpp"
#include "kernels/serving/rows_args.cuh"

namespace attend::cuda {

[[nodiscard]] inline RowsArgs rows_args(const Tensor& t) {
  const std::int64_t run_bytes = kRowRun * dtype_bytes(t.dtype);
  bool at_once = reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(run_bytes) == 0 &&
                 t.shape[3] % kRowRun == 0;
  for (std::size_t dim = 0; dim < 3; ++dim) at_once = at_once && (t.shape[dim] <= 1 || t.stride[dim] % kRowRun == 0);
  return {.data = t.data,
          .stride = core::strides_of(t),
          .element = static_cast<uint32>(stored_element(t.dtype)),
          .runs_at_once = at_once ? 1U : 0U};
}

}  // namespace attend::cuda
