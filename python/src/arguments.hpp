// The arguments of a call of the library, from the Arrays and named tuples (attend/_settings.py) of the package's front
// ends.
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

/// Positions in Extras, which begins with the rows of core::kScoreTensors, of the options that have a gradient.
inline constexpr auto kOptionsWithGradient = [] {
  constexpr auto kHasGradient = [](const core::ScoreTensor& row) { return row.gradient != nullptr; };
  std::array<std::size_t, std::ranges::count_if(core::kScoreTensors, kHasGradient)> positions = {};
  std::size_t count = 0;
  for (std::size_t i = 0; i < core::kScoreTensors.size(); ++i) {
    if (kHasGradient(core::kScoreTensors[i])) positions[count++] = i;
  }
  return positions;
}();

/// Params, and the text that `compute` of it points to.
struct Options {
  Params without_compute;
  std::string compute;

  /// Valid as long as this.
  [[nodiscard]] Params params() const;
};

/// The options that the named tuple Settings holds. The tensors of Extras are not among them.
/// @throws Error (kInvalidArgument) naming the setting.
[[nodiscard]] Options options_without_extras(nb::handle settings);

/// The tensors that forward and backward have in common. forward may have no lse.
struct Views {
  Tensor q, k, v, o;
  std::optional<Tensor> lse;
};

/// dout, dlse in; dq, dk, dv out, and those of options that are tensors, in the order of core::kScoreTensors.
struct Gradients {
  Tensor dout, dq, dk, dv;
  std::optional<Tensor> dlse;
  std::array<std::optional<Tensor>, core::kScoreTensors.size()> of_options;
};

/// All arguments of a call. Without `gradients` it is forward's. The arrays in the tuples outlive the call, because the
/// caller's frame holds them.
struct Call {
  Views x;
  Options options;
  std::optional<Gradients> gradients = {};

  /// @throws Error (kInvalidArgument) naming the argument, if it is not of the kind that the library takes.
  Call(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in, nb::handle tuple,
       nb::handle extras, nb::handle settings);

  [[nodiscard]] const Tensor* lse() const { return x.lse ? &*x.lse : nullptr; }

  /// Valid as long as the call.
  [[nodiscard]] Params params() const { return options.params(); }

  /// The library's call: of forward, or of backward if there are `gradients` (then x has lse). Valid as long as this.
  [[nodiscard]] ForwardCall forward(Stream stream = nullptr) const;
  [[nodiscard]] BackwardCall backward(Stream stream = nullptr) const;

  /// Checks o and dout, which may have another dtype than q in a call that only describes backward.
  /// @throws Error (kInvalidArgument)
  void check_dtypes_of_results() const;
};

/// The library's calls, without the GIL.
void run_forward(const Call& call, Stream stream);
void run_backward(const Call& call, Stream stream);

/// @throws Error (kInvalidArgument) if its name is unknown.
[[nodiscard]] Layout layout_of_call(nb::handle settings);

/// Refuses max_seqlen_q and max_seqlen_k that are no whole numbers. Only calls with packed sequences read them.
void check_lengths(nb::handle settings);

/// The library's message with the names that Python's arguments have.
[[nodiscard]] std::string in_pythons_words(std::string message);

/// Exports the names of the tuples' fields, and the rows of the options that are tensors.
void add_names(nb::module_& m);

}  // namespace attend::python
