#include "ring/engine/ring_rows.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "cuda/driver/device.hpp"
#include "cuda/jit/jit.hpp"
#include "cuda/launch/config_enums.hpp"
#include "cuda/launch/facts.hpp"
#include "kernels/ring/ring_rows_args.cuh"

namespace attend::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// Blocks and threads per block; together 2048 threads, the limit of a multiprocessor.
constexpr int kBlocksPerMultiprocessor = 8;
constexpr int kVector = 4;  // elements that a thread moves at once

KernelSpec spec_of(ElementType to, ElementType from, int vector, bool adds, const char* arch) {
  return {.name = "ring_rows",
          .source = "ring/ring_rows.cuh",
          .function = "ring_rows",
          .args = RingRowsArgs::kTypeName,
          .config = {{"kThreads", kThreads},
                     {"kFrom", enum_constant(from)},
                     {"kTo", enum_constant(to)},
                     {"kVector", vector},
                     {"kAdds", adds}},
          .arch = arch};
}

std::shared_ptr<const Kernel> loaded(ElementType to, ElementType from, int vector, bool adds, int device) {
  static auto* mutex = new std::mutex();  // never freed, because calls may run while the process ends
  static auto* kernels =
      new std::map<std::tuple<ElementType, ElementType, int, bool, int>, std::shared_ptr<const Kernel>>();
  const std::lock_guard lock(*mutex);
  std::shared_ptr<const Kernel>& kernel = (*kernels)[{to, from, vector, adds, device}];
  if (!kernel)
    kernel = Jit::instance().load(spec_of(to, from, vector, adds, device_info(device).arch().target), device);
  return kernel;
}

/// Returns whether the tensor consists of aligned groups of kVector elements, which a thread can move at once.
bool has_runs(const Tensor& t) {
  const std::int64_t bytes = kVector * dtype_bytes(t.dtype);
  bool has = reinterpret_cast<std::intptr_t>(t.data) % bytes == 0 && t.shape[3] % kVector == 0;
  for (std::size_t dim = 0; dim < 3; ++dim) has = has && (t.shape[dim] <= 1 || t.stride[dim] % kVector == 0);
  return has;
}

TensorStrides strides(const Tensor& t) {
  return {t.stride[0], t.stride[1], t.stride[2]};
}

/// Queues one kernel. `other` is a second addend of type f32, or null.
void run(const Tensor& to, const Tensor& from, const Tensor* other, StreamHandle stream) {
  if (to.numel() == 0) return;
  const bool adds = other != nullptr;
  const int vector = has_runs(to) && has_runs(from) && (!adds || has_runs(*other)) ? kVector : 1;
  const std::int64_t runs = (to.shape[2] + kRingRowsOfWarp - 1) / kRingRowsOfWarp;
  RingRowsArgs args = {.from = from.data,
                       .other = adds ? static_cast<const float*>(other->data) : nullptr,
                       .to = to.data,
                       .from_stride = strides(from),
                       .other_stride = adds ? strides(*other) : TensorStrides{},
                       .to_stride = strides(to),
                       .all_runs = to.shape[0] * to.shape[1] * runs,
                       .heads = static_cast<uint32>(to.shape[1]),
                       .rows = static_cast<uint32>(to.shape[2]),
                       .runs = static_cast<uint32>(runs),
                       .cols = static_cast<uint32>(to.shape[3])};
  const int device = to.device.index;
  const std::int64_t most = std::int64_t{kBlocksPerMultiprocessor} * device_info(device).num_multiprocessors;
  const std::int64_t blocks = std::min(most, (args.all_runs + kWarps - 1) / kWarps);
  void* parameters[] = {&args};
  loaded(element_of(to.dtype), element_of(from.dtype), vector, adds, device)
      ->launch({.grid = {static_cast<unsigned>(blocks)}, .block = {kThreads}}, parameters, stream);
}

}  // namespace

void convert_rows(const Tensor& to, const Tensor& from, StreamHandle stream) {
  run(to, from, nullptr, stream);
}

void add_rows(const Tensor& to, const Tensor& from, StreamHandle stream) {
  run(to, from, &to, stream);
}

void store_sum_of_rows(const Tensor& to, const Tensor& a, const Tensor& b, StreamHandle stream) {
  run(to, a, &b, stream);
}

std::vector<KernelSpec> ring_rows_specs(const char* arch) {
  using enum ElementType;
  std::vector<KernelSpec> specs;
  for (const int vector : {1, kVector}) {
    for (const ElementType element : {kF32, kF16, kBF16}) {
      specs.push_back(spec_of(element, kF32, vector, false, arch));
      if (element != kF32) specs.push_back(spec_of(element, element, vector, false, arch));
      specs.push_back(spec_of(element, kF32, vector, true, arch));
    }
  }
  return specs;
}

}  // namespace attend::cuda
