#include "baseline/scaled_softmax.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "attend/error.hpp"
#include "cuda/driver/kernel.hpp"
#include "cuda/jit/jit.hpp"
#include "cuda/launch/config_enums.hpp"
#include "cuda/launch/facts.hpp"
#include "kernels/baseline/scaled_softmax_args.cuh"

namespace attend::cuda {
namespace {

constexpr std::uintptr_t kAlignment = 16;  // in bytes

void check(const ScaledSoftmax& call) {
  const auto refuse = [](const std::string& text) { throw Error(ErrorCode::kUnsupported, "scaled_softmax: " + text); };
  if (call.dtype != DType::kF16 && call.dtype != DType::kBF16) {
    refuse(fmt::format("{}, allowed f16, bf16", dtype_name(call.dtype)));
  }
  if (call.seqlen_k < kSoftmaxVector || call.seqlen_k > kMostSoftmaxRow || call.seqlen_k % kSoftmaxVector != 0) {
    refuse(fmt::format("seqlen_k {}, allowed multiples of {} to {}", call.seqlen_k, kSoftmaxVector, kMostSoftmaxRow));
  }
  for (const void* address : {call.in, call.p, static_cast<const void*>(call.out)}) {
    if (reinterpret_cast<std::uintptr_t>(address) % kAlignment != 0) {
      refuse(fmt::format("address {}, allowed multiples of {} bytes", address, kAlignment));
    }
  }
}

/// Returns the row length for which the kernel is compiled: seqlen_k rounded up to a power of two.
int padded(const ScaledSoftmax& call) {
  return std::max(static_cast<int>(std::bit_ceil(static_cast<unsigned>(call.seqlen_k))), kLeastSoftmaxRow);
}

}  // namespace

KernelSpec scaled_softmax_spec(const ScaledSoftmax& call, const Arch& arch) {
  check(call);
  const char* name = call.p == nullptr ? "scaled_softmax" : "scaled_softmax_backward";
  return {.name = name,
          .source = "baseline/scaled_softmax.cuh",
          .function = name,
          .args = "ScaledSoftmaxArgs",
          .config = {{"kElement", enum_constant(element_of(call.dtype))},
                     {"kSeqlenK", padded(call)},
                     {"kThreads", std::max(softmax_row_threads(padded(call)), kSoftmaxThreads)},
                     {"kCausal", call.causal}},
          .arch = arch.target};
}

void scaled_softmax(const ScaledSoftmax& call, int device, StreamHandle stream) {
  const KernelSpec spec = scaled_softmax_spec(call, device_info(device).arch());
  ScaledSoftmaxArgs args = {.in = call.in,
                            .p = call.p,
                            .out = call.out,
                            .rows = call.num_matrices * call.seqlen_q,
                            .seqlen_q = call.seqlen_q,
                            .seqlen_k = call.seqlen_k,
                            .scale = call.scale};
  if (args.rows == 0) return;
  const std::int64_t threads = threads_of(spec);
  const std::int64_t rows = threads / softmax_row_threads(padded(call));  // number of rows that a block computes
  const std::int64_t blocks = (args.rows + rows - 1) / rows;
  if (blocks > std::numeric_limits<std::int32_t>::max()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("scaled_softmax: {} blocks, allowed 2^31 - 1", blocks));
  }
  void* parameters[] = {&args};
  Jit::instance()
      .load(spec, device)
      ->launch({.grid = {static_cast<unsigned>(blocks)}, .block = {static_cast<unsigned>(threads)}}, parameters,
               stream);
}

}  // namespace attend::cuda
