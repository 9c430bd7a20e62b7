// attend._core: the two calls of the library, and what this build can do; what it asks of GPUs is in gpu_services.cpp.
//
// The package's front ends (attend/_arrays.py, attend/torch) turn their tensors into Array and allocate the results;
// here the arguments become views, and the GIL is released while the library works.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "array.hpp"
#include "attend/attention.hpp"
#include "core/problem.hpp"
#include "cpu/parallel.hpp"
#include "exchange.hpp"
#include "gpu_services.hpp"

namespace attend::python {
namespace {

using namespace nb::literals;

using MaybeArray = std::optional<Array>;

/// Params, and what its pointers point to.
struct Options {
  Params params;
  std::string compute;
};

/// The tensors that forward and backward have in common. forward may go without lse.
struct Views {
  Tensor q, k, v, o;
  std::optional<Tensor> lse;
};

// The fields of the named tuples of attend/_settings.py, by position: a call reads some twenty of them. The package's
// tests compare the names with what NB_MODULE exports.
constexpr const char* kExtrasFields[] = {"bias",         "mask",         "alibi_slopes",
                                         "cu_seqlens_q", "cu_seqlens_k", "philox_state"};
enum class Extra : std::uint8_t { kBias, kMask, kAlibiSlopes, kCuSeqlensQ, kCuSeqlensK, kPhiloxState };

constexpr const char* kSettingsFields[] = {"max_seqlen_q", "max_seqlen_k",  "layout",  "scale",     "causal",
                                           "window_left",  "window_right",  "softcap", "dropout_p", "seed",
                                           "offset",       "deterministic", "compute"};
enum class Setting : std::uint8_t {
  kMaxSeqlenQ,
  kMaxSeqlenK,
  kLayout,
  kScale,
  kCausal,
  kWindowLeft,
  kWindowRight,
  kSoftcap,
  kDropoutP,
  kSeed,
  kOffset,
  kDeterministic,
  kCompute
};

constexpr const char* kGradientsFields[] = {"dout", "dlse", "dq", "dk", "dv", "dbias"};
enum class Gradient : std::uint8_t { kDout, kDlse, kDq, kDk, kDv, kDbias };

template <class Field>
nb::handle item(nb::handle named_tuple, Field field) {
  PyObject* found = PyTuple_GetItem(named_tuple.ptr(), static_cast<Py_ssize_t>(field));
  if (found == nullptr) nb::raise_python_error();
  return found;
}

/// What a setting is, as a value of type T. A number may come as any object that has one.
/// @throws Error (kInvalidArgument) naming the setting, for another type.
template <class T>
T setting(nb::handle settings, Setting field) {
  const nb::handle value = item(settings, field);
  const auto refuse = [&](const char* allowed) {
    PyErr_Clear();
    throw Error(ErrorCode::kInvalidArgument, std::string(kSettingsFields[static_cast<std::size_t>(field)]) + ": " +
                                                 nb::cast<std::string>(nb::repr(value)) + ", allowed " + allowed);
  };
  if constexpr (std::is_same_v<T, bool>) {
    for (const bool known : {true, false}) {
      const int equal = PyObject_RichCompareBool(value.ptr(), known ? Py_True : Py_False, Py_EQ);
      if (equal == 1) return known;
      if (equal < 0) break;
    }
    refuse("True or False");
  } else if constexpr (std::is_same_v<T, double>) {
    const double number = PyFloat_AsDouble(value.ptr());
    if (PyErr_Occurred() != nullptr) refuse("a number");
    return number;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    const nb::object number = nb::steal(PyNumber_Index(value.ptr()));
    const std::int64_t whole = number.is_valid() ? PyLong_AsLongLong(number.ptr()) : 0;
    if (PyErr_Occurred() != nullptr) refuse("a whole number of 64 bits");
    return whole;
  } else {
    static_assert(std::is_same_v<T, std::string>);
    if (!nb::isinstance<nb::str>(value)) refuse("a string");
    return nb::cast<std::string>(value);
  }
  return {};
}

template <class Field>
MaybeArray maybe_array(nb::handle named_tuple, Field field) {
  const nb::handle found = item(named_tuple, field);
  return found.is_none() ? MaybeArray() : MaybeArray(Array::view(found));
}

Varlen varlen_of(const Array& q, const Array& cu_seqlens_q, const MaybeArray& cu_seqlens_k, nb::handle settings) {
  if (!cu_seqlens_k) throw Error(ErrorCode::kInvalidArgument, "cu_seqlens_k: None, allowed an array like cu_seqlens_q");
  if (cu_seqlens_k->num_dims == 1 && cu_seqlens_q.num_dims == 1 && cu_seqlens_k->shape[0] != cu_seqlens_q.shape[0]) {
    throw Error(ErrorCode::kInvalidArgument, "cu_seqlens_k: " + std::to_string(cu_seqlens_k->shape[0]) +
                                                 " entries, allowed as many as cu_seqlens_q, " +
                                                 std::to_string(cu_seqlens_q.shape[0]));
  }
  return {.cu_seqlens_q = offsets_view("cu_seqlens_q", cu_seqlens_q, q.device),
          .cu_seqlens_k = offsets_view("cu_seqlens_k", *cu_seqlens_k, q.device),
          .num_sequences = cu_seqlens_q.shape[0] - 1,
          .max_seqlen_q = setting<std::int64_t>(settings, Setting::kMaxSeqlenQ),
          .max_seqlen_k = setting<std::int64_t>(settings, Setting::kMaxSeqlenK)};
}

/// The `reference` backend takes any mix of types, and "auto" would fall back to it: right, and slow beyond
/// expectation.
void check_dtypes(const Array& q, const Array& k, const Array& v, const MaybeArray& bias, const std::string& compute) {
  if (compute == "reference") return;
  const auto refuse = [&](const char* name, const Array& a, const std::string& allowed) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + ": dtype " + a.dtype + ", allowed " + allowed + " (any with compute='reference')");
  };
  if (k.dtype != q.dtype) refuse("k", k, q.dtype + " as q");
  if (v.dtype != q.dtype) refuse("v", v, q.dtype + " as q");
  if (bias && bias->dtype == "f64" && q.dtype != "f64") refuse("bias", *bias, "f32, f16, bf16");
}

Views views_of(const Array& q, const Array& k, const Array& v, nb::handle o, nb::handle lse, Layout layout) {
  Views x = {heads_view("q", q, layout), heads_view("k", k, layout), heads_view("v", v, layout),
             heads_view("o", Array::view(o), layout), std::nullopt};
  if (!lse.is_none()) x.lse = rows_view("lse", Array::view(lse), layout);
  return x;
}

/// `extras` and `settings` are the named tuples of attend/_settings.py. The arrays in `extras` outlive the call: the
/// caller's frame holds the tuple.
Options options_of(const Array& q, const Array& k, const Array& v, nb::handle extras, nb::handle settings) {
  Options options;
  options.compute = setting<std::string>(settings, Setting::kCompute);
  Params& params = options.params;
  if (!item(settings, Setting::kScale).is_none()) params.scale = setting<double>(settings, Setting::kScale);
  params.causal = setting<bool>(settings, Setting::kCausal);
  params.window_left = setting<std::int64_t>(settings, Setting::kWindowLeft);
  params.window_right = setting<std::int64_t>(settings, Setting::kWindowRight);
  params.softcap = setting<double>(settings, Setting::kSoftcap);
  params.dropout_p = setting<double>(settings, Setting::kDropoutP);
  // Frameworks have no unsigned 64-bit scalars: the bits travel in a signed one.
  params.seed = static_cast<std::uint64_t>(setting<std::int64_t>(settings, Setting::kSeed));
  params.offset = static_cast<std::uint64_t>(setting<std::int64_t>(settings, Setting::kOffset));
  if (const MaybeArray state = maybe_array(extras, Extra::kPhiloxState)) {
    const std::int64_t* seed_and_offset = philox_state_view("philox_state", *state);
    params.seed = static_cast<std::uint64_t>(seed_and_offset[0]);
    params.offset = static_cast<std::uint64_t>(seed_and_offset[1]);
  }
  params.deterministic = setting<bool>(settings, Setting::kDeterministic);
  const MaybeArray bias = maybe_array(extras, Extra::kBias);
  check_dtypes(q, k, v, bias, options.compute);
  if (bias) params.bias = scores_view("bias", *bias);
  if (const MaybeArray mask = maybe_array(extras, Extra::kMask)) params.mask = scores_view("mask", *mask);
  if (const MaybeArray slopes = maybe_array(extras, Extra::kAlibiSlopes)) {
    params.alibi_slopes = slopes_view("alibi_slopes", *slopes);
  }
  if (const MaybeArray cu_seqlens_q = maybe_array(extras, Extra::kCuSeqlensQ)) {
    params.varlen = varlen_of(q, *cu_seqlens_q, maybe_array(extras, Extra::kCuSeqlensK), settings);
  }
  return options;
}

void forward(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in, nb::handle extras,
             nb::handle settings, std::uintptr_t stream) {
  const Array q = Array::view(q_in), k = Array::view(k_in), v = Array::view(v_in);
  const Views x = views_of(q, k, v, o_in, lse_in, layout_of(setting<std::string>(settings, Setting::kLayout)));
  Options options = options_of(q, k, v, extras, settings);
  options.params.compute = options.compute;
  const nb::gil_scoped_release release;
  attend::forward(x.q, x.k, x.v, x.o, x.lse ? &*x.lse : nullptr, options.params, reinterpret_cast<Stream>(stream));
}

/// dout, dlse in; dq, dk, dv, dbias out. dlse and dbias may be none.
struct Gradients {
  Tensor dout, dq, dk, dv;
  BackwardExtras extras;
};

Gradients gradients_of(nb::handle tuple, Layout layout) {
  Gradients g;
  g.dout = heads_view("dout", Array::view(item(tuple, Gradient::kDout)), layout);
  g.dq = heads_view("dq", Array::view(item(tuple, Gradient::kDq)), layout);
  g.dk = heads_view("dk", Array::view(item(tuple, Gradient::kDk)), layout);
  g.dv = heads_view("dv", Array::view(item(tuple, Gradient::kDv)), layout);
  if (const MaybeArray dlse = maybe_array(tuple, Gradient::kDlse)) g.extras.dlse = rows_view("dlse", *dlse, layout);
  if (const MaybeArray dbias = maybe_array(tuple, Gradient::kDbias)) g.extras.dbias = scores_view("dbias", *dbias);
  return g;
}

/// As check_dtypes, of what only backward takes.
void check_output_dtypes(const Views& x, const Gradients& g, const std::string& compute) {
  if (compute == "reference") return;
  for (const auto& [name, tensor] : {std::pair{"o", &x.o}, {"dout", &g.dout}}) {
    if (tensor->dtype == x.q.dtype) continue;
    throw Error(ErrorCode::kInvalidArgument, std::string(name) + ": dtype " + dtype_name(tensor->dtype) + ", allowed " +
                                                 dtype_name(x.q.dtype) + " as q (any with compute='reference')");
  }
}

void backward(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in,
              nb::handle gradients, nb::handle extras, nb::handle settings, std::uintptr_t stream) {
  const Array q = Array::view(q_in), k = Array::view(k_in), v = Array::view(v_in);
  const Layout layout = layout_of(setting<std::string>(settings, Setting::kLayout));
  const Views x = views_of(q, k, v, o_in, lse_in, layout);
  const Gradients g = gradients_of(gradients, layout);
  Options options = options_of(q, k, v, extras, settings);
  check_output_dtypes(x, g, options.compute);
  options.params.compute = options.compute;
  const nb::gil_scoped_release release;
  attend::backward(g.dout, x.q, x.k, x.v, x.o, x.lse.value(), g.dq, g.dk, g.dv, options.params,
                   reinterpret_cast<Stream>(stream), g.extras);
}

/// All that a call is given. `gradients` none: forward.
struct Call {
  Views x;
  Options options;
  std::optional<Gradients> gradients = {};

  Call(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in, nb::handle tuple,
       nb::handle extras, nb::handle settings) {
    const Array q = Array::view(q_in), k = Array::view(k_in), v = Array::view(v_in);
    const Layout layout = layout_of(setting<std::string>(settings, Setting::kLayout));
    x = views_of(q, k, v, o_in, lse_in, layout);
    options = options_of(q, k, v, extras, settings);
    if (!tuple.is_none()) gradients = gradients_of(tuple, layout);
  }
  [[nodiscard]] const Tensor* lse() const { return x.lse ? &*x.lse : nullptr; }
};

/// What forward and backward refuse of shapes, strides, dtypes and settings, and nothing else: no memory is looked at.
/// `gradients` none: forward. The arrays say that they are on a GPU, where offsets of packed sequences are not read.
void check(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in, nb::handle gradients,
           nb::handle extras, nb::handle settings) {
  const Call call(q_in, k_in, v_in, o_in, lse_in, gradients, extras, settings);
  const Views& x = call.x;
  if (!call.gradients) {
    std::ignore = core::make_forward_problem(x.q, x.k, x.v, x.o, call.lse(), call.options.params);
    return;
  }
  const Gradients& g = *call.gradients;
  std::ignore = core::make_backward_problem(g.dout, x.q, x.k, x.v, x.o, x.lse.value(), g.dq, g.dk, g.dv,
                                            call.options.params, g.extras);
}

nb::list explain(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in,
                 nb::handle gradients, nb::handle extras, nb::handle settings) {
  const Call call(q_in, k_in, v_in, o_in, lse_in, gradients, extras, settings);
  const Views& x = call.x;
  Params params = call.options.params;
  params.compute = call.options.compute;
  const Gradients g = call.gradients.value_or(Gradients{});
  const auto candidates =
      call.gradients ? explain_backward(g.dout, x.q, x.k, x.v, x.o, x.lse.value(), g.dq, g.dk, g.dv, params, g.extras)
                     : explain_forward(x.q, x.k, x.v, x.o, call.lse(), params);
  nb::list list;
  for (const Candidate& c : candidates) {
    nb::dict entry;
    entry["compute"] = c.compute;
    entry["chosen"] = c.chosen;
    entry["lack"] = c.lack;
    entry["why"] = c.why;
    entry["variant"] = c.variant;
    nb::list steps;
    for (const std::string& step : c.steps) steps.append(step);
    entry["steps"] = steps;
    entry["estimated_us"] = c.estimated_us;
    entry["workspace_bytes"] = c.workspace_bytes;
    list.append(entry);
  }
  return list;
}

void prepare(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in,
             nb::handle gradients, nb::handle extras, nb::handle settings) {
  const Call call(q_in, k_in, v_in, o_in, lse_in, gradients, extras, settings);
  const Views& x = call.x;
  Params params = call.options.params;
  params.compute = call.options.compute;
  const nb::gil_scoped_release release;
  if (!call.gradients) return prepare_forward(x.q, x.k, x.v, x.o, call.lse(), params);
  const Gradients& g = *call.gradients;
  prepare_backward(g.dout, x.q, x.k, x.v, x.o, x.lse.value(), g.dq, g.dk, g.dv, params, g.extras);
}

template <std::size_t kCount>
nb::tuple names(const char* const (&fields)[kCount]) {
  nb::list list;
  for (const char* name : fields) list.append(name);
  return nb::tuple(list);
}

nb::list backend_list() {
  nb::list list;
  for (const BackendInfo& backend : backends()) {
    nb::dict entry;
    entry["name"] = backend.name;
    entry["description"] = backend.description;
    entry["device"] = backend.device == DeviceType::kCPU ? "cpu" : "cuda";
    entry["has_backward"] = backend.has_backward;
    list.append(entry);
  }
  return list;
}

const char* exception_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "ArgumentError";
    case ErrorCode::kUnsupported:
      return "UnsupportedError";
    default:
      return "RunError";
  }
}

void translate(const std::exception_ptr& exception, void* /*payload*/) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    const nb::object type = nb::module_::import_("attend._errors").attr(exception_name(error.code()));
    PyErr_SetString(type.ptr(), error.what());
  } catch (const cpu::Interrupted&) {
    // The handler of a signal has raised: KeyboardInterrupt, as a rule.
  }
}

/// Lets Python's signal handlers run. True where one of them has raised. The thread may have released the GIL.
bool a_signal_raised() {
  const nb::gil_scoped_acquire acquire;
  return PyErr_CheckSignals() != 0;
}

}  // namespace
}  // namespace attend::python

NB_MODULE(_core, m) {
  using namespace attend::python;
  m.attr("__version__") = attend::version();
  nb::register_exception_translator(translate);
  attend::cpu::set_interrupt_check(a_signal_raised);
  nb::class_<Array>(m, "Array")
      .def_static("of", &Array::of, "object"_a, "dtype"_a = "")
      .def_static("at", &Array::at, "owner"_a, "address"_a, "dtype"_a, "cuda_index"_a, "shape"_a, "strides"_a)
      .def_ro("dtype", &Array::dtype)
      .def_prop_ro("shape",
                   [](const Array& a) {
                     nb::list sizes;
                     for (int d = 0; d < a.num_dims; ++d) sizes.append(a.shape[d]);
                     return nb::tuple(sizes);
                   })
      .def_prop_ro("cuda_index",
                   [](const Array& a) { return a.device.type == attend::DeviceType::kCPU ? -1 : a.device.index; });
  m.attr("EXTRAS_FIELDS") = names(kExtrasFields);
  m.attr("SETTINGS_FIELDS") = names(kSettingsFields);
  m.attr("GRADIENTS_FIELDS") = names(kGradientsFields);
  m.def("has_exchange_table", &has_exchange_table);
  m.def("forward", &forward, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a.none(), "extras"_a, "settings"_a, "stream"_a);
  m.def("backward", &backward);
  m.def("check", &check, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a, "gradients"_a.none(), "extras"_a, "settings"_a);
  m.def("explain", &explain, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a, "gradients"_a.none(), "extras"_a, "settings"_a);
  m.def("prepare", &prepare, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a, "gradients"_a.none(), "extras"_a, "settings"_a);
  m.def("backends", &backend_list);
  m.def("cpu_threads", &attend::cpu_threads);
  m.def("cpu_simd_target", &attend::cpu_simd_target);
  add_gpu_services(m);
}
