#include "torch_route.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "exchange.hpp"
#include "tensor_views.hpp"
#include "torch_api.hpp"

namespace attend::python {
namespace {

using nb::dlpack::dltensor;

/// Returns whether torch's dispatcher must do more than autograd and autocast, regardless of the tensors.
bool is_watched(const nb::tuple& watchers) {
  if (!torch->has_watchers) return true;
  if (nb::cast<std::int64_t>(nb::getattr(torch->forward_ad, torch->current_level)) >= 0) return true;
  for (const nb::handle watcher : watchers) {
    if (is_true(watcher())) return true;
  }
  return false;
}

bool needs_cast(std::span<const nb::handle> heads) {
  if (!is_true(torch->is_any_autocast_enabled())) return false;
  const nb::object& type = is_true(nb::getattr(heads[0], torch->is_cuda)) ? torch->cuda : torch->cpu;
  if (!is_true(torch->is_autocast_enabled(type))) return false;
  const nb::object wanted = torch->autocast_dtype(type);
  return !std::ranges::all_of(heads, [&](nb::handle x) { return nb::getattr(x, torch->dtype).is(wanted); });
}

}  // namespace

bool is_ordinary(nb::handle x, dltensor& memory) {
  const nb::handle type = x.type();
  if (!type.is(torch->tensor) && !type.is(torch->parameter)) return false;
  if (torch->has_exchange_table) {
    if (!try_exchange(x, memory)) return false;
    if (!is_on_gpu(memory) && memory.device.device_type != nb::device::cpu::value) return false;
    // A zero tensor of torch (`_efficientzerotensor`) has elements but no memory.
    if (memory.data == nullptr)
      return std::find(memory.shape, memory.shape + memory.ndim, 0) != memory.shape + memory.ndim;
  }
  for (const nb::handle watcher : torch->tensor_watchers) {
    if (is_true(watcher(x))) return false;
  }
  return true;
}

Route route_of(std::span<const nb::handle> heads, std::span<const nb::handle> others) {
  if (is_watched(torch->call_watchers)) return {};
  const bool records = is_true(torch->is_grad_enabled());
  Route route = {.is_direct = true};
  dltensor memory;
  for (const auto& tensors : {heads, others}) {
    for (const nb::handle x : tensors) {
      if (!is_ordinary(x, memory)) return {};
      if (records && !route.needs_autograd) route.needs_autograd = is_true(nb::getattr(x, torch->requires_grad));
    }
  }
  route.needs_cast = needs_cast(heads);
  return route;
}

bool is_direct_without_gradients(std::span<const nb::handle> tensors) {
  if (is_watched(torch->call_watchers)) return false;
  const bool records = is_true(torch->is_grad_enabled());
  dltensor memory;
  return std::ranges::all_of(tensors, [&](nb::handle x) {
    return is_ordinary(x, memory) && !(records && is_true(nb::getattr(x, torch->requires_grad)));
  });
}

bool engine_allows_direct_route() {
  // If gradients must be differentiable, torch.ops.attend handles the call. torch.ops.attend then refuses the call with
  // a message.
  return !is_true(torch->is_grad_enabled()) && !is_watched(torch->gradient_watchers);
}

bool backward_is_direct(const nb::tuple& saved, nb::handle dout, nb::handle dlse) {
  if (!engine_allows_direct_route()) return false;
  dltensor memory;
  for (const nb::handle x : saved) {
    if (!is_ordinary(x, memory)) return false;
  }
  return std::ranges::all_of(std::array{dout, dlse},
                             [&](nb::handle x) { return x.is_none() || is_ordinary(x, memory); });
}

}  // namespace attend::python
