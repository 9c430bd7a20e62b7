#include "torch_attention.hpp"

#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "attend/error.hpp"
#include "read_settings.hpp"
#include "torch_api.hpp"
#include "torch_results.hpp"
#include "torch_route.hpp"

namespace attend::python {
namespace {

using namespace nb::literals;

/// Returns the result of a call that the direct route does not support. attend/torch/_front.py then calls
/// torch.ops.attend.
nb::object not_direct() {
  return nb::none();
}

/// Returns o, or (o, lse) if the caller requested lse.
nb::object o_or_both(ForwardResults&& results, bool wants_lse) {
  return wants_lse ? nb::object(nb::make_tuple(results.o, results.lse)) : std::move(results.o);
}

/// Runs a forward pass without autograd. route_of must have accepted the tensors.
ForwardResults computed(nb::handle q, nb::handle k, nb::handle v, nb::handle extras, nb::handle settings,
                        bool return_lse) {
  if (extras.is(torch->no_extras)) {
    if (ForwardResults results = forward_results(q, k, v, settings, return_lse); results.is_valid()) return results;
  }
  const nb::object both = torch->run_forward(q, k, v, extras, settings, return_lse);
  return {both[0], both[1]};
}

/// Calls Attention.apply with extras. Each option that has a gradient is also passed as a separate argument, because
/// autograd ignores tensors inside a tuple.
template <std::size_t... kOption>
nb::object apply_with_extras(const std::array<nb::handle, 3>& heads, nb::handle settings, bool wants_lse,
                             nb::handle extras, std::index_sequence<kOption...> /*options*/) {
  const auto& [q, k, v] = heads;
  const auto option = [&](std::size_t at) { return NB_TUPLE_GET_ITEM(extras.ptr(), static_cast<Py_ssize_t>(at)); };
  return torch->apply(q, k, v, settings, wants_lse, extras, nb::handle(option(kOptionsWithGradient[kOption]))...);
}

/// Returns o, or (o, lse). `others` contains the tensors in extras.
nb::object call(std::array<nb::handle, 3> heads, std::span<const nb::handle> others, nb::handle extras,
                nb::handle settings, nb::handle return_lse) {
  const Route route = route_of(heads, others);
  if (!route.is_direct) return not_direct();
  nb::object cast;  // keeps alive the tensors that autocast has converted
  if (route.needs_cast) {
    cast = torch->autocast(heads[0], heads[1], heads[2]);
    for (std::size_t i = 0; i < heads.size(); ++i) heads[i] = PyTuple_GetItem(cast.ptr(), static_cast<Py_ssize_t>(i));
  }
  const auto& [q, k, v] = heads;
  const bool wants_lse = is_true(return_lse);
  if (!route.needs_autograd) return o_or_both(computed(q, k, v, extras, settings, wants_lse), wants_lse);
  // Every argument of an autograd function takes time, so extras are passed only if there are any.
  if (extras.is(torch->no_extras)) return torch->apply(q, k, v, settings, wants_lse);
  return apply_with_extras(heads, settings, wants_lse, extras, std::make_index_sequence<kOptionsWithGradient.size()>());
}

nb::object direct_attention(nb::handle q, nb::handle k, nb::handle v, nb::handle extras, nb::handle settings,
                            nb::handle return_lse) {
  if (torch == nullptr) return not_direct();
  if (extras.is(torch->no_extras)) return call({q, k, v}, {}, extras, settings, return_lse);
  std::vector<nb::handle> others;
  for (const nb::handle x : nb::borrow<nb::tuple>(extras)) {
    if (!x.is_none()) others.push_back(x);
  }
  return call({q, k, v}, others, extras, settings, return_lse);
}

nb::object direct_attention_qkvpacked(nb::handle qkv, nb::handle settings, nb::handle return_lse) {
  if (torch == nullptr) return not_direct();
  const Route route = route_of(std::array{qkv});
  if (!route.is_direct) return not_direct();
  nb::object cast;  // keeps alive the tensor that autocast has converted
  if (route.needs_cast) {
    cast = torch->autocast(qkv)[0];
    qkv = cast;
  }
  if (!is_packed(qkv)) return not_direct();
  const bool wants_lse = is_true(return_lse);
  if (route.needs_autograd) return torch->apply_packed(qkv, settings, wants_lse);
  return o_or_both(forward_results_packed(qkv, settings, wants_lse), wants_lse);
}

nb::object attention_of_options(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& options,
                                nb::handle return_lse) {
  if (torch == nullptr) return not_direct();
  const auto settings = settings_of_options(options);
  if (settings == nullptr) return not_direct();
  return call({q, k, v}, {}, torch->no_extras, settings->tuple, return_lse);
}

nb::object attention_qkvpacked_of_options(nb::handle qkv, const nb::tuple& options, nb::handle return_lse) {
  if (torch == nullptr) return not_direct();
  const auto settings = settings_of_options(options);
  if (settings == nullptr) return not_direct();
  return direct_attention_qkvpacked(qkv, settings->tuple, return_lse);
}

/// Returns the result of the autograd function: o, or (o, lse). Stores the settings in the context, because backward
/// needs them.
nb::object finish_forward(nb::handle context, ForwardResults&& results, nb::handle settings, bool return_lse) {
  nb::setattr(context, torch->settings, settings);
  if (return_lse) context.attr(torch->set_materialize_grads)(false);
  return o_or_both(std::move(results), return_lse);
}

/// Returns the saved tensors. This function must be called only once, because an activation checkpoint can unpack saved
/// tensors only once.
nb::tuple saved_in(nb::handle context) {
  return nb::borrow<nb::tuple>(nb::getattr(context, torch->saved_tensors));
}

/// Implements Attention.forward. Returns o, or (o, lse). route_of must have accepted the tensors. `options` contains
/// tensors that are also in `extras`. autograd computes gradients only for tensors that are arguments.
nb::object attention_forward(nb::handle context, nb::handle q, nb::handle k, nb::handle v, nb::handle settings,
                             bool return_lse, nb::handle extras, const nb::args& /*options*/) {
  if (!extras.is_none()) {
    const nb::object both = torch->forward_with_extras(context, q, k, v, extras, settings);
    return finish_forward(context, {both[0], both[1]}, settings, return_lse);
  }
  ForwardResults results = computed(q, k, v, torch->no_extras, settings, true);
  context.attr(torch->save_for_backward)(q, k, v, results.o, results.lse);
  return finish_forward(context, std::move(results), settings, return_lse);
}

/// Implements Attention.backward. Returns one gradient for each argument of attention_forward except the context.
nb::object attention_backward(nb::handle context, nb::handle dout, nb::handle dlse) {
  const nb::tuple saved = saved_in(context);
  const auto [dq, dk, dv] = backward_results(saved, dout, dlse, nb::getattr(context, torch->settings));
  if (dv.is_valid()) return nb::make_tuple(dq, dk, dv, nb::none(), nb::none());
  return torch->run_backward(context, saved, dout, dlse, backward_is_direct(saved, dout, dlse));
}

/// Implements PackedAttention.forward. is_packed must have accepted the tensor.
nb::object packed_forward(nb::handle context, nb::handle qkv, nb::handle settings, bool return_lse) {
  ForwardResults results = forward_results_packed(qkv, settings, true);
  if (!results.is_valid()) throw Error(ErrorCode::kInternal, "qkv: the tensor has changed during the call");
  context.attr(torch->save_for_backward)(qkv, results.o, results.lse);
  return finish_forward(context, std::move(results), settings, return_lse);
}

nb::object packed_backward(nb::handle context, nb::handle dout, nb::handle dlse) {
  const nb::tuple saved = saved_in(context);
  nb::object dqkv = backward_results_packed(saved, dout, dlse, nb::getattr(context, torch->settings));
  if (!dqkv.is_valid()) {
    dqkv = torch->run_packed_backward(context, saved, dout, dlse, backward_is_direct(saved, dout, dlse));
  }
  return nb::make_tuple(dqkv, nb::none(), nb::none());
}

/// Returns (is_direct, needs_autograd, needs_cast). `heads` is (q, k, v) or (qkv,).
nb::tuple route_in_python(const nb::tuple& heads, const nb::tuple& others) {
  if (torch == nullptr) return nb::make_tuple(false, false, false);
  const auto [is_direct, needs_autograd, needs_cast] = route_of(std::vector<nb::handle>(heads.begin(), heads.end()),
                                                                std::vector<nb::handle>(others.begin(), others.end()));
  return nb::make_tuple(is_direct, needs_autograd, needs_cast);
}

}  // namespace

void add_torch_attention(nb::module_& m) {
  add_options(m);
  m.def("learn_torch", &learn_torch);
  m.def("route_of", &route_in_python);
  // None is allowed for tensors here. The other route then reports the argument by name.
  m.def("direct_attention", &direct_attention, "q"_a.none(), "k"_a.none(), "v"_a.none(), "extras"_a, "settings"_a,
        "return_lse"_a.none());
  m.def("direct_attention_qkvpacked", &direct_attention_qkvpacked, "qkv"_a.none(), "settings"_a, "return_lse"_a.none());
  m.def("attention_of_options", &attention_of_options, "q"_a.none(), "k"_a.none(), "v"_a.none(), "options"_a,
        "return_lse"_a.none());
  m.def("attention_qkvpacked_of_options", &attention_qkvpacked_of_options, "qkv"_a.none(), "options"_a,
        "return_lse"_a.none());
  m.def("attention_forward", &attention_forward, "context"_a, "q"_a, "k"_a, "v"_a, "settings"_a, "return_lse"_a,
        "extras"_a.none() = nb::none(), "options"_a);
  m.def("attention_backward", &attention_backward, "context"_a, "dout"_a.none(), "dlse"_a.none() = nb::none());
  m.def("packed_forward", &packed_forward);
  m.def("packed_backward", &packed_backward, "context"_a, "dout"_a.none(), "dlse"_a.none() = nb::none());
}

}  // namespace attend::python
