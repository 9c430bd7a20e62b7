// Implements attend::decode. It checks the arguments and chooses a backend. It runs the append, if there is one, and
// then decode.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attend/serving.hpp"
#include "core/append_checks.hpp"
#include "core/decode_problem.hpp"
#include "core/dtype_traits.hpp"
#include "core/lack.hpp"
#include "cpu/serving/decode_backends.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/nvtx.hpp"
#include "cuda/serving/append.hpp"
#include "cuda/serving/decode.hpp"
#include "cuda/serving/decode_storage.hpp"
#include "cuda/serving/device_of.hpp"

namespace attend {
namespace {

/// A CPU backend that computes decode.
struct DecodeBackend {
  const char* name;
  void (*run)(const core::DecodeProblem&);
  core::DTypes dtypes;  ///< dtypes of q that it supports
};

constexpr core::DTypes kFloats = [] {
  core::DTypes all;
  for (const DType dtype : core::kDTypes) {
    if (core::has_simd_loops(dtype)) all.bits |= core::dtype_bit(dtype);
  }
  return all;
}();
constexpr std::array<DecodeBackend, 2> kBackends = {{
    {"cpu", cpu::decode, kFloats},
    {"reference", cpu::decode_reference, {kFloats.bits | core::dtype_bit(DType::kF64)}},
}};

[[noreturn]] void refuse_dtype(std::string_view compute, const core::DecodeProblem& p, core::DTypes allowed) {
  std::vector<const char*> names;
  for (const DType dtype : core::kDTypes) {
    if (allowed.has(dtype)) names.push_back(dtype_name(dtype));
  }
  throw Error(ErrorCode::kUnsupported, fmt::format("q: dtype {}, allowed with compute '{}': {}", dtype_name(p.q.dtype),
                                                   compute, fmt::join(names, ", ")));
}

[[noreturn]] void refuse_compute(std::string_view compute) {
  std::vector<std::string_view> names = {"auto"};
  for (const DecodeBackend& backend : kBackends) names.emplace_back(backend.name);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("compute: '{}', decode allows {}", compute, fmt::join(names, ", ")));
}

const DecodeBackend& choose(std::string_view compute, const core::DecodeProblem& p) {
  const bool is_auto = compute == "auto";
  for (const DecodeBackend& backend : kBackends) {
    if (is_auto ? backend.dtypes.has(p.q.dtype) : compute == backend.name) {
      if (backend.dtypes.has(p.q.dtype)) return backend;
      refuse_dtype(compute, p, backend.dtypes);
    }
  }
  if (is_auto) refuse_dtype(compute, p, kBackends.back().dtypes);
  refuse_compute(compute);
}

/// Returns the lengths of the sequences after the append. Dead sequences remain dead.
std::vector<std::int32_t> lengths_after(const core::AppendProblem& append) {
  std::vector<std::int32_t> lengths(append.cache.seqlens_k, append.cache.seqlens_k + append.num_sequences());
  for (std::int64_t s = 0; s < append.num_sequences(); ++s) {
    if (lengths[s] < 0) continue;
    lengths[s] = static_cast<std::int32_t>(std::min(lengths[s] + append.new_rows.length(s), append.capacity));
  }
  return lengths;
}

/// Converts the caller's `compute` to the GPU setting that selects the kernel for sequences with many rows.
cuda::LongRows long_rows_by(std::string_view compute) {
  if (compute == "auto") return cuda::LongRows::kFaster;
  if (compute == "decode") return cuda::LongRows::kDecode;
  if (compute == "sm90_forward") return cuda::LongRows::kSm90Forward;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("compute: '{}', decode of tensors on CUDA allows auto, decode, sm90_forward", compute));
}

/// The checked calls of an append and of the decode that follows it.
struct AppendedDecode {
  core::AppendProblem writes;
  core::DecodeProblem reads;

  /// If append normalises or rotates query rows, connects the two calls: append writes the query rows to `memory`, and
  /// decode reads them from there.
  void take_queries(void* memory) {
    if (!writes.q_out) return;
    writes.q_out->data = memory;
    reads.q = *writes.q_out;
  }
  [[nodiscard]] std::size_t query_bytes() const {
    if (!writes.q_out) return 0;
    return static_cast<std::size_t>(writes.q_out->numel() * dtype_bytes(writes.q_out->dtype));
  }
};

void run_on_cpu(AppendedDecode& calls, std::string_view compute) {
  const DecodeBackend& backend = choose(compute, calls.reads);
  std::vector<std::byte> q(calls.query_bytes());
  calls.take_queries(q.data());
  cpu::append(calls.writes);
  backend.run(calls.reads);
}

void run_on_gpu(AppendedDecode& calls, std::string_view compute, Stream stream) {
  const cuda::LongRows long_rows = long_rows_by(compute);
  const cuda::ContextGuard guard(cuda::device_of("q", calls.reads.q).index);
  const cuda::QueryStorage q = cuda::query_storage(calls.query_bytes(), static_cast<cuda::StreamHandle>(stream));
  calls.take_queries(q.rows);
  cuda::require_decode(calls.reads, long_rows, stream);
  cuda::append(calls.writes, stream);
  const core::SequenceRows& rows = calls.writes.new_rows;
  cuda::decode(calls.reads, {.offsets = rows.offsets, .each = rows.seqlen}, long_rows, stream);
}

}  // namespace

void decode(const DecodeCall& call) {
  const cuda::NvtxRange range([&] {
    return fmt::format("attend::decode ({}) {}, cache ({})", fmt::join(call.q.shape, ", "), dtype_name(call.q.dtype),
                       fmt::join(call.k_cache.shape, ", "));
  });
  const core::DecodeProblem problem = core::make_decode_problem(call);
  if (problem.q.device.type == DeviceType::kCUDA) {
    return cuda::decode(problem, {}, long_rows_by(call.params.compute), call.stream);
  }
  choose(call.params.compute, problem).run(problem);
}

void decode(const AppendCall& append, const DecodeCall& call) {
  const cuda::NvtxRange range([&] {
    return fmt::format("attend::decode ({}) {} after append ({}), cache ({})", fmt::join(call.q.shape, ", "),
                       dtype_name(call.q.dtype), fmt::join(append.k.shape, ", "), fmt::join(call.k_cache.shape, ", "));
  });
  AppendedDecode calls = {core::make_append_problem(append, &call), {}};
  const bool on_gpu = calls.writes.k.device.type == DeviceType::kCUDA;
  DecodeCall counted = call;
  // Used only on a CPU, because on a GPU the kernels add the new rows to the lengths.
  std::vector<std::int32_t> lengths;
  if (!on_gpu && call.cache.seqlens_k != nullptr) {
    lengths = lengths_after(calls.writes);
    counted.cache.seqlens_k = lengths.data();
  }
  calls.reads = core::make_decode_problem(counted);
  core::check_outputs_apart(calls.reads, calls.writes);
  if (on_gpu) {
    run_on_gpu(calls, call.params.compute, call.stream);
  } else {
    run_on_cpu(calls, call.params.compute);
  }
}

}  // namespace attend
