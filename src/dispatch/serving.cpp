// attend::decode: checks the arguments, chooses a backend, runs it, after an append where there is one.
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
#include "cuda/driver/nvtx.hpp"
#include "dispatch/serving.hpp"

namespace attend {
namespace {

/// A way to decode. All of them compute on a CPU so far.
struct DecodeBackend {
  const char* name;
  void (*run)(const core::DecodeProblem&);
  core::DTypes dtypes;  ///< of q, that it may take
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
  require_cpu("decode", "q", p.q);
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

/// The lengths of the sequences once the new rows are there. Dead ones stay dead.
std::vector<std::int32_t> lengths_after(const core::AppendProblem& append) {
  std::vector<std::int32_t> lengths(append.cache.seqlens_k, append.cache.seqlens_k + append.num_sequences());
  for (std::int64_t s = 0; s < append.num_sequences(); ++s) {
    if (lengths[s] < 0) continue;
    lengths[s] = static_cast<std::int32_t>(std::min(lengths[s] + append.new_rows.length(s), append.capacity));
  }
  return lengths;
}

}  // namespace

void require_cpu(const char* call, const char* name, const Tensor& t) {
  if (t.device.type == DeviceType::kCPU) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("{}: on cuda {}, {} allows cpu", name, t.device.index, call));
}

void decode(const DecodeCall& call) {
  const cuda::NvtxRange range([&] {
    return fmt::format("attend::decode ({}) {}, cache ({})", fmt::join(call.q.shape, ", "), dtype_name(call.q.dtype),
                       fmt::join(call.k_cache.shape, ", "));
  });
  const core::DecodeProblem problem = core::make_decode_problem(call);
  choose(call.params.compute, problem).run(problem);
}

void decode(const AppendCall& append, const DecodeCall& call) {
  const cuda::NvtxRange range([&] {
    return fmt::format("attend::decode ({}) {} after append ({}), cache ({})", fmt::join(call.q.shape, ", "),
                       dtype_name(call.q.dtype), fmt::join(append.k.shape, ", "), fmt::join(call.k_cache.shape, ", "));
  });
  core::AppendProblem writes = core::make_append_problem(append, &call);
  require_cpu("append", "k", writes.k);
  DecodeCall counted = call;
  std::vector<std::int32_t> lengths;
  if (call.cache.seqlens_k != nullptr) {
    lengths = lengths_after(writes);
    counted.cache.seqlens_k = lengths.data();
  }
  core::DecodeProblem reads = core::make_decode_problem(counted);
  core::check_outputs_apart(reads, writes);
  const DecodeBackend& backend = choose(call.params.compute, reads);
  std::vector<std::byte> q;  // normalised and rotated
  if (writes.q_out) {
    q.resize(static_cast<std::size_t>(writes.q_out->numel() * dtype_bytes(writes.q_out->dtype)));
    writes.q_out->data = q.data();
    reads.q = *writes.q_out;
  }
  cpu::append(writes);
  backend.run(reads);
}

}  // namespace attend
