// attend::decode: checks the arguments, chooses a backend, runs it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "attend/serving.hpp"
#include "core/decode_problem.hpp"
#include "core/lack.hpp"
#include "cpu/serving/decode_backends.hpp"
#include "cuda/driver/nvtx.hpp"

namespace attend {
namespace {

/// A way to decode. All of them compute on a CPU so far.
struct DecodeBackend {
  const char* name;
  void (*run)(const core::DecodeProblem&);
  core::DTypes dtypes;  ///< of q, that it may take
};

constexpr core::DTypes kFloats = {core::dtype_bit(DType::kF32) | core::dtype_bit(DType::kF16) |
                                  core::dtype_bit(DType::kBF16)};
constexpr std::array<DecodeBackend, 2> kBackends = {{
    {"cpu", cpu::decode, kFloats},
    {"reference", cpu::decode_reference, {kFloats.bits | core::dtype_bit(DType::kF64)}},
}};

[[noreturn]] void refuse_compute(std::string_view compute) {
  std::vector<std::string_view> names = {"auto"};
  for (const DecodeBackend& backend : kBackends) names.emplace_back(backend.name);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("compute: '{}', decode allows {}", compute, fmt::join(names, ", ")));
}

const DecodeBackend& choose(std::string_view compute, const core::DecodeProblem& p) {
  if (p.q.device.type != DeviceType::kCPU) {
    throw Error(ErrorCode::kUnsupported, fmt::format("q: on cuda {}, decode allows cpu", p.q.device.index));
  }
  const bool is_auto = compute == "auto";
  for (const DecodeBackend& backend : kBackends) {
    if (is_auto ? backend.dtypes.has(p.q.dtype) : compute == backend.name) {
      if (backend.dtypes.has(p.q.dtype)) return backend;
      throw Error(ErrorCode::kUnsupported, fmt::format("q: dtype {}, allowed with compute '{}': f32, f16, bf16",
                                                       dtype_name(p.q.dtype), backend.name));
    }
  }
  refuse_compute(compute);
}

}  // namespace

void decode(const DecodeCall& call) {
  const cuda::NvtxRange range([&] {
    return fmt::format("attend::decode ({}) {}, cache ({})", fmt::join(call.q.shape, ", "), dtype_name(call.q.dtype),
                       fmt::join(call.k_cache.shape, ", "));
  });
  const core::DecodeProblem problem = core::make_decode_problem(call);
  choose(call.params.compute, problem).run(problem);
}

}  // namespace attend
