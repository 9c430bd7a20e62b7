#include "workload/random_workload.hpp"

#include <algorithm>
#include <cstring>

#include "io/random_normal.hpp"
#include "workload/own_functions.hpp"

namespace attend::cli {
namespace {

constexpr std::uint64_t kSeed = 42;
constexpr std::size_t kFreshNumbers = 4'194'301;  // prime, so that no row or tile length divides the period

io::HostTensor random_tensor(DType dtype, const Shape& shape, io::NormalStream stream) {
  io::HostTensor tensor(dtype, shape);
  const auto count = std::min(static_cast<std::size_t>(tensor.numel()), kFreshNumbers);
  io::HostTensor values(DType::kF32, {1, 1, 1, static_cast<std::int64_t>(count)});
  io::fill_normal({static_cast<float*>(values.view().data), count}, kSeed, stream, 0);
  if (dtype != DType::kF32) values = values.converted(dtype);
  const std::span<std::byte> bytes = tensor.bytes();
  for (std::size_t at = 0; at < bytes.size(); at += values.bytes().size()) {
    std::memcpy(bytes.data() + at, values.bytes().data(), std::min(values.bytes().size(), bytes.size() - at));
  }
  return tensor;
}

}  // namespace

Workload random_workload(const GridEntry& entry, const AttentionOptions& options, Mode mode) {
  const io::FolderSpec& spec = entry.spec;
  Workload w;
  w.options = options;
  w.options.causal = options.causal || entry.causal;
  w.q = random_tensor(spec.dtype, spec.q_shape(), io::NormalStream::kQ);
  w.k = random_tensor(spec.dtype, spec.k_shape(), io::NormalStream::kK);
  w.v = random_tensor(spec.dtype, spec.v_shape(), io::NormalStream::kV);
  if (!entry.function.empty()) add_own_function(entry.function, w);
  w.allocate_forward();
  if (mode == Mode::kForward) return w;
  w.dout = random_tensor(spec.dtype, spec.o_shape(), io::NormalStream::kDOut);
  w.allocate_backward();
  return w;
}

}  // namespace attend::cli
