// Implements attend::forward, attend::backward and attend::plan. They check the arguments, choose a backend, and run
// it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "attend/attention.hpp"
#include "core/problem.hpp"
#include "cuda/driver/nvtx.hpp"
#include "dispatch/dispatch.hpp"

namespace attend {
namespace {

/// Returns a text such as "attend::forward (2, 16, 8192, 128) bf16, 8192 keys, auto".
std::string range_name(const char* call, const ConstTensor& q, const ConstTensor& k, std::string_view compute) {
  return fmt::format("attend::{} ({}) {}, {} keys, {}", call, fmt::join(q.shape, ", "), dtype_name(q.dtype), k.shape[2],
                     compute);
}

}  // namespace

void forward(const ForwardCall& call) {
  const cuda::NvtxRange range([&] { return range_name("forward", call.q, call.k, call.params.compute); });
  const core::Problem problem = core::make_problem(call);
  dispatch::choose(call.params.compute, problem).forward(problem, call.stream);
}

void backward(const BackwardCall& call) {
  const cuda::NvtxRange range([&] { return range_name("backward", call.q, call.k, call.params.compute); });
  const core::Problem problem = core::make_problem(call);
  dispatch::choose(call.params.compute, problem).backward(problem, call.stream);
}

struct Plan::State {
  core::Problem problem;
  Stream stream;
  const std::uint64_t* philox_state;       ///< as the caller passed it
  std::optional<ScoreFunction> score;      ///< stored here because the problem points into it
  std::optional<BlockMask> block_mask;     ///< stored here because the problem points into it
  const core::Backend* backend = nullptr;  ///< null if no backend can run the call; `refusal` then has the reason
  std::optional<Error> refusal = {};

  template <class Call>
  explicit State(const Call& call)
      : problem(core::make_problem(call)), stream(call.stream), philox_state(call.params.philox_state) {
    if (call.params.score != nullptr) score = *call.params.score;
    if (call.params.block_mask != nullptr) block_mask = *call.params.block_mask;
    try {
      backend = &dispatch::choose(call.params.compute, problem);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      refusal = error;
    }
  }

  /// Returns the backend of the call. @throws the refusal if there is none.
  [[nodiscard]] const core::Backend& chosen() const {
    if (refusal) throw Error(*refusal);
    return *backend;
  }

  void run(const core::Problem& p) const {
    const core::Backend& to_run = chosen();
    const cuda::NvtxRange range(
        [&] { return range_name(p.is_backward ? "backward" : "forward", p.q, p.k, to_run.name); });
    (p.is_backward ? to_run.backward : to_run.forward)(p, stream);
  }
};

Plan::Plan(std::shared_ptr<const State> state) noexcept : state_(std::move(state)) {}

Plan plan(const ForwardCall& call) {
  return Plan(std::make_shared<const Plan::State>(call));
}

Plan plan(const BackwardCall& call) {
  return Plan(std::make_shared<const Plan::State>(call));
}

std::string_view Plan::compute() const {
  return state_->chosen().name;
}

std::vector<Candidate> Plan::explanation() const {
  return dispatch::explain(state_->backend, state_->problem);
}

std::size_t Plan::workspace_bytes() const {
  const core::Backend& backend = state_->chosen();
  return backend.workspace_bytes ? backend.workspace_bytes(state_->problem) : 0;
}

void Plan::prepare() const {
  const core::Backend& backend = state_->chosen();
  if (backend.prepare) backend.prepare(state_->problem);
}

void Plan::run() const {
  run(state_->problem.workspace);
}

void Plan::run(const WorkspaceView& workspace) const {
  core::Problem problem = state_->problem;
  problem.workspace = workspace;
  core::read_again(problem, state_->philox_state);
  state_->run(problem);
}

}  // namespace attend
