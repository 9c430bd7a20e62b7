// The extension module attend._core. This file has the calls of the library and the properties of this build. Other
// files add GPU functions (gpu_services.cpp), calls on torch tensors (torch_attention.cpp, torch_serving.cpp), ring
// attention (ring.cpp) and serving (serving.cpp).
//
// The Python front ends (attend/_arrays.py, attend/torch) convert their tensors to Arrays and allocate the results. The
// functions of this module convert the arguments to views. These functions release the GIL while the library runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "attend/attention.hpp"
#include "cache.hpp"
#include "core/aliases.hpp"
#include "core/problem.hpp"
#include "core/source_digests.hpp"
#include "cpu/parallel.hpp"
#include "exchange.hpp"
#include "gpu_services.hpp"
#include "ort/operators.hpp"
#include "probe/cpu_peak.hpp"
#include "ring.hpp"
#include "score.hpp"
#include "serving.hpp"
#include "torch_attention.hpp"
#include "torch_serving.hpp"
#include "xla_handlers.hpp"

namespace attend::python {
namespace {

using namespace nb::literals;

void forward(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in, nb::handle extras,
             nb::handle settings, std::uintptr_t stream) {
  run_forward({q_in, k_in, v_in, o_in, lse_in, nb::none(), extras, settings}, reinterpret_cast<Stream>(stream));
}

void backward(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in,
              nb::handle gradients, nb::handle extras, nb::handle settings, std::uintptr_t stream) {
  run_backward({q_in, k_in, v_in, o_in, lse_in, gradients, extras, settings}, reinterpret_cast<Stream>(stream));
}

/// Checks shapes, strides, dtypes and settings in the same way as a forward or backward call. Reads no tensor memory.
/// If `gradients` is None, checks a forward call. The device of the arrays must be a GPU. The library reads the offsets
/// of packed sequences only if they are in CPU memory.
void check(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in, nb::handle gradients,
           nb::handle extras, nb::handle settings) {
  const Call call(q_in, k_in, v_in, o_in, lse_in, gradients, extras, settings);
  std::ignore = call.gradients ? core::make_problem(call.backward()) : core::make_problem(call.forward());
}

/// Refuses a setting that has the wrong type. The message names the setting.
void check_settings(nb::handle settings) {
  std::ignore = options_without_extras(settings);
  std::ignore = layout_of_call(settings);
  check_lengths(settings);
}

nb::list explain(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in,
                 nb::handle gradients, nb::handle extras, nb::handle settings) {
  const Call call(q_in, k_in, v_in, o_in, lse_in, gradients, extras, settings);
  const Plan plan = call.gradients ? attend::plan(call.backward()) : attend::plan(call.forward());
  nb::list list;
  for (const Candidate& c : plan.explanation()) {
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
  const nb::gil_scoped_release release;
  (call.gradients ? plan(call.backward()) : plan(call.forward())).prepare();
}

nb::list backend_list() {
  nb::list list;
  for (const BackendInfo& backend : backends()) {
    nb::dict entry;
    entry["name"] = backend.name;
    entry["description"] = backend.description;
    entry["device"] = backend.device == DeviceType::kCPU ? "cpu" : "cuda";
    entry["has_backward"] = backend.has_backward;
    nb::list aliases;
    for (const core::Alias& alias : core::aliases()) {
      if (backend.name == alias.stands_for) aliases.append(alias.name);
    }
    entry["aliases"] = aliases;
    list.append(entry);
  }
  return list;
}

/// Returns the peak GFLOP/s for each dtype. bf16 is included only if the processor has instructions that multiply
/// bfloat16.
std::map<std::string, double> cpu_peak_gflops(int threads) {
  std::map<std::string, double> peaks = {{"f32", cpu::f32_peak_gflops(threads)}};
  if (const double bf16 = cpu::bf16_peak_gflops(threads); bf16 > 0) peaks["bf16"] = bf16;
  return peaks;
}

nb::dict source_digests() {
  nb::dict digests;
  for (const core::SourceDigest& source : core::source_digests()) digests[source.part.data()] = source.digest;
  return digests;
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
    PyErr_SetString(type.ptr(), in_pythons_words(error.what()).c_str());
  } catch (const cpu::Interrupted&) {
    // A signal handler has already set a Python exception, usually KeyboardInterrupt.
  }
}

/// Runs Python's signal handlers. Returns true if a handler has raised an exception. The calling thread need not hold
/// the GIL.
bool a_signal_raised() {
  if (is_thread_of_xla() || ort::is_running()) return false;
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
  add_names(m);
  m.def("has_exchange_table", &has_exchange_table);
  m.def("forward", &forward, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a.none(), "extras"_a, "settings"_a, "stream"_a);
  m.def("backward", &backward);
  m.def("check_settings", &check_settings, "settings"_a);
  m.def("check", &check, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a, "gradients"_a.none(), "extras"_a, "settings"_a);
  m.def("explain", &explain, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a, "gradients"_a.none(), "extras"_a, "settings"_a);
  m.def("prepare", &prepare, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a, "gradients"_a.none(), "extras"_a, "settings"_a);
  m.def("backends", &backend_list);
  m.def("cpu_threads", &attend::cpu_threads);
  m.def("set_cpu_threads", &attend::set_cpu_threads, "threads"_a);
  m.def("cpu_simd_target", &attend::cpu_simd_target);
  m.def("cpu_bf16_unit", &attend::cpu_bf16_unit);
  m.def("cpu_peak_gflops", &cpu_peak_gflops, "threads"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("source_digests", &source_digests);
  add_gpu_services(m);
  add_cache(m);
  add_ring(m);
  add_score(m);
  add_serving(m);
  add_torch_attention(m);
  add_torch_serving(m);
  add_xla_handlers(m);
}
