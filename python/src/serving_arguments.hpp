// The arguments of attend.decode and attend.append on torch tensors, and the fields that they set. Python
// (attend/torch/_serving.py) handles all unusual or invalid arguments.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "array.hpp"
#include "serving_fields.hpp"

namespace attend::python {

namespace nb = nanobind;

enum class ServingCall : std::uint8_t { kDecode, kAppend };

/// Stores the keyword arguments of a call in their order.
/// @throws Error (kInternal) for an argument without a field.
void learn_serving_options(ServingCall call, const nb::dict& defaults);

/// The fields of a call. They are valid as long as the arguments and this object.
struct ServingArguments {
  std::array<nb::handle, kNumTensorFields> tensors;  ///< None: not given
  std::array<nb::handle, kNumNumberFields> numbers;
  // Arguments without a field. Null: the call has no such argument.
  nb::handle window, rotary, head_dim_v, return_lse;

  // decode only; set by resolve():
  Layout layout_q = Layout::kBhsd;  ///< kThd: the rows of q are packed
  std::int64_t head_dim_of_values = 0;

  // Objects that the handles above may refer to.
  nb::object window_tuple, most_q, most_new, lengths_array;

  [[nodiscard]] nb::handle& tensor(TensorField field) { return tensors[field.position]; }
  [[nodiscard]] nb::handle& number(NumberField field) { return numbers[field.position]; }
  [[nodiscard]] bool has(TensorField field) const { return !tensors[field.position].is_none(); }

  /// Returns the given tensors. Excludes a number in seqlens_k.
  [[nodiscard]] std::vector<nb::handle> given_tensors() const;
};

/// A positional argument.
struct PositionalArgument {
  TensorField field;
  nb::handle value;
};

/// Returns the arguments in their fields, with the tensors of a rotary embedding. `options` is the tuple of all keyword
/// arguments in their order. Returns nothing if Python must handle the call. Requires learn_serving_options and
/// learn_torch.
/// @throws Error (kInternal) if the tuple has another length.
[[nodiscard]] std::optional<ServingArguments> placed_arguments(ServingCall call, const nb::tuple& options,
                                                               std::initializer_list<PositionalArgument> others);

/// Sets the fields to the values that the Python front ends would set, after torch_route.hpp has allowed the tensors.
/// Returns false if Python must handle the call.
[[nodiscard]] bool resolve(ServingCall call, ServingArguments& x);

}  // namespace attend::python
