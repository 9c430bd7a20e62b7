#include "torch_api.hpp"

#include <cstdint>

namespace attend::python {

const Torch* torch = nullptr;

void learn_torch(const nb::dict& names) {
  const auto named = [&](const char* name) { return nb::object(names[name]); };
  const auto flag = [&](const char* name) { return is_true(named(name)); };
  torch = new Torch{.tensor = named("tensor"),
                    .parameter = named("parameter"),
                    .empty_like = named("empty_like"),
                    .new_empty_strided = named("new_empty_strided"),
                    .new_full = named("new_full"),
                    .float32 = named("float32"),
                    .int32 = named("int32"),
                    .raw_stream = named("raw_stream"),
                    .is_grad_enabled = named("is_grad_enabled"),
                    .is_any_autocast_enabled = named("is_any_autocast_enabled"),
                    .is_autocast_enabled = named("is_autocast_enabled"),
                    .autocast_dtype = named("autocast_dtype"),
                    .requires_determinism = named("requires_determinism"),
                    .is_inference = named("is_inference"),
                    .increment_version = named("increment_version"),
                    .forward_ad = named("forward_ad"),
                    .has_watchers = flag("has_watchers"),
                    .call_watchers = nb::tuple(named("call_watchers")),
                    .gradient_watchers = nb::tuple(named("gradient_watchers")),
                    .tensor_watchers = nb::tuple(named("tensor_watchers")),
                    .has_exchange_table = flag("has_exchange_table"),
                    .autocast = named("autocast"),
                    .apply = named("apply"),
                    .apply_packed = named("apply_packed"),
                    .run_forward = named("run_forward"),
                    .forward_with_extras = named("forward_with_extras"),
                    .run_backward = named("run_backward"),
                    .run_packed_backward = named("run_packed_backward"),
                    .with_required_determinism = named("with_required_determinism"),
                    .settings_type = named("settings_type"),
                    .no_extras = named("no_extras"),
                    .default_numbers = nb::tuple(named("default_numbers")),
                    .rotary_type = named("rotary_type")};
}

bool is_true(nb::handle x) {
  const int truth = PyObject_IsTrue(x.ptr());
  if (truth < 0) nb::raise_python_error();
  return truth != 0;
}

nb::object empty_float32(nb::handle like, const nb::tuple& shape, const nb::tuple& strides) {
  PyObject* const arguments[] = {like.ptr(), shape.ptr(), strides.ptr(), torch->float32.ptr()};
  constexpr std::size_t kByPosition = 3;
  nb::object made =
      nb::steal(PyObject_Vectorcall(torch->new_empty_strided.ptr(), arguments, kByPosition, torch->with_dtype.ptr()));
  if (!made.is_valid()) nb::raise_python_error();
  return made;
}

Stream current_stream(Device device) {
  if (device.type != DeviceType::kCUDA) return {};
  return reinterpret_cast<Stream>(nb::cast<std::uintptr_t>(torch->raw_stream(device.index)));
}

}  // namespace attend::python
