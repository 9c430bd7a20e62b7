// attend._core: the two calls of the library, and what this build and machine can do.
//
// The package's front ends (attend/_arrays.py, attend/torch) turn their tensors into Array and allocate the results;
// here the arguments become views, and the GIL is released while the library works.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <string>

#include "array.hpp"
#include "attend/attention.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"

namespace attend::python {
namespace {

using namespace nb::literals;

using MaybeArray = std::optional<Array>;

/// Params, and what its pointers point to.
struct Options {
  Params params;
  std::string compute;
};

/// The tensors that forward and backward have in common.
struct Views {
  Tensor q, k, v, o, lse;
};

template <class T>
T field(nb::handle named_tuple, const char* name) {
  return nb::cast<T>(named_tuple.attr(name));
}

MaybeArray array_field(nb::handle named_tuple, const char* name) {
  return field<MaybeArray>(named_tuple, name);
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
          .max_seqlen_q = field<std::int64_t>(settings, "max_seqlen_q"),
          .max_seqlen_k = field<std::int64_t>(settings, "max_seqlen_k")};
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

Views views_of(const Array& q, const Array& k, const Array& v, const Array& o, const Array& lse, Layout layout) {
  return {heads_view("q", q, layout), heads_view("k", k, layout), heads_view("v", v, layout),
          heads_view("o", o, layout), rows_view("lse", lse, layout)};
}

/// `extras` and `settings` are the named tuples of attend/_settings.py. The arrays in `extras` outlive the call: the
/// caller's frame holds the tuple.
Options options_of(const Array& q, const Array& k, const Array& v, nb::handle extras, nb::handle settings) {
  Options options;
  options.compute = field<std::string>(settings, "compute");
  Params& params = options.params;
  params.scale = field<std::optional<double>>(settings, "scale");
  params.causal = field<bool>(settings, "causal");
  params.window_left = field<std::int64_t>(settings, "window_left");
  params.window_right = field<std::int64_t>(settings, "window_right");
  params.softcap = field<double>(settings, "softcap");
  params.dropout_p = field<double>(settings, "dropout_p");
  // Frameworks have no unsigned 64-bit scalars: the bits travel in a signed one.
  params.seed = static_cast<std::uint64_t>(field<std::int64_t>(settings, "seed"));
  params.offset = static_cast<std::uint64_t>(field<std::int64_t>(settings, "offset"));
  params.deterministic = field<bool>(settings, "deterministic");
  const MaybeArray bias = array_field(extras, "bias");
  check_dtypes(q, k, v, bias, options.compute);
  if (bias) params.bias = scores_view("bias", *bias);
  if (const MaybeArray mask = array_field(extras, "mask")) params.mask = scores_view("mask", *mask);
  if (const MaybeArray slopes = array_field(extras, "alibi_slopes")) {
    params.alibi_slopes = slopes_view("alibi_slopes", *slopes);
  }
  if (const MaybeArray cu_seqlens_q = array_field(extras, "cu_seqlens_q")) {
    params.varlen = varlen_of(q, *cu_seqlens_q, array_field(extras, "cu_seqlens_k"), settings);
  }
  return options;
}

void forward(const Array& q, const Array& k, const Array& v, const Array& o, const Array& lse, nb::handle extras,
             nb::handle settings, std::uintptr_t stream) {
  const Views x = views_of(q, k, v, o, lse, layout_of(field<std::string>(settings, "layout")));
  Options options = options_of(q, k, v, extras, settings);
  options.params.compute = options.compute;
  const nb::gil_scoped_release release;
  attend::forward(x.q, x.k, x.v, x.o, &x.lse, options.params, reinterpret_cast<Stream>(stream));
}

/// dout, dlse in; dq, dk, dv, dbias out. dlse and dbias may be none.
struct Gradients {
  Tensor dout, dq, dk, dv;
  BackwardExtras extras;
};

Gradients gradients_of(nb::handle tuple, Layout layout) {
  Gradients g;
  g.dout = heads_view("dout", field<Array>(tuple, "dout"), layout);
  g.dq = heads_view("dq", field<Array>(tuple, "dq"), layout);
  g.dk = heads_view("dk", field<Array>(tuple, "dk"), layout);
  g.dv = heads_view("dv", field<Array>(tuple, "dv"), layout);
  if (const MaybeArray dlse = array_field(tuple, "dlse")) g.extras.dlse = rows_view("dlse", *dlse, layout);
  if (const MaybeArray dbias = array_field(tuple, "dbias")) g.extras.dbias = scores_view("dbias", *dbias);
  return g;
}

void backward(const Array& q, const Array& k, const Array& v, const Array& o, const Array& lse, nb::handle gradients,
              nb::handle extras, nb::handle settings, std::uintptr_t stream) {
  const Layout layout = layout_of(field<std::string>(settings, "layout"));
  const Views x = views_of(q, k, v, o, lse, layout);
  const Gradients g = gradients_of(gradients, layout);
  Options options = options_of(q, k, v, extras, settings);
  options.params.compute = options.compute;
  const nb::gil_scoped_release release;
  attend::backward(g.dout, x.q, x.k, x.v, x.o, x.lse, g.dq, g.dk, g.dv, options.params,
                   reinterpret_cast<Stream>(stream), g.extras);
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

/// The GPUs of this machine; none where there is no driver. Loads the driver.
nb::list gpu_list() {
  nb::list list;
  try {
    for (int index = 0; index < cuda::device_count(); ++index) {
      const cuda::DeviceInfo& gpu = cuda::device_info(index);
      nb::dict entry;
      entry["name"] = gpu.name;
      entry["compute_capability"] = std::to_string(gpu.major) + "." + std::to_string(gpu.minor);
      entry["multiprocessors"] = gpu.num_multiprocessors;
      entry["memory_bytes"] = gpu.memory_bytes;
      list.append(entry);
    }
  } catch (const Error&) {
    // That there is no GPU is the answer then.
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
  }
}

}  // namespace
}  // namespace attend::python

NB_MODULE(_core, m) {
  using namespace attend::python;
  m.attr("__version__") = attend::version();
  nb::register_exception_translator(translate);
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
  m.def("forward", &forward);
  m.def("backward", &backward);
  m.def("backends", &backend_list);
  m.def("gpus", &gpu_list);
  m.def("cpu_threads", &attend::cpu_threads);
  m.def("cpu_simd_target", &attend::cpu_simd_target);
}
