// The names of torch that C++ calls, and the functions of attend/torch for the work that C++ leaves to Python.
// attend/torch/_direct.py hands all of them over once.
#pragma once

#include <nanobind/nanobind.h>

#include "attend/attention.hpp"

namespace attend::python {

namespace nb = nanobind;

struct Torch {
  // Most of these are C functions.
  nb::object tensor, parameter;              ///< types
  nb::object empty_like, new_empty_strided;  ///< (tensor); (tensor, shape, strides, dtype=)
  nb::object new_full;                       ///< (tensor, shape, value, dtype=)
  nb::object float32, int32;
  nb::object raw_stream;               ///< (index of a GPU): its current stream, as a number
  nb::object is_grad_enabled;          ///< ()
  nb::object is_any_autocast_enabled;  ///< ()
  nb::object is_autocast_enabled;      ///< (name of a type of device)
  nb::object autocast_dtype;           ///< (name of a type of device)
  nb::object requires_determinism;     ///< (): of all operators
  nb::object is_inference;             ///< (tensor): autograd counts no writes of it
  nb::object increment_version;        ///< (tensor): counts a write, see autograd.graph
  nb::object forward_ad;               ///< a module

  // Functions that give something true if torch's dispatcher has more to do than autograd and autocast.
  bool has_watchers;            ///< false: this release of torch lacks one of them
  nb::tuple call_watchers;      ///< of (): before a call
  nb::tuple gradient_watchers;  ///< of (): while autograd's engine runs
  nb::tuple tensor_watchers;    ///< of (tensor)
  bool has_exchange_table;      ///< tensors can be read through DLPack's C exchange table

  // Of attend/torch, attend/_settings.py and attend/_serving.py.
  nb::object autocast;                   ///< (tensors...): a tuple of them, cast
  nb::object apply, apply_packed;        ///< Attention.apply and PackedAttention.apply, see torch_attention.cpp
  nb::object run_forward;                ///< (q, k, v, extras, settings, return_lse): (o, lse or None)
  nb::object forward_with_extras;        ///< (context, q, k, v, extras, settings): (o, lse), and saves for backward
  nb::object run_backward;               ///< (context, saved, dout, dlse, is_direct): a gradient for each argument
  nb::object run_packed_backward;        ///< likewise: dqkv
  nb::object with_required_determinism;  ///< (settings): deterministic if torch requires that of backward
  nb::object settings_type, no_extras;   ///< Settings; the Extras of no tensor
  nb::tuple default_numbers;             ///< Numbers of attend/_serving.py, of defaults
  nb::object rotary_type;                ///< attend.Rotary

  // Names, made once. The level is a number in forward_ad, at least 0 if there are tangents.
  nb::object current_level = name("_current_level");
  nb::object requires_grad = name("requires_grad"), dtype = name("dtype"), is_cuda = name("is_cuda");
  nb::object save_for_backward = name("save_for_backward"), saved_tensors = name("saved_tensors");
  nb::object set_materialize_grads = name("set_materialize_grads"), settings = name("settings");
  nb::object cpu = name("cpu"), cuda = name("cuda");
  nb::tuple with_dtype = nb::make_tuple(dtype);  ///< the keywords of a call

  static nb::object name(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }
};

extern const Torch* torch;  ///< null before learn_torch; outlives the interpreter

/// `names`: the fields of Torch that have no value above, by name.
void learn_torch(const nb::dict& names);

[[nodiscard]] bool is_true(nb::handle x);

/// An uninitialised tensor of float32 on the device of `like`. Quicker than a call with nanobind's keywords.
[[nodiscard]] nb::object empty_float32(nb::handle like, const nb::tuple& shape, const nb::tuple& strides);

/// The current stream of torch on a device.
[[nodiscard]] Stream current_stream(Device device);

}  // namespace attend::python
