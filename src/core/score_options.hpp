// The options that modify scores, one row each, as callers name them and as a Problem holds them.
//
// From these rows follow the checks of Params, a problem's key, the constants of kernels, the command line's flags and
// JSON, what the ranks of a ring agree on, and the settings of the Python package. kernels/attention/score_mods.cuh
// says what each option does to a score.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>

#include "core/problem.hpp"
#include "kernels/attention/score_mods.cuh"

namespace attend::core {

/// An option that is one number. 0 turns it off.
struct ScoreNumber {
  ScoreMod mod;
  const char* name;      ///< in Params, refusals, on the command line, in JSON and in Python
  const char* constant;  ///< of a kernel's Config, a bool: the option is on
  double Params::*param;
  double Problem::*value;
  bool (*is_allowed)(double);
  const char* allowed;  ///< in refusals
  double end;           ///< the command line takes numbers from 0 to here,
  bool excludes_end;    ///< or below
  const char* help;     ///< on the command line
};

/// What a tensor has an entry for. Either may be broadcast.
enum class ScoreTensorShape {
  kScores,  ///< each row and key: (1 or batch, 1 or num_heads_q, 1 or seqlen_q, seqlen_k); not with packed sequences
  kHeads,   ///< each query head: (1 or num_sequences, num_heads_q, 1, 1)
};

/// An option that is a tensor. Absent: off.
struct ScoreTensor {
  ScoreMod mod;
  const char* name;      ///< as above
  const char* constant;  ///< as above
  std::optional<ConstTensor> Params::*param;
  std::optional<Tensor> Problem::*tensor;
  ScoreTensorShape shape;
  std::optional<DType> dtype;  ///< the only one that is allowed; absent: any float
  const char* gradient;        ///< name of its gradient, an output of backward; null: it has none
  std::optional<Tensor> BackwardCall::*passed_gradient;  ///< null as well
  std::optional<Tensor> Problem::*gradient_tensor;       ///< likewise
  const char* flag;                                      ///< of `attend info --explain`,
  const char* flag_help;                                 ///< and what its help says
  const char* help;                                      ///< on the command line, which takes a .npy file

  [[nodiscard]] constexpr bool is_of_scores() const { return shape == ScoreTensorShape::kScores; }
};

/// Full shapes of the tensors of a call's options, and their device.
struct OptionShapes {
  Device device;
  Shape scores;  ///< (batch, num_heads_q, seqlen_q, seqlen_k)
  Shape heads;   ///< (num_sequences, num_heads_q, 1, 1)
};

/// Checks what was passed for a row. Returns it with its broadcast dimensions expanded.
[[nodiscard]] Tensor resolved(const ScoreTensor& row, const Tensor& passed, const OptionShapes& shapes);

inline constexpr std::array<ScoreNumber, 2> kScoreNumbers = {{
    {.mod = ScoreMod::kSoftcap,
     .name = "softcap",
     .constant = "kHasTransform",
     .param = &Params::softcap,
     .value = &Problem::transform_cap,
     // Most backends compute in float: a quotient by a number beyond its range would make NaN of good inputs.
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
     .flag_help = "With a bias of every head",
     .help = "Added to the scores: a .npy file that broadcasts to (batch, heads, seqlen_q, seqlen_k)"},
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
     .flag_help = "With a boolean mask of every head",
     .help = "Which scores to keep: a bool .npy file, shaped like a bias"},
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
     .flag_help = "With a sink of every head",
     .help = "A score that belongs to no key: a .npy file, (heads) or (batch, heads)"},
}};

static_assert(kScoreNumbers.size() + kScoreTensors.size() == kScoreMods, "a row for each modification");

/// The traits of modifications that act on each score, or its entry of p, whatever the rest of the row is. So parts of
/// a row can be computed apart and merged by their lse, and a number that is added to all scores of a row changes no
/// weight of its softmax.
inline constexpr ScoreModTraits kTraitsOfSingleScores = {
    .transforms = true, .adds_from_memory = true, .adds_by_position = true, .masks_from_memory = true, .drops = true};

/// What a modification is called.
struct ScoreModNames {
  const char* name;      ///< by callers
  const char* constant;  ///< in a kernel's Config
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

/// The row of a modification that is one number.
[[nodiscard]] constexpr const ScoreNumber& number_row(ScoreMod mod) {
  std::size_t i = 0;
  while (kScoreNumbers.at(i).mod != mod) ++i;
  return kScoreNumbers[i];
}

/// The place of a modification's row in kScoreTensors; their number if it is no tensor.
[[nodiscard]] constexpr std::size_t tensor_index(ScoreMod mod) {
  std::size_t i = 0;
  while (i < kScoreTensors.size() && kScoreTensors[i].mod != mod) ++i;
  return i;
}

/// The row of a modification that is a tensor.
[[nodiscard]] constexpr const ScoreTensor& tensor_row(ScoreMod mod) {
  return kScoreTensors.at(tensor_index(mod));
}

/// The name of the first modification with a trait: name_of(&ScoreModTraits::transforms).
[[nodiscard]] constexpr const char* name_of(bool ScoreModTraits::*trait) {
  for (int mod = 0; mod < kScoreMods; ++mod) {
    if (traits_of(static_cast<ScoreMod>(mod)).*trait) return names_of(static_cast<ScoreMod>(mod)).name;
  }
  return nullptr;
}

}  // namespace attend::core
