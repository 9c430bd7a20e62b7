#include "core/merge_problem.hpp"

#include <fmt/format.h>

#include <string>

#include "core/dtype_traits.hpp"
#include "core/problem_checks.hpp"
#include "core/score_options.hpp"

namespace attend::core {
namespace {

constexpr const char* kOwner = "o";  // the argument whose device is the device of the call

void check_rows(const char* name, const Tensor& t, Device device) {
  if (!has_simd_loops(t.dtype)) {
    refuse("{}: dtype {}, allowed f32, f16, bf16", name, dtype_name(t.dtype));
  }
  check_tensor(name, t, device, kOwner);
}

void check_lse(const char* name, const Tensor& lse, const Tensor& o) {
  if (lse.dtype != DType::kF32) refuse("{}: dtype {}, allowed f32", name, dtype_name(lse.dtype));
  check_tensor(name, lse, o.device, kOwner);
  check_shape(name, lse, {o.shape[0], o.shape[1], o.shape[2], 1}, "(batch, num_heads_q and seqlen_q of o, 1)");
}

/// Checks that `out` overlaps no input, with one exception: `out` may be the same view as the input `own`. Each element
/// of `own` is then replaced by the result.
void check_output(const NamedTensor& out, const NamedTensor& own, const NamedTensor& other) {
  if (!is_same_view(*out.tensor, *own.tensor) && may_share_bytes(*out.tensor, *own.tensor)) {
    refuse("{}: shares memory with {}, allowed a separate buffer, or exactly that one", out.name, own.name);
  }
  if (may_share_bytes(*out.tensor, *other.tensor)) {
    refuse("{}: shares memory with {}, allowed a separate buffer", out.name, other.name);
  }
}

void check_state(const MergeProblem& p, std::size_t n) {
  const Tensor o = input_view(p.states[n].o), lse = input_view(p.states[n].lse);
  const std::string o_name = fmt::format("states[{}].o", n), lse_name = fmt::format("states[{}].lse", n);
  check_rows(o_name.c_str(), o, p.o.device);
  check_shape(o_name.c_str(), o, p.o.shape, "the shape of o");
  check_lse(lse_name.c_str(), lse, p.o);
  const NamedTensor state_o = {o_name.c_str(), &o}, state_lse = {lse_name.c_str(), &lse};
  check_output({"o", &p.o}, state_o, state_lse);
  if (p.lse) check_output({"lse", &*p.lse}, state_lse, state_o);
}

}  // namespace

MergeProblem make_merge_problem(std::span<const PartialState> states, const Tensor& o, const Tensor* lse,
                                const MergeParams& params) {
  MergeProblem p = {.states = states, .o = o, .lse_base2 = params.lse_base2};
  check_rows("o", o, o.device);
  check_head_dim("o", o, kMaxHeadDim);
  check_output_strides("o", o);
  if (lse != nullptr) {
    p.lse = *lse;
    check_lse("lse", *lse, o);
    check_output_strides("lse", *lse);
    if (may_share_bytes(o, *lse)) refuse("lse: shares memory with o, allowed a separate buffer");
  }
  if (states.empty()) refuse("states: 0, allowed at least 1");
  for (std::size_t n = 0; n < states.size(); ++n) check_state(p, n);
  if (!params.sinks) return p;
  const Tensor sinks = input_view(*params.sinks);
  p.sinks = resolved(tensor_row(ScoreMod::kSinks), sinks,
                     {.device = o.device, .scores = {}, .heads = {o.shape[0], o.shape[1], 1, 1}});
  for (const NamedTensor& out : {NamedTensor{"o", &p.o}, {"lse", p.lse ? &*p.lse : nullptr}}) {
    if (out.tensor != nullptr && may_share_bytes(*out.tensor, sinks)) {
      refuse("{}: shares memory with sinks, allowed a separate buffer", out.name);
    }
  }
  return p;
}

}  // namespace attend::core
