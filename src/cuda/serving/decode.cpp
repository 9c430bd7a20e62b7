#include "cuda/serving/decode.hpp"

#include <fmt/format.h>

#include "attend/error.hpp"
#include "core/cache_checks.hpp"
#include "core/problem_checks.hpp"
#include "cuda/serving/decode_launch.hpp"
#include "cuda/serving/decode_storage.hpp"
#include "cuda/serving/decode_variant.hpp"
#include "cuda/serving/device_of.hpp"
#include "cuda/serving/host_copies.hpp"
#include "cuda/serving/kernel_cache.hpp"

namespace attend::cuda {
namespace {

/// Reads the arrays back and looks at them as calls on a CPU do.
void check_arrays(const core::DecodeProblem& p, StreamHandle stream) {
  core::DecodeProblem on_host = p;
  HostCopies copies(stream);
  copies.replace_arrays(on_host, p.num_sequences);
  on_host.cu_seqlens_q = copies.of(p.cu_seqlens_q, p.num_sequences + 1);
  copies.wait();
  if (on_host.cu_seqlens_q != nullptr) {
    core::check_row_offsets({.name = "cu_seqlens_q",
                             .offsets = on_host.cu_seqlens_q,
                             .num_sequences = p.num_sequences,
                             .most = p.max_seqlen_q,
                             .most_name = "max_seqlen_q",
                             .num_rows = p.q.shape[2],
                             .rows_name = "q"});
  }
  core::check_cache_entries(on_host);
}

/// The GPU of the problem. @throws Error where decode does not compute on it.
const DeviceInfo& device_for(const core::DecodeProblem& p) {
  const DeviceInfo& device = device_of("q", p.q);
  if (!device.arch().cp_async) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("q: on a GPU of compute capability {}.{}, decode allows 8.0 and higher", device.major,
                            device.minor));
  }
  return device;
}

}  // namespace

void require_decode(const core::DecodeProblem& p, Stream stream) {
  const DeviceInfo& device = device_for(p);
  (void)decode_variant(p, DecodeGpu::of(device));
  if (!core::checks_caches()) return;
  const ContextGuard guard(device.index);
  check_arrays(p, static_cast<StreamHandle>(stream));
}

void decode(const core::DecodeProblem& p, const AddedKeys& added, Stream stream) {
  static auto* kernels = new KernelCache<DecodeVariant>();  // launches may go on while the process ends
  const DeviceInfo& device = device_for(p);
  const DecodeVariant variant = decode_variant(p, DecodeGpu::of(device));
  const ContextGuard guard(device.index);
  auto* const handle = static_cast<StreamHandle>(stream);
  if (core::checks_caches()) check_arrays(p, handle);
  if (p.num_sequences == 0 || p.num_heads_q == 0 || p.max_seqlen_q == 0) return;
  const LoadedVariant& kernel =
      kernels->get(device, variant, [&](const Arch& arch) { return decode_spec(variant, arch.target); });

  const DecodeGrid grid = decode_grid(variant, p.capacity, device.num_multiprocessors);
  const DecodeStorage storage = decode_storage(grid.node_bytes, grid.stack_bytes, handle);
  DecodeArgs args = decode_args(p, added);
  args.storage = storage.nodes;
  args.stack = storage.stack;
  args.stack_nodes = grid.stack_nodes;
  kernel.launch({.x = grid.blocks}, &args, handle);
}

}  // namespace attend::cuda
