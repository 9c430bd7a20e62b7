#include "cuda/launch/facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "attend/error.hpp"
#include "core/dtype_traits.hpp"
#include "core/score_options.hpp"
#include "cuda/launch/config_enums.hpp"

namespace attend::cuda {
namespace {

using core::Lack;
using core::Problem;

constexpr int kWideLoad = 16;         // bytes
constexpr double kLargestCap = 1e18;  // largest tanh cap at which score / cap does not underflow for usual scores

/// Returns whether kernels can read and write tensors of options with this element type. row_logit() and
/// row_logit_gradient() compile for any type, but silently ignore a type that is not in their switch statements.
/// Therefore a new type must be added both there and here.
constexpr bool is_of_options(ElementType element) {
  switch (element) {
    case ElementType::kF32:
    case ElementType::kF16:
    case ElementType::kBF16:
      return true;
  }
  return false;
}

constexpr core::DTypes kDTypesOfOptions = [] {
  core::DTypes all;
  for (const DType dtype : core::kDTypes) {
    const std::optional<ElementType> element = core::dtype_traits(dtype).element;
    if (element && is_of_options(*element)) all.bits |= core::dtype_bit(dtype);
  }
  return all;
}();

/// Returns the text of a numeric member of the problem.
template <auto kMember>
std::string number(const Problem& p) {
  return fmt::format("{}", p.*kMember);
}

/// Returns whether an optional member of the problem has a value.
template <auto kMember>
bool has(const Problem& p) {
  return static_cast<bool>(p.*kMember);
}

template <auto kMember>
bool is_not_zero(const Problem& p) {
  return p.*kMember != 0;
}

/// Returns the row of the options table for a number that modifies scores.
template <std::size_t kIndex>
constexpr Option number_row() {
  constexpr const core::ScoreNumber& kRow = core::kScoreNumbers[kIndex];
  return {option::bit_of(kRow.mod), kRow.name, kRow.constant, is_not_zero<kRow.value>, number<kRow.value>, "0"};
}

/// Returns the row of the options table for a tensor that modifies scores.
template <std::size_t kIndex>
constexpr Option tensor_row() {
  constexpr const core::ScoreTensor& kRow = core::kScoreTensors[kIndex];
  return {option::bit_of(kRow.mod), kRow.name, kRow.constant, has<kRow.tensor>};
}

std::string head_dim_of_q(const Problem& p) {
  return fmt::format("{}, that of q", p.head_dim);
}
std::string dtype_of_q(const Problem& p) {
  return fmt::format("{}, the dtype of q", dtype_name(p.q.dtype));
}

MaskKind mask_kind(const Problem& p) {
  const auto [left, right] = p.own_window();
  if (left < 0 && right < 0) return MaskKind::kFull;
  return left < 0 && right == 0 ? MaskKind::kCausal : MaskKind::kWindow;
}

/// Returns the options that the kernels of a backward pass can ignore, because the lse of the forward pass already
/// includes their effect. These options do not change the loop over key tiles, and their gradient is not requested.
std::int32_t options_in_lse(const Problem& p) {
  std::int32_t bits = option::bits_outside_loop();
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    if (row.gradient != nullptr && p.*row.gradient_tensor) bits &= ~option::bit_of(row.mod);
  }
  return bits;
}

/// Returns whether each row sees at most one key and dropout is active in a 16-bit backward pass. Then dropout would
/// amplify the rounding error of the 16-bit o, so the kernels need a special method (sole_key.cuh).
bool has_sole_keys(const Problem& p) {
  if (!p.is_backward || p.dropout_p <= 0 || !core::is_narrow(p.q.dtype)) return false;
  if (p.placement() != nullptr) return false;
  // A sink adds to the row sum, so with a sink the row sum does not depend on the key alone.
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    if (p.*row.tensor && (option::bit_of(row.mod) & option::bits_outside_loop()) != 0) return false;
  }
  return p.max_seqlen_k <= 1 || (p.window_left == 0 && p.window_right == 0);
}

/// Returns whether `t` is an output to which a step of ring attention adds.
bool is_sum(const Problem& p, const Tensor* t) {
  return p.is_backward ? t == &p.dq || t == &p.dk || t == &p.dv : t == &p.o;
}

bool is_aligned(const Tensor& t, int bytes) {
  const auto multiple = [bytes](std::int64_t value) { return value % bytes == 0; };
  const std::int64_t size = dtype_bytes(t.dtype);
  if (!multiple(reinterpret_cast<std::intptr_t>(t.data)) || !multiple(t.shape[3] * size)) return false;
  for (std::size_t dim = 0; dim < 3; ++dim) {
    if (t.shape[dim] > 1 && !multiple(t.stride[dim] * size)) return false;
  }
  return true;
}

template <std::size_t... kNumber, std::size_t... kTensor>
constexpr auto make_options(std::index_sequence<kNumber...> /*numbers*/, std::index_sequence<kTensor...> /*tensors*/) {
  return std::to_array<Option>({
      {option::kDeterministic, "deterministic", nullptr,
       [](const Problem& p) { return p.is_backward && p.deterministic; }, "true", "false"},
      number_row<kNumber>()...,
      {option::kHugeTransform, core::name_of(&ScoreModTraits::transforms), "kHasHugeTransform",
       [](const Problem& p) { return p.transform_cap > kLargestCap; }, number<&Problem::transform_cap>, "at most 1e18"},
      {option::kPhiloxState, "philox_state", "kHasPhiloxState", has<&Problem::philox_state>},
      {option::kWindow, "window_left", nullptr, [](const Problem& p) { return p.window_left >= 0; },
       number<&Problem::window_left>, "-1"},
      {option::kWindow, "window_right", nullptr, [](const Problem& p) { return p.window_right > 0; },
       number<&Problem::window_right>, "-1, or causal"},
      tensor_row<kTensor>()...,
      {option::kVarlen, "varlen", "kIsVarlen", has<&Problem::varlen>},
      {option::kPart, "alibi_slopes or dropout_p", "kIsPart",
       [](const Problem& p) { return p.placement() != nullptr && (p.alibi_slopes || p.dropout_p > 0); }, "in a ring",
       "one device"},
      {option::kCustomScore, "score function", "kHasCustomScore", has<&Problem::custom_score>},
      {option::kCapturedGradients, "captures", "kHasCapturedGradients",
       // If the score does not depend on a capture, the gradient of the capture is zero and needs no kernel.
       [](const Problem& p) {
         return !p.captured_gradients.empty() && (p.custom_score == nullptr || !p.custom_score->gradients.empty());
       }},
      {option::kBlockMask, "block_mask", "kHasBlockMask", has<&Problem::block_mask>},
      {option::kAddsToOutputs, "call", "kAddsToOutputs", [](const Problem& p) { return p.adds_to_outputs(); },
       "part of a ring", "one device"},
  });
}

}  // namespace

std::span<const Option> options() {
  static constexpr auto kTable = make_options(std::make_index_sequence<core::kScoreNumbers.size()>(),
                                              std::make_index_sequence<core::kScoreTensors.size()>());
  return kTable;
}

ScoreModTraits Facts::score() const {
  ScoreModTraits traits = traits_of_bits(custom_traits);
  for (int mod = 0; mod < kScoreMods; ++mod) {
    if (has(option::bit_of(static_cast<ScoreMod>(mod)))) traits = traits | traits_of(static_cast<ScoreMod>(mod));
  }
  return traits;
}

Facts facts_of(const Problem& p, bool folds_scale) {
  // Kernels for 8-bit floats depend on the type of o, because all their inputs have one type.
  Facts facts = {.element = element_of(core::is_float(p.q.dtype) ? p.q.dtype : p.o.dtype),
                 .head_dim = static_cast<std::int32_t>(p.head_dim),
                 .head_dim_v = static_cast<std::int32_t>(p.head_dim_v),
                 .mask = mask_kind(p),
                 .bias = p.bias ? element_of(p.bias->dtype) : ElementType::kF32,
                 .is_backward = p.is_backward ? 1 : 0,
                 .negate_scores = folds_scale && p.scale < 0 ? 1 : 0,
                 .aligned = is_aligned(p, kWideLoad) ? 1 : 0,
                 .sole_key = has_sole_keys(p) ? 1 : 0};
  for (const Option& o : options()) {
    if (o.constant != nullptr && o.is_on(p)) facts.options |= o.bit;
  }
  if (p.is_backward) facts.options &= ~options_in_lse(p);
  if (p.custom_score != nullptr) {
    std::copy(p.custom_score->digest.begin(), p.custom_score->digest.end(), facts.custom_score);
    // 2^21 minus a margin, because tiles may extend past the end of a sequence.
    constexpr std::int64_t kLong = (std::int64_t{1} << 21) - 4096;
    const std::int64_t most = std::max({p.max_seqlen_q, p.max_seqlen_k, p.num_sequences, p.num_heads_q});
    facts.custom_is_long = most >= kLong ? 1 : 0;
    facts.custom_may_be_huge = p.custom_score->may_be_huge ? 1 : 0;
    facts.custom_traits = bits_of(custom_tile_traits(p.is_backward && p.custom_score->traits.transforms));
  }
  return facts;
}

std::vector<Constant> constants_of(const Facts& facts, std::int32_t taken, std::initializer_list<Constant> more) {
  std::vector<Constant> constants = {{"kHeadDim", facts.head_dim},
                                     {"kHeadDimV", facts.head_dim_v},
                                     {"kElement", enum_constant(facts.element)},
                                     {"kMask", enum_constant(facts.mask)},
                                     {"kNegateScores", facts.negate_scores != 0},
                                     {"kAligned", facts.aligned != 0}};
  // A kernel that supports at least one score modification reads the constants of all modifications (Score<Config>).
  const std::int32_t wanted =
      (taken & option::kEveryMod) != 0 ? taken | option::kEveryMod | option::kCustomScore : taken;
  // In a backward pass, some options do not change the loop over key tiles. Only the separate kernel that computes
  // their gradients needs these options. For all other kernels, lse already includes their effect.
  const std::int32_t known = facts.is_backward != 0 ? facts.loop_options() : facts.options;
  for (const Option& o : options()) {
    if (o.constant != nullptr && (o.bit & wanted) != 0) constants.push_back({o.constant, (known & o.bit) != 0});
  }
  if ((taken & option::kBias) != 0) constants.push_back({"kBiasElement", enum_constant(facts.bias)});
  if ((taken & option::kBlockMap) != 0) constants.push_back({"kHasBlockMap", facts.has(option::kBlockMask)});
  if (facts.has(option::kCustomScore)) constants.push_back({"kHasLongSequences", facts.custom_is_long != 0});
  constants.insert(constants.end(), more);
  return constants;
}

ElementType element_of(DType dtype) {
  if (const std::optional<ElementType> element = core::dtype_traits(dtype).element) return *element;
  throw Error(ErrorCode::kInternal, fmt::format("dtype {}: no kernel supports it", dtype_name(dtype)));
}

bool is_aligned(const Problem& p, int bytes) {
  const core::NamedTensors all(p);
  return std::all_of(all.begin(), all.end(),
                     [bytes](const core::NamedTensor& t) { return is_aligned(*t.tensor, bytes); });
}

std::optional<Lack> option_lack(const Problem& p, std::int32_t taken) {
  for (const Option& o : options()) {
    if ((o.bit & taken) == 0 && o.is_on(p)) return Lack{nullptr, o.argument, o.value, o.allowed};
  }
  const auto is_known = [](const std::optional<Tensor>& t) { return !t || kDTypesOfOptions.has(t->dtype); };
  // The following tensors may have any float dtype. This includes dtypes that no kernel supports, which must be refused
  // here.
  for (const core::ScoreTensor& row : core::kScoreTensors) {
    if (row.dtype) continue;
    const std::optional<Tensor>& tensor = p.*row.tensor;
    if (!is_known(tensor)) return Lack{row.name, "dtype", dtype_name(tensor->dtype), kDTypesOfOptions};
    if (row.gradient == nullptr) continue;
    const std::optional<Tensor>& gradient = p.*row.gradient_tensor;
    if (!is_known(gradient)) return Lack{row.gradient, "dtype", dtype_name(gradient->dtype), kDTypesOfOptions};
  }
  return std::nullopt;
}

std::optional<Lack> custom_score_lack(const Problem& p, std::int32_t others) {
  if (p.custom_score == nullptr) return std::nullopt;
  for (const Option& o : options()) {
    if ((o.bit & others) != 0 && o.is_on(p)) return Lack{nullptr, o.argument, o.value, "none with a score function"};
  }
  return std::nullopt;
}

std::optional<Lack> part_lack(const Problem& p) {
  const core::Placement* at = p.placement();
  if (at == nullptr) return std::nullopt;
  // Dropout computes random numbers in blocks that cover this number of keys.
  constexpr std::int64_t kKeysOfBlock = 4;
  if (p.dropout_p > 0 && (at->step != 1 || at->key_begin % kKeysOfBlock != 0)) {
    return Lack{nullptr, "dropout_p", number<&Problem::dropout_p>, "0 unless a part's keys come in blocks of four"};
  }
  // With ALiBi, these kernels use the window of this ring step to decide whether a row can see keys after its diagonal.
  if (p.alibi_slopes && p.window_right > 0) {
    return Lack{nullptr, "window_right with alibi_slopes", number<&Problem::window_right>, "0 or -1 in a ring"};
  }
  return std::nullopt;
}

std::optional<Lack> dtype_lack(const Problem& p, core::DTypes dtypes) {
  if (!dtypes.has(p.q.dtype)) return Lack{"q", "dtype", dtype_name(p.q.dtype), dtypes};
  for (const auto& [name, tensor] : core::NamedTensors(p)) {
    if (p.adds_to_outputs() && is_sum(p, tensor)) continue;
    if (!core::is_float(p.q.dtype) && tensor == &p.o) continue;  // o of 8-bit inputs has a wider type
    if (tensor->dtype != p.q.dtype) return Lack{name, "dtype", dtype_name(tensor->dtype), dtype_of_q};
  }
  return std::nullopt;
}

std::optional<Lack> head_dim_lack(const Problem& p, std::span<const int> dims, int most, bool any_head_dim_v) {
  for (const auto& [name, dim] : {std::pair{"q", p.head_dim}, {"v", p.head_dim_v}}) {
    if (dims.empty() ? dim <= most : std::find(dims.begin(), dims.end(), dim) != dims.end()) continue;
    if (dims.empty()) return Lack{name, "head_dim", dim, core::Range{1, most}};
    return Lack{name, "head_dim", dim, dims};
  }
  if (!any_head_dim_v && p.head_dim_v != p.head_dim) return Lack{"v", "head_dim", p.head_dim_v, head_dim_of_q};
  return std::nullopt;
}

std::optional<Lack> length_lack(const Problem& p, std::int64_t most) {
  for (const auto& [name, length] :
       {std::pair{"q", std::max(p.max_seqlen_q, p.q.shape[2])}, {"k", std::max(p.max_seqlen_k, p.k.shape[2])}}) {
    if (length > most) return Lack{name, "seqlen", length, core::Range{0, most}};
  }
  return std::nullopt;
}

std::optional<Lack> alignment_lack(const Problem& p) {
  for (const auto& [name, tensor] : core::NamedTensors(p)) {
    if (!is_aligned(*tensor, kWideLoad)) return Lack{name, "address", tensor, "multiples of 16 bytes"};
  }
  return std::nullopt;
}

}  // namespace attend::cuda
