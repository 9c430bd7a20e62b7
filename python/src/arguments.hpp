// Converts the arguments of the Python front ends to the arguments of a library call. The front ends pass tensors as
// Arrays and options as named tuples (attend/_settings.py).
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "array.hpp"
#include "attend/attention.hpp"
#include "core/score_options.hpp"

namespace attend::python {

/// The position in the named tuple Extras of each tensor that has a gradient. The first fields of Extras are the rows
/// of core::kScoreTensors.
inline constexpr auto kOptionsWithGradient = [] {
  constexpr auto kHasGradient = [](const core::ScoreTensor& row) { return row.gradient != nullptr; };
  std::array<std::size_t, std::ranges::count_if(core::kScoreTensors, kHasGradient)> positions = {};
  std::size_t count = 0;
  for (std::size_t i = 0; i < core::kScoreTensors.size(); ++i) {
    if (kHasGradient(core::kScoreTensors[i])) positions[count++] = i;
  }
  return positions;
}();

/// Params, and the string to which their member `compute` refers.
struct Options {
  Params without_compute;
  std::string compute;

  /// Returns the params, including `compute`. They are valid as long as this object exists.
  [[nodiscard]] Params params() const;
};

/// Reads the options in the named tuple Settings. This function does not read the tensors in Extras.
/// @throws Error (kInvalidArgument) if a setting has the wrong type. The message names the setting.
[[nodiscard]] Options options_without_extras(nb::handle settings);

/// The tensors that both forward and backward calls have. In a forward call, lse is optional.
struct Views {
  Tensor q, k, v, o;
  std::optional<Tensor> lse;
};

/// The gradients of a backward call. dout and dlse are inputs; all other tensors are outputs. `of_options` contains the
/// gradients of the tensor options, in the order of core::kScoreTensors.
struct Gradients {
  Tensor dout, dq, dk, dv;
  std::optional<Tensor> dlse;
  std::array<std::optional<Tensor>, core::kScoreTensors.size()> of_options;
};

/// All arguments of a call. If `gradients` is not set, it is a forward call, otherwise a backward call. Python keeps
/// the arrays in the tuples alive during the call.
struct Call {
  Views x;
  Options options;
  std::optional<Gradients> gradients = {};

  /// @throws Error (kInvalidArgument) if an argument has an unsupported dtype, shape or device. The message names the
  ///         argument.
  Call(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in, nb::handle tuple,
       nb::handle extras, nb::handle settings);

  [[nodiscard]] const Tensor* lse() const { return x.lse ? &*x.lse : nullptr; }

  /// Returns the params. They are valid as long as this object exists.
  [[nodiscard]] Params params() const { return options.params(); }

  /// Returns a forward call of the library. It is valid as long as this object exists.
  [[nodiscard]] ForwardCall forward(Stream stream = nullptr) const;
  /// Returns a backward call of the library. It is valid as long as this object exists. `gradients` and lse must be
  /// set.
  [[nodiscard]] BackwardCall backward(Stream stream = nullptr) const;

  /// Checks that o and dout have the dtype of q. A call that only describes a backward pass may have other dtypes.
  /// @throws Error (kInvalidArgument) if a dtype differs.
  void check_dtypes_of_results() const;
};

/// Runs a forward call and releases the GIL meanwhile.
void run_forward(const Call& call, Stream stream);
/// Runs a backward call and releases the GIL meanwhile.
void run_backward(const Call& call, Stream stream);

/// Returns the layout in the named tuple Settings. @throws Error (kInvalidArgument) if its name is unknown.
[[nodiscard]] Layout layout_of_call(nb::handle settings);

/// Refuses max_seqlen_q and max_seqlen_k if they are not integers. Other functions read these settings only if
/// sequences are packed.
void check_lengths(nb::handle settings);

/// Replaces the C++ names of arguments in an error message with the names in Python.
[[nodiscard]] std::string in_pythons_words(std::string message);

/// Adds the field names of the named tuples and the properties of the tensor options to the extension module.
void add_names(nb::module_& m);

}  // namespace attend::python
