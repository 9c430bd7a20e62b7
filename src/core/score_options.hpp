// Table of the options that modify scores. Each row has the option's names in the API and its fields in a Problem.
//
// Code that handles every option uses these rows. Examples are the checks of Params, the keys of compiled kernels, the
// constants of kernels, and the flags and JSON of the command line. The comparison of arguments in a ring and the
// Python package use the rows too. kernels/attention/score_mods.cuh defines the effect of each option on a score.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>

#include "core/problem.hpp"
#include "kernels/attention/score_mods.cuh"

namespace attend::core {

/// An option that is a single number. The value 0 turns it off.
struct ScoreNumber {
  ScoreMod mod;
  const char* name;      ///< name in Params, error messages, on the command line, in JSON and in Python
  const char* constant;  ///< name of the bool in a kernel's Config that is true if the option is on
  double Params::*param;
  double Problem::*value;
  bool (*is_allowed)(double);
  const char* allowed;  ///< text about the allowed values for error messages
  double end;           ///< upper limit on the command line; the lower limit is 0
  bool excludes_end;    ///< true if the upper limit is not allowed
  const char* help;     ///< command-line help
};

/// Shape of an option tensor. Dimensions of size 1 are broadcast.
enum class ScoreTensorShape {
  /// One element for each row and key: (1 or batch, 1 or num_heads_q, 1 or seqlen_q, seqlen_k). Not allowed with packed
  /// sequences.
  kScores,
  kHeads,  ///< one element for each query head: (1 or num_sequences, num_heads_q, 1, 1)
};

/// An option that is a tensor. The option is off if the tensor is absent.
struct ScoreTensor {
  ScoreMod mod;
  const char* name;      ///< see ScoreNumber::name
  const char* constant;  ///< see ScoreNumber::constant
  std::optional<ConstTensor> Params::*param;
  std::optional<Tensor> Problem::*tensor;
  ScoreTensorShape shape;
  std::optional<DType> dtype;  ///< the only allowed dtype; if unset, any float dtype is allowed
  const char* gradient;        ///< name of the backward output with its gradient; null if there is no gradient
  std::optional<Tensor> BackwardCall::*passed_gradient;  ///< null if there is no gradient
  std::optional<Tensor> Problem::*gradient_tensor;       ///< null if there is no gradient
  /// Command-line flag of `attend info --explain` for this option.
  const char* flag;
  const char* flag_help;  ///< help text of the flag above
  /// Command-line help of the option, whose argument is a .npy file.
  const char* help;

  [[nodiscard]] constexpr bool is_of_scores() const { return shape == ScoreTensorShape::kScores; }
};

/// Full shapes that option tensors of a call may have, and the device of the call.
struct OptionShapes {
  Device device;
  Shape scores;  ///< (batch, num_heads_q, seqlen_q, seqlen_k)
  Shape heads;   ///< (num_sequences, num_heads_q, 1, 1)
};

/// Checks the tensor that was passed for `row`. Returns it with broadcast dimensions expanded.
[[nodiscard]] Tensor resolved(const ScoreTensor& row, const Tensor& passed, const OptionShapes& shapes);

inline constexpr std::array<ScoreNumber, 2> kScoreNumbers = {{
    {.mod = ScoreMod::kSoftcap,
     .name = "softcap",
     .constant = "kHasTransform",
     .param = &Params::softcap,
     .value = &Problem::transform_cap,
     // Most backends compute in float. If the cap were outside the range of float, dividing by it would turn valid
     // inputs into NaN.
     .is_allowed =
         [](double x) {
           return x == 0 || (x >= std::numeric_limits<float>::min() && x <= std::numeric_limits<float>::max());
         },
     .allowed = "0 (off) and finite numbers from 1.18e-38 to 3.4e+38",
     .end = std::numeric_limits<double>::infinity(),
     .excludes_end = false,
     .help = "s = softcap tanh(s / softcap); 0: off"},
    {.mod = ScoreMod::kDropout,
     .name = "dropout_p",
     .constant = "kHasDropout",
     .param = &Params::dropout_p,
     .value = &Problem::dropout_p,
     .is_allowed = [](double x) { return x >= 0 && x < 1; },
     .allowed = "0 <= dropout_p < 1",
     .end = 1,
     .excludes_end = true,
     .help = "Probability of dropping an entry"},
}};

inline constexpr std::array<ScoreTensor, 4> kScoreTensors = {{
    {.mod = ScoreMod::kBias,
     .name = "bias",
     .constant = "kHasBias",
     .param = &Params::bias,
     .tensor = &Problem::bias,
     .shape = ScoreTensorShape::kScores,
     .dtype = {},
     .gradient = "dbias",
     .passed_gradient = &BackwardCall::dbias,
     .gradient_tensor = &Problem::dbias,
     .flag = "--bias",
     .flag_help = "With a bias for every head",
     .help = "Bias, which is added to the scores: a .npy file that broadcasts to (batch, heads, seqlen_q, seqlen_k)"},
    {.mod = ScoreMod::kBoolMask,
     .name = "mask",
     .constant = "kHasBoolMask",
     .param = &Params::mask,
     .tensor = &Problem::mask,
     .shape = ScoreTensorShape::kScores,
     .dtype = DType::kBool,
     .gradient = nullptr,
     .passed_gradient = nullptr,
     .gradient_tensor = nullptr,
     .flag = "--mask",
     .flag_help = "With a boolean mask for every head",
     .help = "Mask, true for scores to keep: a bool .npy file with the shape of a bias"},
    {.mod = ScoreMod::kAlibi,
     .name = "alibi_slopes",
     .constant = "kHasAlibi",
     .param = &Params::alibi_slopes,
     .tensor = &Problem::alibi_slopes,
     .shape = ScoreTensorShape::kHeads,
     .dtype = DType::kF32,
     .gradient = nullptr,
     .passed_gradient = nullptr,
     .gradient_tensor = nullptr,
     .flag = "--alibi",
     .flag_help = "With ALiBi slopes",
     .help = "ALiBi slopes: an f32 .npy file, (heads) or (batch, heads)"},
    {.mod = ScoreMod::kSinks,
     .name = "sinks",
     .constant = "kHasSinks",
     .param = &Params::sinks,
     .tensor = &Problem::sinks,
     .shape = ScoreTensorShape::kHeads,
     .dtype = {},
     .gradient = "dsinks",
     .passed_gradient = &BackwardCall::dsinks,
     .gradient_tensor = &Problem::dsinks,
     .flag = "--sinks",
     .flag_help = "With a sink for every head",
     .help = "Attention sinks, scores that belong to no key: a .npy file, (heads) or (batch, heads)"},
}};

static_assert(kScoreNumbers.size() + kScoreTensors.size() == kScoreMods, "a row for each modification");

/// Traits of modifications that change each score, or its probability, independently of the other scores of the row. If
/// a problem has only such modifications, the keys of a row can be split, and the results can be merged by their lse.
/// Adding the same number to all scores of a row then changes no weight of its softmax.
inline constexpr ScoreModTraits kTraitsOfSingleScores = {
    .transforms = true, .adds_from_memory = true, .adds_by_position = true, .masks_from_memory = true, .drops = true};

/// Names of one modification (an option that changes scores or probabilities).
struct ScoreModNames {
  const char* name;      ///< name in the API
  const char* constant;  ///< name in a kernel's Config
};
[[nodiscard]] constexpr ScoreModNames names_of(ScoreMod mod) {
  for (const ScoreNumber& row : kScoreNumbers) {
    if (row.mod == mod) return {row.name, row.constant};
  }
  for (const ScoreTensor& row : kScoreTensors) {
    if (row.mod == mod) return {row.name, row.constant};
  }
  return {nullptr, nullptr};
}

/// Returns the table row of a modification whose option is a number.
[[nodiscard]] constexpr const ScoreNumber& number_row(ScoreMod mod) {
  std::size_t i = 0;
  while (kScoreNumbers.at(i).mod != mod) ++i;
  return kScoreNumbers[i];
}

/// Returns the index of a modification in kScoreTensors. If the modification's option is not a tensor, returns the size
/// of kScoreTensors.
[[nodiscard]] constexpr std::size_t tensor_index(ScoreMod mod) {
  std::size_t i = 0;
  while (i < kScoreTensors.size() && kScoreTensors[i].mod != mod) ++i;
  return i;
}

/// Returns the table row of a modification whose option is a tensor.
[[nodiscard]] constexpr const ScoreTensor& tensor_row(ScoreMod mod) {
  return kScoreTensors.at(tensor_index(mod));
}

/// Returns the name of the first modification that has a trait. Example: name_of(&ScoreModTraits::transforms).
[[nodiscard]] constexpr const char* name_of(bool ScoreModTraits::*trait) {
  for (int mod = 0; mod < kScoreMods; ++mod) {
    if (traits_of(static_cast<ScoreMod>(mod)).*trait) return names_of(static_cast<ScoreMod>(mod)).name;
  }
  return nullptr;
}

}  // namespace attend::core
