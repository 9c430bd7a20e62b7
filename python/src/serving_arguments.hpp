// The arguments of attend.decode and attend.append on tensors of torch, as the two functions hand them over, and the
// fields that they stand for. Whatever is unusual, or refused, is left to Python (attend/torch/_serving.py).
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

/// Learns the keyword arguments of a call in their order.
/// @throws Error (kInternal) for one that stands for no field.
void learn_serving_options(ServingCall call, const nb::dict& defaults);

/// The fields of a call. They are valid as long as the arguments, and as this.
struct ServingArguments {
  std::array<nb::handle, kNumTensorFields> tensors;  ///< None: not given
  std::array<nb::handle, kNumNumberFields> numbers;
  // Arguments that are no field. Null: the call has no such argument.
  nb::handle window, rotary, head_dim_v, return_lse;

  // Of decode, known once the arguments are resolved.
  Layout layout_q = Layout::kBhsd;  ///< kThd: the rows of q are packed
  std::int64_t head_dim_of_values = 0;

  // What handles above may refer to.
  nb::object window_tuple, most_q, most_new, lengths_array;

  [[nodiscard]] nb::handle& tensor(TensorField field) { return tensors[field.position]; }
  [[nodiscard]] nb::handle& number(NumberField field) { return numbers[field.position]; }
  [[nodiscard]] bool has(TensorField field) const { return !tensors[field.position].is_none(); }

  /// The tensors that are given. A number in the place of seqlens_k is none.
  [[nodiscard]] std::vector<nb::handle> given_tensors() const;
};

/// An argument that is not among the keyword arguments.
struct PositionalArgument {
  TensorField field;
  nb::handle value;
};

/// The arguments in their places, with the tensors of a rotary embedding. `options`: the tuple of all keyword arguments
/// in their order. Nothing if Python has to look at them. After learn_serving_options and learn_torch.
/// @throws Error (kInternal) if the tuple has another length.
[[nodiscard]] std::optional<ServingArguments> placed_arguments(ServingCall call, const nb::tuple& options,
                                                               std::initializer_list<PositionalArgument> others);

/// Gives the fields the values that the front ends in Python give them, once torch_route.hpp has allowed the tensors.
/// False if Python has to look at them.
[[nodiscard]] bool resolve(ServingCall call, ServingArguments& x);

}  // namespace attend::python
