#include "cuda/launch/backends.hpp"

#include <vector>

#include "cuda/launch/ladder.hpp"
#include "cuda/launch/production.hpp"

namespace attend::cuda {
namespace {

core::Backend backend_of(const Rung& rung) {
  core::Backend backend = {.name = rung.name,
                           .description = rung.description,
                           .device = DeviceType::kCUDA,
                           .forward = [&rung](const core::Problem& p, Stream stream) { rung_forward(rung, p, stream); },
                           .backward = {},
                           .in_auto = rung.in_auto,
                           .dtypes = 0,
                           .unsupported = [&rung](const core::Problem& p) { return rung_lack(rung, p); }};
  for (const DType dtype : rung.dtypes) backend.dtypes |= core::dtype_bit(dtype);
  if (rung.backward != nullptr) {
    backend.backward = [&rung](const core::Problem& p, Stream stream) { rung_backward(rung, p, stream); };
  }
  return backend;
}

std::vector<core::Backend> assemble() {
  std::vector<core::Backend> list;
  const std::span<const Rung> rungs = ladder();
  for (std::size_t i = rungs.size(); i-- > 0;) list.push_back(backend_of(rungs[i]));  // each rung beats the one before
  list.push_back(backend_of(simt_kernels()));  // takes every option: what auto comes to in the end
  return list;
}

}  // namespace

std::span<const core::Backend> backends() {
  static const auto* list = new std::vector<core::Backend>(assemble());
  return *list;
}

}  // namespace attend::cuda
