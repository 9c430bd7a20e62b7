#include "short_way.hpp"

#include <nanobind/ndarray.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "attend/attention.hpp"
#include "exchange.hpp"
#include "plain_settings.hpp"
#include "tensor_views.hpp"
#include "torch_side.hpp"

namespace attend::python {
namespace {

using namespace nb::literals;
using nb::dlpack::dltensor;

/// Of attend/torch: what autograd calls, and the long ways that stand behind short ones.
struct Ways {
  nb::object apply;                ///< (q, k, v, settings, return_lse): o or (o, lse), by PlainAttention
  nb::object apply_packed;         ///< (qkv, settings, return_lse): likewise, by PackedAttention
  nb::object run_forward;          ///< (q, k, v, extras, settings): (o, lse)
  nb::object run_backward;         ///< (context, saved, dout, dlse): dq, dk, dv and what else is no gradient here
  nb::object run_packed_backward;  ///< (context, saved, dout, dlse): dqkv
  nb::object plain_settings;       ///< (layout, causal, scale, dropout_p, deterministic, compute): a Settings or None
};

const Ways* ways = nullptr;  // outlives the interpreter

void learn_ways(const nb::dict& names) {
  const auto named = [&](const char* name) { return nb::object(names[name]); };
  ways = new Ways{.apply = named("apply"),
                  .apply_packed = named("apply_packed"),
                  .run_forward = named("run_forward"),
                  .run_backward = named("run_backward"),
                  .run_packed_backward = named("run_packed_backward"),
                  .plain_settings = named("plain_settings")};
}

void compute_forward(const Views& x, const PlainSettings& settings) {
  const Stream stream = current_stream(x.q);
  const nb::gil_scoped_release release;
  attend::forward(
      {.q = x.q, .k = x.k, .v = x.v, .o = x.o, .lse = x.lse, .params = settings.params(), .stream = stream});
}

/// For an `x` with lse.
void compute_backward(const Views& x, const Gradients& g, const PlainSettings& settings) {
  const Stream stream = current_stream(x.q);
  const nb::gil_scoped_release release;
  attend::backward({.q = x.q,
                    .k = x.k,
                    .v = x.v,
                    .o = x.o,
                    .lse = *x.lse,
                    .dout = g.dout,
                    .dlse = g.dlse,
                    .dq = g.dq,
                    .dk = g.dk,
                    .dv = g.dv,
                    .params = settings.params(),
                    .stream = stream});
}

/// An uninitialised tensor like `x`; not valid where torch would not give it dense rows.
struct Like {
  nb::object object;
  Tensor view;

  Like(nb::handle x, Layout layout) : object(torch->empty_like(x)) {
    const dltensor memory = exchanged_tensor(object);
    if (is_usual(memory)) {
      view = heads_of(memory, layout);
    } else {
      object = {};
    }
  }
};

/// (batch, heads, seqlen_q) of floats for q, which is seen in `view`, and where they lie.
std::pair<nb::object, Tensor> empty_lse(nb::handle q, const Tensor& view) {
  const auto [batch, heads, rows, head_dim] = view.shape;
  const nb::tuple shape = nb::make_tuple(batch, heads, rows), strides = nb::make_tuple(heads * rows, rows, 1);
  nb::object lse = view.dtype == DType::kF32 ? torch->new_empty_strided(q, shape, strides)
                                             : torch->new_empty_strided(q, shape, strides, "dtype"_a = torch->float32);
  return {lse, rows_of(exchanged_tensor(lse)).value()};
}

/// (batch, seqlen, heads, head_dim), dense, for q of a packed tensor, and where it lies.
std::pair<nb::object, Tensor> empty_packed_o(nb::handle qkv, const Tensor& q) {
  const auto [batch, heads, rows, width] = q.shape;
  nb::object o = torch->new_empty_strided(qkv, nb::make_tuple(batch, rows, heads, width),
                                          nb::make_tuple(rows * heads * width, heads * width, width, 1));
  return {o, heads_of(exchanged_tensor(o), Layout::kBshd)};
}

/// (o, lse or None), or None: the long way. For tensors that `way_of` has seen; without extras.
nb::object results_of(nb::handle q, nb::handle k, nb::handle v, nb::handle tuple, bool return_lse) {
  const std::array memory = {exchanged_tensor(q), exchanged_tensor(k), exchanged_tensor(v)};
  for (const dltensor& x : memory) {
    if (!is_usual(x) || !(x.dtype == memory[0].dtype)) return nb::none();
  }
  const auto settings = known_or_read(tuple);
  const Layout layout = settings->layout;
  if (memory[0].shape[3] != memory[2].shape[3] || layout == Layout::kThd) return nb::none();
  const Like o(q, layout);
  if (!o.object.is_valid()) return nb::none();
  // Shapes are the tensors' own, and other threads may change those.
  Views x = {heads_of(memory[0], layout), heads_of(memory[1], layout), heads_of(memory[2], layout), o.view, {}};
  nb::object lse = nb::none();
  if (return_lse) std::tie(lse, x.lse.emplace()) = empty_lse(q, x.q);
  compute_forward(x, *settings);
  return nb::make_tuple(o.object, lse);
}

/// The same of one tensor with all three.
nb::object packed_results(nb::handle qkv, nb::handle tuple, bool return_lse) {
  const auto parts = parts_of(exchanged_tensor(qkv));
  if (!parts) return nb::none();
  const auto settings = known_or_read(tuple);
  auto [o, o_view] = empty_packed_o(qkv, (*parts)[0]);
  Views x = {(*parts)[0], (*parts)[1], (*parts)[2], o_view, {}};
  nb::object lse = nb::none();
  if (return_lse) std::tie(lse, x.lse.emplace()) = empty_lse(qkv, x.q);
  compute_forward(x, *settings);
  return nb::make_tuple(o, lse);
}

nb::object short_forward(nb::handle q, nb::handle k, nb::handle v, nb::handle settings, nb::handle return_lse) {
  return results_of(q, k, v, settings, is_true(return_lse));
}

/// Autograd's engine wants gradients and nothing else.
bool wants_plain_gradients(nb::handle dout) {
  // The operator refuses a graph of gradients.
  return !dout.is_none() && !is_true(torch->is_grad_enabled()) && !is_watched(torch->gradients_watchers);
}

bool read_heads(nb::handle x, Layout layout, Tensor& view) {
  dltensor memory;
  if (!is_plain(x, memory) || !is_usual(memory)) return false;
  view = heads_of(memory, layout);
  return true;
}

bool read_rows(nb::handle x, std::optional<Tensor>& view) {
  dltensor memory;
  if (is_plain(x, memory)) view = rows_of(memory);
  return view.has_value();
}

/// The settings at this moment: torch may have been told to be deterministic.
std::shared_ptr<const PlainSettings> settings_of_gradients(nb::handle tuple) {
  return known_or_read(is_true(torch->wants_determinism()) ? torch->as_torch_is_told(tuple) : nb::borrow(tuple));
}

/// {dq, dk, dv}, none of them valid where the long way has to go. `saved`: q, k, v, o, lse, and what is no business of
/// the short way. dout and dlse may be None.
std::array<nb::object, 3> gradients_of(const nb::tuple& saved, nb::handle dout, nb::handle dlse, nb::handle tuple) {
  constexpr std::size_t kSaved = 5;
  if (saved.size() != kSaved || !wants_plain_gradients(dout)) return {};
  const auto settings = settings_of_gradients(tuple);
  const Layout layout = settings->layout;
  Views x;
  Gradients g;
  const std::pair<nb::handle, Tensor*> heads[] = {
      {saved[0], &x.q}, {saved[1], &x.k}, {saved[2], &x.v}, {saved[3], &x.o}, {dout, &g.dout}};
  for (const auto& [tensor, view] : heads) {
    // Of another dtype (a forward under autocast) they would take the slow reference.
    if (!read_heads(tensor, layout, *view) || view->dtype != x.q.dtype) return {};
  }
  if (!read_rows(saved[4], x.lse) || (!dlse.is_none() && !read_rows(dlse, g.dlse))) return {};
  const Like dq(saved[0], layout), dk(saved[1], layout), dv(saved[2], layout);
  if (!dq.object.is_valid() || !dk.object.is_valid() || !dv.object.is_valid()) return {};
  g.dq = dq.view, g.dk = dk.view, g.dv = dv.view;
  compute_backward(x, g, *settings);
  return {dq.object, dk.object, dv.object};
}

/// dqkv, not valid where the long way has to go. `saved`: qkv, o, lse. dout and dlse may be None.
nb::object packed_gradient_of(const nb::tuple& saved, nb::handle dout, nb::handle dlse, nb::handle tuple) {
  dltensor memory;
  if (!wants_plain_gradients(dout) || !is_plain(saved[0], memory)) return {};
  const auto parts = parts_of(memory);
  if (!parts) return {};
  Views x = {(*parts)[0], (*parts)[1], (*parts)[2], {}, {}};
  Gradients g;
  if (!read_heads(saved[1], Layout::kBshd, x.o) || !read_heads(dout, Layout::kBshd, g.dout)) return {};
  if (x.o.dtype != x.q.dtype || g.dout.dtype != x.q.dtype) return {};
  if (!read_rows(saved[2], x.lse) || (!dlse.is_none() && !read_rows(dlse, g.dlse))) return {};
  const auto settings = settings_of_gradients(tuple);
  nb::object dqkv = torch->empty_like(saved[0]);
  const auto gradients = parts_of(exchanged_tensor(dqkv));
  if (!gradients) return {};
  g.dq = (*gradients)[0], g.dk = (*gradients)[1], g.dv = (*gradients)[2];
  compute_backward(x, g, *settings);
  return dqkv;
}

/// (dq, dk, dv, None, ...), a gradient for each argument of EagerAttention.forward; or None: the long way.
nb::object short_backward(const nb::tuple& saved, nb::handle dout, nb::handle dlse, nb::handle settings) {
  const auto [dq, dk, dv] = gradients_of(saved, dout, dlse, settings);
  if (!dv.is_valid()) return nb::none();
  return nb::make_tuple(dq, dk, dv, nb::none(), nb::none(), nb::none(), nb::none());
}

/// What a function of autograd's gives: o, or both; in its context what backward asks for but the tensors.
nb::object finish_forward(nb::handle context, const nb::object& both, nb::handle settings, bool return_lse) {
  nb::setattr(context, torch->settings, settings);
  if (!return_lse) return both[0];
  context.attr(torch->set_materialize_grads)(false);
  return both;
}

/// What backward asks a context for. Checkpoints unpack once.
nb::tuple saved_in(nb::handle context) {
  return nb::borrow<nb::tuple>(nb::getattr(context, torch->saved_tensors));
}

/// PlainAttention.forward: o or (o, lse) of tensors that `short_attention` has seen. Autograd forgets nothing of it.
nb::object plain_forward(nb::handle context, nb::handle q, nb::handle k, nb::handle v, nb::handle settings,
                         bool return_lse) {
  nb::object both = results_of(q, k, v, settings, true);
  if (both.is_none()) both = ways->run_forward(q, k, v, torch->no_extras, settings);
  context.attr(torch->save_for_backward)(q, k, v, both[0], both[1]);
  return finish_forward(context, both, settings, return_lse);
}

/// PlainAttention.backward: a gradient for each argument of plain_forward.
nb::object plain_backward(nb::handle context, nb::handle dout, nb::handle dlse) {
  const nb::object settings = nb::getattr(context, torch->settings);
  const nb::tuple saved = saved_in(context);
  const auto [dq, dk, dv] = gradients_of(saved, dout, dlse, settings);
  if (dv.is_valid()) return nb::make_tuple(dq, dk, dv, nb::none(), nb::none());
  const nb::object long_way = ways->run_backward(context, saved, dout, dlse);
  return nb::make_tuple(long_way[0], long_way[1], long_way[2], nb::none(), nb::none());
}

/// PackedAttention.forward and .backward, likewise, of a tensor that `short_packed` has seen.
nb::object packed_forward(nb::handle context, nb::handle qkv, nb::handle settings, bool return_lse) {
  const nb::object both = packed_results(qkv, settings, true);
  if (both.is_none()) throw Error(ErrorCode::kInternal, "qkv: another tensor than a moment ago");
  context.attr(torch->save_for_backward)(qkv, both[0], both[1]);
  return finish_forward(context, both, settings, return_lse);
}

nb::object packed_backward(nb::handle context, nb::handle dout, nb::handle dlse) {
  const nb::object settings = nb::getattr(context, torch->settings);
  const nb::tuple saved = saved_in(context);
  nb::object dqkv = packed_gradient_of(saved, dout, dlse, settings);
  if (!dqkv.is_valid()) dqkv = ways->run_packed_backward(context, saved, dout, dlse);
  return nb::make_tuple(dqkv, nb::none(), nb::none());
}

/// The bits of a short way, or 0 where autocast has something to cast.
int short_way_of(std::span<const nb::handle> given) {
  const int way = way_of(given);
  return (way & kAutocast) != 0 && !is_cast(given) ? 0 : way;
}

/// Of (o, lse or None), or None.
nb::object wanted_of(const nb::object& both, bool wants_lse) {
  return both.is_none() || wants_lse ? both : both[0];
}

/// o, or (o, lse), of a call without extras; None: the long way.
nb::object short_attention(nb::handle q, nb::handle k, nb::handle v, nb::handle settings, nb::handle return_lse) {
  const int way = short_way_of(std::array{q, k, v});
  if (way == 0) return nb::none();
  const bool wants_lse = is_true(return_lse);
  if ((way & kAutograd) != 0) return ways->apply(q, k, v, settings, wants_lse);
  return wanted_of(results_of(q, k, v, settings, wants_lse), wants_lse);
}

/// The same of one tensor (batch, seqlen, 3, heads, head_dim).
nb::object short_packed(nb::handle qkv, nb::handle settings, nb::handle return_lse) {
  const int way = short_way_of(std::array{qkv});
  if (way == 0 || !parts_of(exchanged_tensor(qkv))) return nb::none();
  const bool wants_lse = is_true(return_lse);
  if ((way & kAutograd) != 0) return ways->apply_packed(qkv, settings, wants_lse);
  return wanted_of(packed_results(qkv, settings, wants_lse), wants_lse);
}

/// Both for the options that most calls have, as a caller of `attention` gives them.
nb::object plain_attention(nb::handle q, nb::handle k, nb::handle v, nb::handle layout, nb::handle causal,
                           nb::handle scale, nb::handle dropout_p, nb::handle deterministic, nb::handle compute,
                           nb::handle return_lse) {
  const auto settings = settings_of({layout, causal, scale, dropout_p, deterministic, compute}, ways->plain_settings);
  return settings == nullptr ? nb::none() : short_attention(q, k, v, settings->tuple, return_lse);
}

nb::object plain_packed(nb::handle qkv, nb::handle causal, nb::handle scale, nb::handle dropout_p,
                        nb::handle deterministic, nb::handle compute, nb::handle return_lse) {
  const PlainOptions options = {torch->bshd, causal, scale, dropout_p, deterministic, compute};
  const auto settings = settings_of(options, ways->plain_settings);
  return settings == nullptr ? nb::none() : short_packed(qkv, settings->tuple, return_lse);
}

int way_of_all(const nb::tuple& given) {
  return way_of(std::vector<nb::handle>(given.begin(), given.end()));
}

}  // namespace

void add_short_way(nb::module_& m) {
  m.def("learn_torch", &learn_torch);
  m.def("learn_ways", &learn_ways);
  m.def("way_of", &way_of_all);
  m.def("short_forward", &short_forward, "q"_a, "k"_a, "v"_a, "settings"_a, "return_lse"_a.none());
  m.def("short_backward", &short_backward, "saved"_a, "dout"_a.none(), "dlse"_a.none(), "settings"_a);
  // What is None goes the long way, where it is refused by name.
  m.def("short_attention", &short_attention, "q"_a.none(), "k"_a.none(), "v"_a.none(), "settings"_a,
        "return_lse"_a.none());
  m.def("short_packed", &short_packed, "qkv"_a.none(), "settings"_a, "return_lse"_a.none());
  m.def("plain_attention", &plain_attention, "q"_a.none(), "k"_a.none(), "v"_a.none(), "layout"_a.none(),
        "causal"_a.none(), "scale"_a.none(), "dropout_p"_a.none(), "deterministic"_a.none(), "compute"_a.none(),
        "return_lse"_a.none());
  m.def("plain_packed", &plain_packed, "qkv"_a.none(), "causal"_a.none(), "scale"_a.none(), "dropout_p"_a.none(),
        "deterministic"_a.none(), "compute"_a.none(), "return_lse"_a.none());
  m.def("plain_forward", &plain_forward);
  m.def("plain_backward", &plain_backward, "context"_a, "dout"_a.none(), "dlse"_a.none() = nb::none());
  m.def("packed_forward", &packed_forward);
  m.def("packed_backward", &packed_backward, "context"_a, "dout"_a.none(), "dlse"_a.none() = nb::none());
}

}  // namespace attend::python
