// Converts the arguments of attend.decode and attend.append on torch tensors to the fields that the library reads. If
// an argument is unusual or invalid, the Python code (attend/torch/_serving.py) handles the call instead.
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

/// Stores the names of the keyword arguments of decode or append, in order.
/// @throws Error (kInternal) if an argument has no corresponding field.
void learn_serving_options(ServingCall call, const nb::dict& defaults);

/// The fields of one call. They are valid as long as the Python arguments and this object exist.
struct ServingArguments {
  std::array<nb::handle, kNumTensorFields> tensors;  ///< None if the argument is not given
  std::array<nb::handle, kNumNumberFields> numbers;
  // Arguments that correspond to no single field. Null if the function has no such argument.
  nb::handle window, rotary, head_dim_v, return_lse;

  // The next two members are used only by decode. resolve() sets them.
  Layout layout_q = Layout::kBhsd;  ///< kThd if the rows of q are packed
  std::int64_t head_dim_of_values = 0;

  // New objects to which the fields above may refer.
  nb::object window_tuple, most_q, most_new, lengths_array;

  [[nodiscard]] nb::handle& tensor(TensorField field) { return tensors[field.position]; }
  [[nodiscard]] nb::handle& number(NumberField field) { return numbers[field.position]; }
  [[nodiscard]] bool has(TensorField field) const { return !tensors[field.position].is_none(); }

  /// Returns all tensors that are given. If seqlens_k is a number, it is not included.
  [[nodiscard]] std::vector<nb::handle> given_tensors() const;
};

/// A positional argument and its field.
struct PositionalArgument {
  TensorField field;
  nb::handle value;
};

/// Assigns the arguments of a call to their fields. The tensors of a rotary embedding get separate fields. Returns
/// nothing if the Python code must handle the call. learn_serving_options and learn_torch must have been called.
/// @param options  the values of all keyword arguments in order
/// @throws Error (kInternal) if `options` has the wrong length.
[[nodiscard]] std::optional<ServingArguments> placed_arguments(ServingCall call, const nb::tuple& options,
                                                               std::initializer_list<PositionalArgument> others);

/// Converts the fields to the values that the Python code would set. torch_route.hpp must already have accepted the
/// tensors. Returns false if the Python code must handle the call.
[[nodiscard]] bool resolve(ServingCall call, ServingArguments& x);

}  // namespace attend::python
