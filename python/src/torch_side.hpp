// What the short way asks of torch: names that attend/torch/_shortcut.py hands over once, most of them C functions.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <span>

#include "attend/attention.hpp"

namespace attend::python {

namespace nb = nanobind;

struct Torch {
  nb::object tensor, parameter;              ///< types
  nb::object is_neg;                         ///< (tensor): the values are those in memory, negated
  nb::object empty_like, new_empty_strided;  ///< (tensor); (tensor, shape, strides, dtype=)
  nb::object float32;
  nb::object raw_stream;               ///< (index of a GPU): its current stream, as a number
  nb::object is_grad_enabled;          ///< ()
  nb::object is_any_autocast_enabled;  ///< ()
  nb::object is_autocast_enabled;      ///< (name of a type of device)
  nb::object autocast_dtype;           ///< (name of a type of device)
  nb::object wants_determinism;        ///< (): of all operators
  nb::object as_torch_is_told;         ///< (settings): the settings then
  nb::object forward_ad;               ///< a module
  nb::object no_extras;                ///< an Extras of nothing
  nb::tuple watchers;                  ///< of (): something true where the dispatcher has more to do than autograd
  nb::tuple gradients_watchers;        ///< likewise, while autograd's engine runs

  // Names, made once. The level is a number in forward_ad, at least 0 where there are tangents.
  nb::object current_level = name("_current_level");
  nb::object requires_grad = name("requires_grad"), dtype = name("dtype");
  nb::object save_for_backward = name("save_for_backward"), saved_tensors = name("saved_tensors");
  nb::object set_materialize_grads = name("set_materialize_grads"), settings = name("settings");
  nb::object cpu = name("cpu"), cuda = name("cuda"), bshd = name("bshd");

  static nb::object name(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }
};

extern const Torch* torch;  ///< null before learn_torch; outlives the interpreter

void learn_torch(const nb::dict& names);

/// How a call may go, in bits; 0: the long way. attend/torch/_shortcut.py has the same numbers.
inline constexpr int kShort = 1;     ///< the dispatcher would find nothing to do but what the other bits say
inline constexpr int kAutograd = 2;  ///< gradients may be asked for
inline constexpr int kAutocast = 4;  ///< what is given is to be cast

/// The bits of a call with the tensors `given`, on one device (else the library refuses them in the end).
[[nodiscard]] int way_of(std::span<const nb::handle> given);

/// Whether autocast has nothing to cast: all `given`, on one device, are what it would make of them.
[[nodiscard]] bool is_cast(std::span<const nb::handle> given);

[[nodiscard]] bool is_true(nb::handle x);

/// Has the dispatcher more to do than autograd? One of torch's `watchers` says so.
[[nodiscard]] bool is_watched(const nb::tuple& watchers);

/// What lies in memory are the values of `x`: it is of no subclass or other layout, on a CPU or a GPU, and not lazy.
[[nodiscard]] bool is_plain(nb::handle x, nb::dlpack::dltensor& memory);

/// Torch's, on the device of `x`.
[[nodiscard]] Stream current_stream(const Tensor& x);

}  // namespace attend::python
