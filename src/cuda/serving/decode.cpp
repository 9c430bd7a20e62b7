#include "cuda/serving/decode.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <optional>

#include "attend/error.hpp"
#include "core/cache_checks.hpp"
#include "core/problem_checks.hpp"
#include "cuda/serving/decode_launch.hpp"
#include "cuda/serving/decode_storage.hpp"
#include "cuda/serving/decode_variant.hpp"
#include "cuda/serving/device_of.hpp"
#include "cuda/serving/host_copies.hpp"
#include "cuda/serving/kernel_cache.hpp"
#include "cuda/serving/long_rows.hpp"

namespace attend::cuda {
namespace {

/// Copies the index arrays to the host and checks them in the same way as for a call on the CPU.
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

/// Returns the GPU of the problem. @throws Error if decode does not support the GPU.
const DeviceInfo& device_for(const core::DecodeProblem& p) {
  const DeviceInfo& device = device_of("q", p.q);
  if (!device.arch().cp_async) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("q: on a GPU of compute capability {}.{}, decode allows 8.0 or higher", device.major,
                            device.minor));
  }
  return device;
}

/// The kernel variants of a call: the decode kernel and, if sequences may have many query rows, sm90_forward.
struct Variants {
  DecodeVariant few_rows;
  std::optional<Sm90ForwardVariant> long_rows;
  /// If both kernels run, the decode kernel skips sequences with more query rows than this.
  std::int64_t most_rows;

  [[nodiscard]] static Variants of(const core::DecodeProblem& p, const DeviceInfo& device, LongRows by) {
    Variants variants;
    variants.most_rows = most_decode_rows(by, p.num_heads_q);
    variants.long_rows = long_rows_variant(p, device.arch(), variants.most_rows);
    variants.few_rows = decode_variant(p, DecodeGpu::of(device), variants.long_rows.has_value());
    return variants;
  }
};

/// A loaded kernel with its arguments and its grid. Everything that can fail has been done, except the launch itself.
template <class Args>
struct ReadyKernel {
  const LoadedVariant& kernel;
  Args args;
  Dim3 grid;

  void launch(StreamHandle stream) { kernel.launch(grid, &args, stream); }
};

/// Prepares both kernels of a call for launching.
struct DecodeLaunch {
  const core::DecodeProblem& p;
  const AddedKeys& added;
  const DeviceInfo& device;
  StreamHandle stream;
  /// If both kernels run, the decode kernel skips sequences with more query rows than this.
  std::int64_t most_rows;

  [[nodiscard]] ReadyKernel<DecodeArgs> few_rows(const DecodeVariant& variant, DecodeStorage& storage) const {
    // Never destroyed, because launches may continue during process exit.
    static auto* kernels = new KernelCache<DecodeVariant>();
    const LoadedVariant& kernel =
        kernels->get(device, variant, [&](const Arch& arch) { return decode_spec(variant, arch.target); });
    const DecodeGrid grid = decode_grid(variant, p.capacity, device.num_multiprocessors);
    storage = decode_storage(grid, stream);
    DecodeArgs args = decode_args(p, variant, added);
    args.storage = storage.nodes;
    args.stack = storage.stack;
    args.stack_nodes = grid.stack_nodes;
    if (variant.leaves_room != 0) args.most_rows = static_cast<uint32>(most_rows);
    return {kernel, args, {.x = grid.blocks}};
  }

  [[nodiscard]] ReadyKernel<Sm90CachedArgs> long_rows(const Sm90ForwardVariant& variant, std::uint32_t blocks,
                                                      const Scratch& scratch, const DecodeStorage& storage) const {
    // Never destroyed, for the same reason as the cache above.
    static auto* kernels = new KernelCache<Sm90ForwardVariant>();
    const LoadedVariant& kernel =
        kernels->get(device, variant, [&](const Arch& arch) { return long_rows_spec(variant, arch.target); });
    auto* const counters = reinterpret_cast<uint32*>(static_cast<std::byte*>(storage.nodes) + kDecodeLongRowsAt);
    return {kernel,
            long_rows_args(p, variant, added, most_rows, counters,
                           reinterpret_cast<void*>(scratch.data())),  // NOLINT(performance-no-int-to-ptr)
            {.x = blocks}};
  }
};

}  // namespace

void require_decode(const core::DecodeProblem& p, LongRows by, Stream stream) {
  const DeviceInfo& device = device_for(p);
  (void)Variants::of(p, device, by);
  if (!core::checks_caches()) return;
  const ContextGuard guard(device.index);
  check_arrays(p, static_cast<StreamHandle>(stream));
}

void decode(const core::DecodeProblem& p, const AddedKeys& added, LongRows by, Stream stream) {
  const DeviceInfo& device = device_for(p);
  const Variants variants = Variants::of(p, device, by);
  const ContextGuard guard(device.index);
  auto* const handle = static_cast<StreamHandle>(stream);
  if (core::checks_caches()) check_arrays(p, handle);
  if (p.num_sequences == 0 || p.num_heads_q == 0 || p.max_seqlen_q == 0 || p.q.shape[2] == 0) return;
  const DecodeLaunch launch = {p, added, device, handle, variants.most_rows};
  DecodeStorage storage;
  auto few_rows = launch.few_rows(variants.few_rows, storage);
  if (!variants.long_rows) return few_rows.launch(handle);
  const std::uint32_t blocks = long_rows_blocks(p, *variants.long_rows, device.num_multiprocessors);
  const Scratch scratch(long_rows_scratch_bytes(*variants.long_rows, blocks), handle);
  auto long_rows = launch.long_rows(*variants.long_rows, blocks, scratch, storage);
  few_rows.launch(handle);
  // No other launch may be between these two. The second kernel may start before the first one has ended, but not
  // before the first one has waited for all earlier work on the stream.
  long_rows.launch(handle);
}

}  // namespace attend::cuda
