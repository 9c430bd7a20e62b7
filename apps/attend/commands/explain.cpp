// attend info --explain: reports for each backend whether it supports a problem, and which kernels and tiles it would
// use.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "commands/commands.hpp"
#include "cuda/driver/device.hpp"
#include "workload/executor.hpp"

namespace attend::cli {
namespace {

/// Makes tensors that have addresses but no memory. Their contents are never read.
class Addresses {
 public:
  explicit Addresses(Device device) : device_(device) {}

  Tensor tensor(DType dtype, const Shape& shape) {
    next_ += std::uintptr_t{1} << 44;                // distance between two tensors, larger than any tensor on a GPU
    return {.data = reinterpret_cast<void*>(next_),  // NOLINT(performance-no-int-to-ptr)
            .dtype = dtype,
            .device = device_,
            .shape = shape,
            .stride = contiguous_strides(shape)};
  }

 private:
  Device device_;
  std::uintptr_t next_ = 0;
};

std::vector<Candidate> candidates(const ExplainOptions& options, Mode pass, Device device) {
  const io::FolderSpec& spec = options.spec;
  Addresses memory(device);
  const auto make = [&](const Shape& shape) { return memory.tensor(spec.dtype, shape); };
  const Tensor q = make(spec.q_shape()), k = make(spec.k_shape()), v = make(spec.v_shape());
  const Tensor o = memory.tensor(io::output_dtype(spec.dtype), spec.o_shape());
  const Tensor lse = memory.tensor(io::lse_dtype(spec.dtype), spec.lse_shape());
  Params params = options.attention.params("auto");
  const Shape scores = {1, spec.num_heads, spec.seqlen_q, spec.seqlen_k};
  for (std::size_t i = 0; i < options.score_tensors.size(); ++i) {
    const core::ScoreTensor& row = core::kScoreTensors[i];
    if (!options.score_tensors[i]) continue;
    const Shape shape = row.is_of_scores() ? scores : Shape{1, spec.num_heads, 1, 1};
    params.*row.param = memory.tensor(row.dtype.value_or(spec.dtype), shape);
  }
  if (pass == Mode::kForward) {
    return plan(ForwardCall{.q = q, .k = k, .v = v, .o = o, .lse = lse, .params = params}).explanation();
  }
  BackwardCall call = {.q = q,
                       .k = k,
                       .v = v,
                       .o = o,
                       .lse = lse,
                       .dout = make(spec.o_shape()),
                       .dq = make(spec.q_shape()),
                       .dk = make(spec.k_shape()),
                       .dv = make(spec.v_shape()),
                       .params = params};
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    const auto& tensor = params.*row.param;
    if (tensor && row.gradient != nullptr) call.*row.passed_gradient = memory.tensor(tensor->dtype, tensor->shape);
  }
  return plan(call).explanation();
}

nlohmann::ordered_json to_json(const Candidate& c) {
  nlohmann::ordered_json object = {{"compute", c.compute}, {"chosen", c.chosen}};
  if (!c.lack.empty()) {
    object["lack"] = c.lack;
    return object;
  }
  object["why"] = c.why;
  object["variant"] = c.variant;
  object["steps"] = c.steps;
  if (std::isfinite(c.estimated_us)) object["estimated_us"] = c.estimated_us;
  object["workspace_bytes"] = c.workspace_bytes;
  return object;
}

void print(const Candidate& c) {
  const char* mark = c.chosen ? "*" : " ";
  if (!c.lack.empty()) {
    fmt::print("{} {:<18} no: {}\n", mark, c.compute, c.lack);
    return;
  }
  const bool compared = std::isfinite(c.estimated_us) && c.estimated_us > 0;
  fmt::print("{} {:<18} {}{}\n", mark, c.compute, compared ? fmt::format("about {:.0f} us: ", c.estimated_us) : "",
             c.why.empty() ? "can" : c.why);
  if (!c.chosen) return;
  if (!c.variant.empty()) fmt::print("    variant    {}\n", c.variant);
  for (const std::string& step : c.steps) fmt::print("    launches   {}\n", step);
  fmt::print("    workspace  {} bytes\n", c.workspace_bytes);
}

}  // namespace

int explain(const ExplainOptions& options) {
  const bool gpu = options.device ? *options.device == DeviceType::kCUDA : !cuda::unusable_gpu(0);
  if (gpu) {
    if (const auto missing = cuda::missing_gpu())
      throw Error(ErrorCode::kMissingHardware, "--device: 'cuda', but " + *missing);
  }
  const Device device = {gpu ? DeviceType::kCUDA : DeviceType::kCPU, 0};
  nlohmann::ordered_json passes = nlohmann::ordered_json::object();
  for (const Mode pass : {Mode::kForward, Mode::kBackward}) {
    if (pass == Mode::kBackward && options.spec.dtype == DType::kF8E4M3) continue;  // 8-bit inputs have no gradients
    const std::vector<Candidate> list = candidates(options, pass, device);
    if (options.json) {
      for (const Candidate& c : list) passes[mode_name(pass)].push_back(to_json(c));
      continue;
    }
    fmt::print("{} of {}{} on {}\n", mode_name(pass), io::folder_name(options.spec),
               options.attention.causal ? " causal" : "", device_name(device));
    for (const Candidate& c : list) print(c);
  }
  if (options.json) fmt::print("{}\n", passes.dump(2));
  return kExitDone;
}

}  // namespace attend::cli
