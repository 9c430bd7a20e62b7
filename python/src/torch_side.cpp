#include "torch_side.hpp"

#include <cstdint>

#include "exchange.hpp"
#include "tensor_views.hpp"

namespace attend::python {

using nb::dlpack::dltensor;

const Torch* torch = nullptr;

void learn_torch(const nb::dict& names) {
  const auto named = [&](const char* name) { return nb::object(names[name]); };
  torch = new Torch{.tensor = named("tensor"),
                    .parameter = named("parameter"),
                    .is_neg = named("is_neg"),
                    .empty_like = named("empty_like"),
                    .new_empty_strided = named("new_empty_strided"),
                    .float32 = named("float32"),
                    .raw_stream = named("raw_stream"),
                    .is_grad_enabled = named("is_grad_enabled"),
                    .is_any_autocast_enabled = named("is_any_autocast_enabled"),
                    .is_autocast_enabled = named("is_autocast_enabled"),
                    .autocast_dtype = named("autocast_dtype"),
                    .wants_determinism = named("wants_determinism"),
                    .as_torch_is_told = named("as_torch_is_told"),
                    .forward_ad = named("forward_ad"),
                    .no_extras = named("no_extras"),
                    .watchers = nb::tuple(named("watchers")),
                    .gradients_watchers = nb::tuple(named("gradients_watchers"))};
}

bool is_true(nb::handle x) {
  const int truth = PyObject_IsTrue(x.ptr());
  if (truth < 0) nb::raise_python_error();
  return truth != 0;
}

bool is_watched(const nb::tuple& watchers) {
  if (nb::cast<std::int64_t>(nb::getattr(torch->forward_ad, torch->current_level)) >= 0) return true;
  for (const nb::handle watcher : watchers) {
    if (is_true(watcher())) return true;
  }
  return false;
}

bool is_plain(nb::handle x, dltensor& memory) {
  const nb::handle type = x.type();
  if (!type.is(torch->tensor) && !type.is(torch->parameter)) return false;
  if (!try_exchange(x, memory)) return false;
  if (!is_on_gpu(memory) && memory.device.device_type != nb::device::cpu::value) return false;
  if (memory.data == nullptr) {
    for (int d = 0; d < memory.ndim; ++d) {
      if (memory.shape[d] == 0) return true;
    }
    return false;  // zeros without memory
  }
  return !is_true(torch->is_neg(x));
}

int way_of(std::span<const nb::handle> given) {
  if (is_watched(torch->watchers)) return 0;
  int way = kShort;
  dltensor memory;
  for (const nb::handle x : given) {
    if (!is_plain(x, memory)) return 0;
    if ((way & kAutograd) == 0 && is_true(nb::getattr(x, torch->requires_grad))) way |= kAutograd;
  }
  if ((way & kAutograd) != 0 && !is_true(torch->is_grad_enabled())) way -= kAutograd;
  const bool may_cast = is_true(torch->is_any_autocast_enabled());
  if (may_cast && is_true(torch->is_autocast_enabled(is_on_gpu(memory) ? torch->cuda : torch->cpu))) way |= kAutocast;
  return way;
}

bool is_cast(std::span<const nb::handle> given) {
  const nb::object& type = is_on_gpu(exchanged_tensor(given[0])) ? torch->cuda : torch->cpu;
  const nb::object wanted = torch->autocast_dtype(type);
  for (const nb::handle x : given) {
    if (!nb::getattr(x, torch->dtype).is(wanted)) return false;
  }
  return true;
}

Stream current_stream(const Tensor& x) {
  if (x.device.type != DeviceType::kCUDA) return {};
  return reinterpret_cast<Stream>(nb::cast<std::uintptr_t>(torch->raw_stream(x.device.index)));
}

}  // namespace attend::python
