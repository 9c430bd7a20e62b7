#include "cuda/serving/decode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "attend/error.hpp"
#include "core/cache_checks.hpp"
#include "core/problem_checks.hpp"
#include "cuda/serving/decode_storage.hpp"
#include "cuda/serving/decode_variant.hpp"
#include "cuda/serving/device_of.hpp"
#include "cuda/serving/host_copies.hpp"
#include "cuda/serving/kernel_cache.hpp"

namespace attend::cuda {
namespace {

TensorStrides strides_of(const Tensor& t) {
  return {t.stride[0], t.stride[1], t.stride[2]};
}

DecodeArgs args_of(const core::DecodeProblem& p, const AddedKeys& added) {
  DecodeArgs args = {};
  args.q = p.q.data;
  args.k = p.k.data;
  args.v = p.v.data;
  args.o = p.o.data;
  args.cu_seqlens_q = p.cu_seqlens_q;
  args.tree_mask = reinterpret_cast<const uint64*>(p.tree_mask);
  args.q_stride = strides_of(p.q);
  args.k_stride = strides_of(p.k);
  args.v_stride = strides_of(p.v);
  args.o_stride = strides_of(p.o);
  if (p.lse) {
    args.lse = static_cast<float*>(p.lse->data);
    args.lse_stride = strides_of(*p.lse);
  }
  if (p.alibi_slopes) {
    args.alibi_slopes = static_cast<const float*>(p.alibi_slopes->data);
    args.alibi_sequence_stride = p.alibi_slopes->stride[0];
    args.alibi_head_stride = p.alibi_slopes->stride[1];
  }
  if (p.sinks) {
    args.sinks = p.sinks->data;
    args.sinks_element = stored_element(p.sinks->dtype);
    args.sinks_sequence_stride = p.sinks->stride[0];
    args.sinks_head_stride = p.sinks->stride[1];
  }
  args.num_sequences = p.num_sequences;
  args.max_seqlen_q = p.max_seqlen_q;
  args.window_left = p.window_left;
  args.window_right = p.window_right;
  args.cache = cache_args(p, added);
  args.num_heads_k = static_cast<uint32>(p.num_heads_k);
  args.group = static_cast<uint32>(p.heads_per_group());
  args.scale = static_cast<float>(p.scale);
  args.transform_cap = static_cast<float>(p.transform_cap);
  args.lse_base2 = p.lse_base2 ? 1 : 0;
  return args;
}

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

/// Levels of the tree over a sequence of `capacity` keys.
int tree_levels(std::int64_t capacity) {
  return std::bit_width(static_cast<std::uint64_t>(capacity / kStepKeys + 1));
}

}  // namespace

void require_decode(const core::DecodeProblem& p, Stream stream) {
  const DeviceInfo& device = device_for(p);
  (void)decode_variant(p, device.max_smem_per_block);
  if (!core::checks_caches()) return;
  const ContextGuard guard(device.index);
  check_arrays(p, static_cast<StreamHandle>(stream));
}

void decode(const core::DecodeProblem& p, const AddedKeys& added, Stream stream) {
  static auto* kernels = new KernelCache<DecodeVariant>();  // launches may go on while the process ends
  const DeviceInfo& device = device_for(p);
  const DecodeVariant variant = decode_variant(p, device.max_smem_per_block);
  const ContextGuard guard(device.index);
  auto* const handle = static_cast<StreamHandle>(stream);
  if (core::checks_caches()) check_arrays(p, handle);
  if (p.num_sequences == 0 || p.num_heads_q == 0 || p.max_seqlen_q == 0) return;
  const LoadedVariant& kernel =
      kernels->get(device, variant, [&](const Arch& arch) { return decode_spec(variant, arch.target); });

  const DecodeTile tile = variant.tile();
  const int blocks = std::clamp(device.num_multiprocessors, 1, kMostDecodeBlocks);
  const int stack_nodes = std::max(1, decode_stack_nodes(tree_levels(p.capacity)) - variant.stack_nodes);
  const auto per_block = [&](int nodes, int bytes) {
    return static_cast<std::size_t>(blocks) * static_cast<std::size_t>(nodes) * static_cast<std::size_t>(bytes);
  };
  const DecodeStorage storage =
      decode_storage(kDecodeHeaderBytes + per_block(kDecodeNodesOfBlock, decode_node_bytes(tile)),
                     per_block(stack_nodes, decode_stack_bytes(tile)), handle);
  DecodeArgs args = args_of(p, added);
  args.storage = storage.nodes;
  args.stack = storage.stack;
  args.stack_nodes = static_cast<uint32>(stack_nodes);
  kernel.launch({.x = static_cast<unsigned>(blocks)}, &args, handle);
}

}  // namespace attend::cuda
