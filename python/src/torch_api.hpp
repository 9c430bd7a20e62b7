// The torch objects that C++ calls, and the functions of attend/torch for work that C++ leaves to Python.
// attend/torch/_direct.py passes all of them once.
#pragma once

#include <nanobind/nanobind.h>

#include "attend/attention.hpp"

namespace attend::python {

namespace nb = nanobind;

struct Torch {
  // Most of these are C functions. The comments show their arguments in parentheses.
  nb::object tensor, parameter;              ///< types
  nb::object empty_like, new_empty_strided;  ///< (tensor); (tensor, shape, strides, dtype=)
  nb::object new_full;                       ///< (tensor, shape, value, dtype=)
  nb::object float32, int32;
  nb::object raw_stream;               ///< (GPU index): the current stream, as an integer
  nb::object is_grad_enabled;          ///< ()
  nb::object is_any_autocast_enabled;  ///< ()
  nb::object is_autocast_enabled;      ///< (device type name)
  nb::object autocast_dtype;           ///< (device type name)
  nb::object requires_determinism;     ///< (): whether torch requires deterministic operators
  nb::object is_inference;             ///< (tensor): an inference tensor, whose writes autograd does not count
  nb::object increment_version;        ///< (tensor): counts a write; see autograd.graph
  nb::object forward_ad;               ///< a module

  // Functions that return a true value if torch's dispatcher must do more than autograd and autocast.
  bool has_watchers;            ///< false if this torch release does not have all of them
  nb::tuple call_watchers;      ///< (): checked before a call
  nb::tuple gradient_watchers;  ///< (): checked while the autograd engine runs
  nb::tuple tensor_watchers;    ///< (tensor): checked for each tensor
  bool has_exchange_table;      ///< torch tensors have DLPack's C exchange table

  // Objects of attend/torch, attend/_settings.py and attend/_serving.py.
  nb::object autocast;             ///< (tensors...): a tuple of the cast tensors
  nb::object apply, apply_packed;  ///< Attention.apply and PackedAttention.apply; see torch_attention.cpp
  nb::object run_forward;          ///< (q, k, v, extras, settings, return_lse): (o, lse or None)
  /// (context, q, k, v, extras, settings): (o, lse). Saves tensors for backward.
  nb::object forward_with_extras;
  nb::object run_backward;         ///< (context, saved, dout, dlse, is_direct): one gradient per argument
  nb::object run_packed_backward;  ///< (context, saved, dout, dlse, is_direct): dqkv
  /// (settings): the settings, deterministic if torch requires it for backward.
  nb::object with_required_determinism;
  nb::object settings_type, no_extras;  ///< the type Settings; an Extras without tensors
  nb::tuple default_numbers;            ///< a Numbers tuple (attend/_serving.py) with the defaults
  nb::object rotary_type;               ///< attend.Rotary

  // Interned names. `_current_level` is an int in forward_ad and at least 0 if there are tangents.
  nb::object current_level = name("_current_level");
  nb::object requires_grad = name("requires_grad"), dtype = name("dtype"), is_cuda = name("is_cuda");
  nb::object save_for_backward = name("save_for_backward"), saved_tensors = name("saved_tensors");
  nb::object set_materialize_grads = name("set_materialize_grads"), settings = name("settings");
  nb::object cpu = name("cpu"), cuda = name("cuda");
  nb::tuple with_dtype = nb::make_tuple(dtype);  ///< keyword names of a vector call

  static nb::object name(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }
};

extern const Torch* torch;  ///< null before learn_torch; outlives the interpreter

/// Stores the torch objects. `names` maps the names of the fields without a default value to their values.
void learn_torch(const nb::dict& names);

[[nodiscard]] bool is_true(nb::handle x);

/// Returns an uninitialised float32 tensor on the device of `like`. Faster than a call with nanobind's keywords.
[[nodiscard]] nb::object empty_float32(nb::handle like, const nb::tuple& shape, const nb::tuple& strides);

/// Returns torch's current stream on a device.
[[nodiscard]] Stream current_stream(Device device);

}  // namespace attend::python
