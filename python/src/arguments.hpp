// Converts the Arrays and named tuples (attend/_settings.py) of the Python front ends to the arguments of a library
// call.
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

/// Positions in Extras of the options that have a gradient. Extras begins with the rows of core::kScoreTensors.
inline constexpr auto kOptionsWithGradient = [] {
  constexpr auto kHasGradient = [](const core::ScoreTensor& row) { return row.gradient != nullptr; };
  std::array<std::size_t, std::ranges::count_if(core::kScoreTensors, kHasGradient)> positions = {};
  std::size_t count = 0;
  for (std::size_t i = 0; i < core::kScoreTensors.size(); ++i) {
    if (kHasGradient(core::kScoreTensors[i])) positions[count++] = i;
  }
  return positions;
}();

/// Params and the string that their `compute` points to.
struct Options {
  Params without_compute;
  std::string compute;

  /// Returns the params with `compute`. They are valid as long as this object.
  [[nodiscard]] Params params() const;
};

/// Reads the options of the named tuple Settings, without the tensors of Extras.
/// @throws Error (kInvalidArgument) naming the setting.
[[nodiscard]] Options options_without_extras(nb::handle settings);

/// The tensors that forward and backward share. A forward call may have no lse.
struct Views {
  Tensor q, k, v, o;
  std::optional<Tensor> lse;
};

/// Gradients of a backward call. dout and dlse are inputs. dq, dk, dv and the gradients of tensor options are outputs;
/// of_options has the order of core::kScoreTensors.
struct Gradients {
  Tensor dout, dq, dk, dv;
  std::optional<Tensor> dlse;
  std::array<std::optional<Tensor>, core::kScoreTensors.size()> of_options;
};

/// All arguments of a call. A call without `gradients` is a forward call. The caller's frame keeps the arrays in the
/// tuples alive during the call.
struct Call {
  Views x;
  Options options;
  std::optional<Gradients> gradients = {};

  /// @throws Error (kInvalidArgument) naming an argument whose kind the library does not support.
  Call(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in, nb::handle tuple,
       nb::handle extras, nb::handle settings);

  [[nodiscard]] const Tensor* lse() const { return x.lse ? &*x.lse : nullptr; }

  /// Returns the params, which are valid as long as this object.
  [[nodiscard]] Params params() const { return options.params(); }

  /// Returns the library's call, which is valid as long as this object. backward() requires `gradients` and lse.
  [[nodiscard]] ForwardCall forward(Stream stream = nullptr) const;
  [[nodiscard]] BackwardCall backward(Stream stream = nullptr) const;

  /// Checks the dtypes of o and dout. They may differ from q in a call that only describes a backward pass.
  /// @throws Error (kInvalidArgument)
  void check_dtypes_of_results() const;
};

/// Run the library without holding the GIL.
void run_forward(const Call& call, Stream stream);
void run_backward(const Call& call, Stream stream);

/// Returns the layout. @throws Error (kInvalidArgument) if the name is unknown.
[[nodiscard]] Layout layout_of_call(nb::handle settings);

/// Refuses max_seqlen_q and max_seqlen_k that are not integers. Only calls with packed sequences read these settings.
void check_lengths(nb::handle settings);

/// Replaces C++ argument names in a message with Python's argument names.
[[nodiscard]] std::string in_pythons_words(std::string message);

/// Exports the names of the tuples' fields and the rows of the tensor options.
void add_names(nb::module_& m);

}  // namespace attend::python
