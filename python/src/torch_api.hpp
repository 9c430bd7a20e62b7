// The torch objects that the C++ code uses, and the functions of attend/torch that the C++ code calls.
// attend/torch/_direct.py passes them to C++ once.
#pragma once

#include <nanobind/nanobind.h>

#include "attend/attention.hpp"

namespace attend::python {

namespace nb = nanobind;

struct Torch {
  // Most of these objects are functions that torch implements in C. Each comment lists the arguments in parentheses.
  nb::object tensor, parameter;              ///< torch.Tensor and torch.nn.Parameter
  nb::object empty_like, new_empty_strided;  ///< (tensor); (tensor, shape, strides, dtype=)
  nb::object new_full;                       ///< (tensor, shape, value, dtype=)
  nb::object float32, int32;
  nb::object raw_stream;               ///< (GPU index): returns the current stream as an integer
  nb::object is_grad_enabled;          ///< ()
  nb::object is_any_autocast_enabled;  ///< ()
  nb::object is_autocast_enabled;      ///< (device type name)
  nb::object autocast_dtype;           ///< (device type name)
  nb::object requires_determinism;     ///< (): returns whether torch requires deterministic operators
  nb::object is_inference;       ///< (tensor): returns whether the tensor is an inference tensor. Autograd does not
                                 ///< count writes to such tensors
  nb::object increment_version;  ///< (tensor): makes autograd count a write to the tensor (see autograd.graph)
  nb::object forward_ad;         ///< the module torch.autograd.forward_ad

  // Watchers are functions that return True if torch's dispatcher must do more than autograd and autocast, for example
  // because a profiler is active.
  bool has_watchers;            ///< whether this torch release has all these functions
  nb::tuple call_watchers;      ///< (): called before a call of attention
  nb::tuple gradient_watchers;  ///< (): called while the autograd engine runs
  nb::tuple tensor_watchers;    ///< (tensor): called for each tensor
  bool has_exchange_table;      ///< whether torch tensors have DLPack's C exchange table

  // Objects from attend/torch, attend/_settings.py and attend/_serving.py.
  nb::object autocast;             ///< (tensors...): returns a tuple of the tensors after autocast
  nb::object apply, apply_packed;  ///< Attention.apply and PackedAttention.apply; see torch_attention.cpp
  nb::object run_forward;          ///< (q, k, v, extras, settings, return_lse): returns (o, lse), where lse may be None
  /// (context, q, k, v, extras, settings): returns (o, lse) and saves the tensors that backward needs.
  nb::object forward_with_extras;
  nb::object run_backward;         ///< (context, saved, dout, dlse, is_direct): returns one gradient for each argument
  nb::object run_packed_backward;  ///< (context, saved, dout, dlse, is_direct): returns dqkv
  /// (settings): returns the settings for backward, which are deterministic if torch requires it.
  nb::object with_required_determinism;
  nb::object settings_type, no_extras;  ///< the type Settings, and an Extras tuple without tensors
  nb::tuple default_numbers;            ///< a Numbers tuple (attend/_serving.py) with the default values
  nb::object rotary_type;               ///< attend.Rotary

  // Names of Python attributes, interned for speed. `_current_level` is an int in forward_ad. It is at least 0 if
  // tensors may have forward-mode tangents.
  nb::object current_level = name("_current_level");
  nb::object requires_grad = name("requires_grad"), dtype = name("dtype"), is_cuda = name("is_cuda");
  nb::object save_for_backward = name("save_for_backward"), saved_tensors = name("saved_tensors");
  nb::object set_materialize_grads = name("set_materialize_grads"), settings = name("settings");
  nb::object cpu = name("cpu"), cuda = name("cuda");
  nb::tuple with_dtype = nb::make_tuple(dtype);  ///< keyword names for a vectorcall

  static nb::object name(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }
};

extern const Torch* torch;  ///< null before learn_torch; never destroyed

/// Stores the torch objects. `names` maps the name of each field without a default value to its object.
void learn_torch(const nb::dict& names);

[[nodiscard]] bool is_true(nb::handle x);

/// Returns an uninitialised float32 tensor on the device of `like`. It is faster than a call with nanobind's keyword
/// arguments.
[[nodiscard]] nb::object empty_float32(nb::handle like, const nb::tuple& shape, const nb::tuple& strides);

/// Returns torch's current stream on a device.
[[nodiscard]] Stream current_stream(Device device);

}  // namespace attend::python
