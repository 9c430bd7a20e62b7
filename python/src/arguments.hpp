// The arguments of a call of the library as the package's front ends give them: Arrays, and the named tuples of
// attend/_settings.py.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "array.hpp"
#include "attend/attention.hpp"

namespace attend::python {

/// Params, and what its pointers point to.
struct Options {
  Params params;
  std::string compute;
};

/// What the named tuple says; the tensors of Extras, to which options point, are not among it.
/// @throws Error (kInvalidArgument) naming the setting.
[[nodiscard]] Options options_without_extras(nb::handle settings);

/// The tensors that forward and backward have in common. forward may go without lse.
struct Views {
  Tensor q, k, v, o;
  std::optional<Tensor> lse;
};

/// dout, dlse in; dq, dk, dv, dbias out. dlse and dbias may be none.
struct Gradients {
  Tensor dout, dq, dk, dv;
  std::optional<Tensor> dlse, dbias;
};

/// All that a call is given. `gradients` none: forward. The arrays in the tuples outlive the call: the caller's frame
/// holds them.
struct Call {
  Views x;
  Options options;
  std::optional<Gradients> gradients = {};

  /// @throws Error (kInvalidArgument) naming the argument, where it is not of the kind that the library takes.
  Call(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in, nb::handle tuple,
       nb::handle extras, nb::handle settings);

  [[nodiscard]] const Tensor* lse() const { return x.lse ? &*x.lse : nullptr; }

  /// Valid as long as the call.
  [[nodiscard]] Params params() const;

  /// The library's call: of forward, or of backward if there are `gradients` (then x has lse). Valid as long as this.
  [[nodiscard]] ForwardCall forward(Stream stream = nullptr) const;
  [[nodiscard]] BackwardCall backward(Stream stream = nullptr) const;

  /// Of o and dout, which a call that only describes backward may have in another dtype than q.
  /// @throws Error (kInvalidArgument)
  void check_dtypes_of_results() const;
};

/// The library's calls, without the GIL.
void run_forward(const Call& call, Stream stream);
void run_backward(const Call& call, Stream stream);

/// @throws Error (kInvalidArgument) where it has no known name.
[[nodiscard]] Layout layout_of_call(nb::handle settings);

/// Refuses max_seqlen_q and max_seqlen_k that are no whole numbers, which are read of packed sequences only.
void check_lengths(nb::handle settings);

/// Exports the names of the tuples' fields.
void add_field_names(nb::module_& m);

}  // namespace attend::python
