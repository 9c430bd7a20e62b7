#include "core/score_options.hpp"

#include "core/problem_checks.hpp"

namespace attend::core {
namespace {

/// Shape (1 or full[d]) in every dimension below `exact_from`, full[d] from there on; the result has full shape.
Tensor broadcast(const char* name, const Tensor& t, const Shape& full, std::size_t exact_from) {
  Tensor expanded = t;
  for (std::size_t d = 0; d < 4; ++d) {
    const bool fits = t.shape[d] == full[d] || (d < exact_from && t.shape[d] == 1);
    if (!fits) {
      refuse("{}: shape {}, dimension {} must be {}{}", name, shape_text(t.shape), d, full[d],
             d < exact_from ? " or 1" : "");
    }
    if (t.shape[d] != full[d]) {
      expanded.shape[d] = full[d];
      expanded.stride[d] = 0;
    }
  }
  return expanded;
}

}  // namespace

Tensor resolved_alibi_slopes(const Problem& p, const Tensor& passed, const Shape& /*scores*/) {
  constexpr const char* kName = names_of(ScoreMod::kAlibi).name;
  check_tensor(kName, passed, p.q.device);
  if (passed.dtype != DType::kF32) refuse("{}: dtype {}, allowed f32", kName, dtype_name(passed.dtype));
  if (p.num_heads_q != 1 && passed.shape[1] == 1) {
    refuse("{}: shape {}, dimension 1 must be {}", kName, shape_text(passed.shape), p.num_heads_q);
  }
  return broadcast(kName, passed, {p.num_sequences, p.num_heads_q, 1, 1}, 1);
}

Tensor resolved_bias(const Problem& p, const Tensor& passed, const Shape& scores) {
  constexpr const char* kName = names_of(ScoreMod::kBias).name;
  check_float_tensor(kName, passed, p.q.device);
  return broadcast(kName, passed, scores, 3);
}

Tensor resolved_mask(const Problem& p, const Tensor& passed, const Shape& scores) {
  constexpr const char* kName = names_of(ScoreMod::kBoolMask).name;
  check_tensor(kName, passed, p.q.device);
  if (passed.dtype != DType::kBool) refuse("{}: dtype {}, allowed bool", kName, dtype_name(passed.dtype));
  return broadcast(kName, passed, scores, 3);
}

}  // namespace attend::core
