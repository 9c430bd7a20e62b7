#include "short_way.hpp"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "attend/attention.hpp"
#include "exchange.hpp"
#include "plain_settings.hpp"

namespace attend::python {
namespace {

using namespace nb::literals;
using nb::dlpack::dltensor;

/// How a call may go, in bits; 0: the long way. attend/torch/_shortcut.py has the same numbers.
constexpr int kShort = 1;     ///< the dispatcher would find nothing to do but what the other bits say
constexpr int kAutograd = 2;  ///< gradients may be asked for
constexpr int kAutocast = 4;  ///< q, k and v are to be cast

/// What is asked of torch, as attend/torch/_shortcut.py hands it over.
struct Torch {
  nb::object tensor, parameter;              ///< types
  nb::object is_neg;                         ///< (tensor): the values are those in memory, negated
  nb::object empty_like, new_empty_strided;  ///< (tensor); (tensor, shape, strides, dtype=)
  nb::object float32;
  nb::object raw_stream;               ///< (index of a GPU): its current stream, as a number
  nb::object is_grad_enabled;          ///< ()
  nb::object is_any_autocast_enabled;  ///< ()
  nb::object is_autocast_enabled;      ///< (name of a type of device)
  nb::object autocast_dtype;           ///< (name of a type of device)
  nb::object wants_determinism;        ///< (): of all operators
  nb::object as_torch_is_told;         ///< (settings): the settings then
  nb::object forward_ad;               ///< a module
  nb::object no_extras;                ///< an Extras of nothing
  nb::tuple watchers;                  ///< of (): something true where the dispatcher has more to do than autograd
  nb::tuple gradients_watchers;        ///< likewise, while autograd's engine runs

  // Names, made once. The level is a number in forward_ad, at least 0 where there are tangents.
  nb::object current_level = name("_current_level");
  nb::object requires_grad = name("requires_grad"), dtype = name("dtype");
  nb::object save_for_backward = name("save_for_backward"), saved_tensors = name("saved_tensors");
  nb::object set_materialize_grads = name("set_materialize_grads"), settings = name("settings");
  nb::object cpu = name("cpu"), cuda = name("cuda");

  static nb::object name(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }
};

const Torch* torch = nullptr;  // outlives the interpreter

/// Of attend/torch: what autograd calls, and the long ways that stand behind short ones.
struct Ways {
  nb::object apply;           ///< (q, k, v, settings, return_lse): o or (o, lse), by PlainAttention
  nb::object run_forward;     ///< (q, k, v, extras, settings): (o, lse)
  nb::object run_backward;    ///< (context, saved, dout, dlse): dq, dk, dv and what else is no gradient here
  nb::object plain_settings;  ///< (layout, causal, scale, dropout_p, deterministic, compute): a Settings or None
};

const Ways* ways = nullptr;  // outlives the interpreter

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

void learn_ways(nb::object apply, nb::object run_forward, nb::object run_backward, nb::object plain_settings) {
  ways = new Ways{std::move(apply), std::move(run_forward), std::move(run_backward), std::move(plain_settings)};
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

bool is_on_gpu(const dltensor& x) {
  return x.device.device_type == nb::device::cuda::value;
}

/// What lies in memory are the values of `x`: it is of no subclass or other layout, on a CPU or a GPU, and not lazy.
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

/// The bits of a call with the tensors `given`, on one device (else the library refuses them in the end).
template <class Handles>
int way_of(const Handles& given) {
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

bool is_float(const dltensor& x, int bits) {
  return static_cast<nb::dlpack::dtype_code>(x.dtype.code) == nb::dlpack::dtype_code::Float && x.dtype.bits == bits;
}

bool is_bfloat16(const dltensor& x) {
  return static_cast<nb::dlpack::dtype_code>(x.dtype.code) == nb::dlpack::dtype_code::Bfloat;
}

bool has_elements(const dltensor& x) {
  return x.data != nullptr && std::find(x.shape, x.shape + x.ndim, 0) == x.shape + x.ndim;
}

/// Four dimensions, the last one dense, of elements that GPUs take.
bool is_usual(const dltensor& x) {
  const bool is_known = is_float(x, 32) || is_float(x, 16) || is_bfloat16(x);
  return x.ndim == 4 && x.strides[3] == 1 && is_known && has_elements(x);
}

/// The library's view of a tensor of (batch, heads, rows, width), dimensions in the order of `at`; -1: width 1.
Tensor view_of(const dltensor& x, const std::array<int, 4>& at) {
  Tensor t;
  t.data = static_cast<std::byte*>(x.data) + x.byte_offset;
  t.dtype = is_bfloat16(x) ? DType::kBF16 : is_float(x, 16) ? DType::kF16 : DType::kF32;
  if (is_on_gpu(x)) t.device = {DeviceType::kCUDA, x.device.device_id};
  for (std::size_t d = 0; d < at.size(); ++d) {
    t.shape[d] = at[d] < 0 ? 1 : x.shape[at[d]];
    t.stride[d] = at[d] < 0 ? 1 : x.strides[at[d]];
  }
  return t;
}

/// Of a usual tensor.
Tensor heads_of(const dltensor& x, Layout layout) {
  return view_of(x, layout == Layout::kBhsd ? std::array{0, 1, 2, 3} : std::array{0, 2, 1, 3});
}

/// lse or its gradient; nothing where it is none that forward gives.
std::optional<Tensor> rows_of(const dltensor& x) {
  if (x.ndim != 3 || !is_float(x, 32) || !has_elements(x)) return std::nullopt;
  return view_of(x, {0, 1, 2, -1});
}

/// An uninitialised tensor like `x` and its memory; not valid where torch would not give it dense rows.
struct Like {
  nb::object object;
  dltensor memory;

  explicit Like(nb::handle x) : object(torch->empty_like(x)), memory(exchanged_tensor(object)) {
    if (!is_usual(memory)) object = {};
  }
};

Stream current_stream(const dltensor& x) {
  if (!is_on_gpu(x)) return {};
  return reinterpret_cast<Stream>(nb::cast<std::uintptr_t>(torch->raw_stream(x.device.device_id)));
}

/// (batch, heads, seqlen_q) of floats, for q.
nb::object empty_lse(nb::handle q, const dltensor& memory, Layout layout) {
  const bool heads_first = layout == Layout::kBhsd;
  const std::int64_t heads = memory.shape[heads_first ? 1 : 2], rows = memory.shape[heads_first ? 2 : 1];
  const nb::tuple shape = nb::make_tuple(memory.shape[0], heads, rows), strides = nb::make_tuple(heads * rows, rows, 1);
  if (is_float(memory, 32)) return torch->new_empty_strided(q, shape, strides);
  return torch->new_empty_strided(q, shape, strides, "dtype"_a = torch->float32);
}

/// (o, lse or None), or None: the long way. For tensors that `way_of` has seen; without extras.
nb::object short_forward(nb::handle q, nb::handle k, nb::handle v, nb::handle tuple, bool return_lse) {
  const std::array memory = {exchanged_tensor(q), exchanged_tensor(k), exchanged_tensor(v)};
  for (const dltensor& x : memory) {
    if (!is_usual(x) || !(x.dtype == memory[0].dtype)) return nb::none();
  }
  const auto settings = known_or_read(tuple);
  const Layout layout = settings->layout;
  if (memory[0].shape[3] != memory[2].shape[3] || layout == Layout::kThd) return nb::none();
  const Like o(q);
  if (!o.object.is_valid()) return nb::none();
  const nb::object lse = return_lse ? empty_lse(q, memory[0], layout) : nb::none();
  const Tensor lse_view = return_lse ? rows_of(exchanged_tensor(lse)).value() : Tensor{};
  // Shapes are the tensors' own, and other threads may change those.
  const Tensor q_view = heads_of(memory[0], layout), k_view = heads_of(memory[1], layout),
               v_view = heads_of(memory[2], layout), o_view = heads_of(o.memory, layout);
  const Stream stream = current_stream(memory[0]);
  {
    const nb::gil_scoped_release release;
    attend::forward(q_view, k_view, v_view, o_view, return_lse ? &lse_view : nullptr, settings->params(), stream);
  }
  return nb::make_tuple(o.object, lse);
}

/// What backward is given, as the library sees it.
struct Saved {
  dltensor q, k, v, o, lse, dout, dlse;
  std::optional<Tensor> lse_view, dlse_view;

  /// False where the long way has to go. `saved`: q, k, v, o, lse, and what is no business of the short way.
  [[nodiscard]] bool read(const nb::tuple& saved, nb::handle dout_in, nb::handle dlse_in) {
    constexpr std::size_t kSaved = 5;
    if (saved.size() != kSaved || dout_in.is_none()) return false;
    // The operator refuses a graph of gradients.
    if (is_true(torch->is_grad_enabled()) || is_watched(torch->gradients_watchers)) return false;
    const std::pair<nb::handle, dltensor*> heads[] = {
        {saved[0], &q}, {saved[1], &k}, {saved[2], &v}, {saved[3], &o}, {dout_in, &dout}};
    for (const auto& [tensor, memory] : heads) {
      // Of another dtype (a forward under autocast) they would take the slow reference.
      if (!is_plain(tensor, *memory) || !is_usual(*memory) || !(memory->dtype == q.dtype)) return false;
    }
    if (!is_plain(saved[4], lse)) return false;
    lse_view = rows_of(lse);
    if (dlse_in.is_none()) return lse_view.has_value();
    if (!is_plain(dlse_in, dlse)) return false;
    dlse_view = rows_of(dlse);
    return lse_view.has_value() && dlse_view.has_value();
  }
};

/// {dq, dk, dv}, none of them valid where the long way has to go. dout and dlse may be None.
std::array<nb::object, 3> gradients_of(const nb::tuple& saved, nb::handle dout, nb::handle dlse, nb::handle tuple) {
  Saved x;
  if (!x.read(saved, dout, dlse)) return {};
  const auto settings =
      known_or_read(is_true(torch->wants_determinism()) ? torch->as_torch_is_told(tuple) : nb::borrow(tuple));
  const Like dq(saved[0]), dk(saved[1]), dv(saved[2]);
  if (!dq.object.is_valid() || !dk.object.is_valid() || !dv.object.is_valid()) return {};
  const auto heads = [&](const dltensor& memory) { return heads_of(memory, settings->layout); };
  const Tensor dout_view = heads(x.dout), q = heads(x.q), k = heads(x.k), v = heads(x.v), o = heads(x.o);
  const Tensor dq_view = heads(dq.memory), dk_view = heads(dk.memory), dv_view = heads(dv.memory);
  const Stream stream = current_stream(x.q);
  {
    const nb::gil_scoped_release release;
    attend::backward(dout_view, q, k, v, o, *x.lse_view, dq_view, dk_view, dv_view, settings->params(), stream,
                     {.dlse = x.dlse_view});
  }
  return {dq.object, dk.object, dv.object};
}

/// (dq, dk, dv, None, ...), a gradient for each argument of EagerAttention.forward; or None: the long way.
nb::object short_backward(const nb::tuple& saved, nb::handle dout, nb::handle dlse, nb::handle settings) {
  const auto [dq, dk, dv] = gradients_of(saved, dout, dlse, settings);
  if (!dv.is_valid()) return nb::none();
  return nb::make_tuple(dq, dk, dv, nb::none(), nb::none(), nb::none(), nb::none());
}

/// PlainAttention.forward: o or (o, lse) of tensors that `short_attention` has seen. Autograd forgets nothing of it.
nb::object plain_forward(nb::handle context, nb::handle q, nb::handle k, nb::handle v, nb::handle settings,
                         bool return_lse) {
  nb::object both = short_forward(q, k, v, settings, true);
  if (both.is_none()) both = ways->run_forward(q, k, v, torch->no_extras, settings);
  const nb::object o = both[0], lse = both[1];
  context.attr(torch->save_for_backward)(q, k, v, o, lse);
  nb::setattr(context, torch->settings, settings);
  if (!return_lse) return o;
  context.attr(torch->set_materialize_grads)(false);
  return both;
}

/// PlainAttention.backward: a gradient for each argument of plain_forward.
nb::object plain_backward(nb::handle context, nb::handle dout, nb::handle dlse) {
  const nb::object settings = nb::getattr(context, torch->settings);
  const nb::tuple saved = nb::borrow<nb::tuple>(nb::getattr(context, torch->saved_tensors));  // checkpoints unpack once
  const auto [dq, dk, dv] = gradients_of(saved, dout, dlse, settings);
  if (dv.is_valid()) return nb::make_tuple(dq, dk, dv, nb::none(), nb::none());
  const nb::object long_way = ways->run_backward(context, saved, dout, dlse);
  return nb::make_tuple(long_way[0], long_way[1], long_way[2], nb::none(), nb::none());
}

/// Whether autocast has nothing to cast: q, k and v, on one device, are what it would make of them.
bool is_cast(nb::handle q, nb::handle k, nb::handle v) {
  const nb::object& type = is_on_gpu(exchanged_tensor(q)) ? torch->cuda : torch->cpu;
  const nb::object wanted = torch->autocast_dtype(type);
  for (const nb::handle x : {q, k, v}) {
    if (!nb::getattr(x, torch->dtype).is(wanted)) return false;
  }
  return true;
}

/// o, or (o, lse), of a call without extras; None: the long way.
nb::object short_attention(nb::handle q, nb::handle k, nb::handle v, nb::handle settings, nb::handle return_lse) {
  const int way = way_of(std::array{q, k, v});
  if (way == 0 || ((way & kAutocast) != 0 && !is_cast(q, k, v))) return nb::none();
  const bool wants_lse = is_true(return_lse);
  if ((way & kAutograd) != 0) return ways->apply(q, k, v, settings, wants_lse);
  const nb::object both = short_forward(q, k, v, settings, wants_lse);
  return both.is_none() || wants_lse ? both : both[0];
}

/// The same for the options that most calls have, as a caller of `attention` gives them.
nb::object plain_attention(nb::handle q, nb::handle k, nb::handle v, nb::handle layout, nb::handle causal,
                           nb::handle scale, nb::handle dropout_p, nb::handle deterministic, nb::handle compute,
                           nb::handle return_lse) {
  const auto settings = settings_of({layout, causal, scale, dropout_p, deterministic, compute}, ways->plain_settings);
  return settings == nullptr ? nb::none() : short_attention(q, k, v, settings->tuple, return_lse);
}

}  // namespace

void add_short_way(nb::module_& m) {
  m.def("learn_torch", &learn_torch);
  m.def("learn_ways", &learn_ways);
  m.def("way_of", &way_of<nb::tuple>);
  m.def("short_forward", &short_forward);
  m.def("short_backward", &short_backward, "saved"_a, "dout"_a.none(), "dlse"_a.none(), "settings"_a);
  // What is None goes the long way, where it is refused by name.
  m.def("short_attention", &short_attention, "q"_a.none(), "k"_a.none(), "v"_a.none(), "settings"_a,
        "return_lse"_a.none());
  m.def("plain_attention", &plain_attention, "q"_a.none(), "k"_a.none(), "v"_a.none(), "layout"_a.none(),
        "causal"_a.none(), "scale"_a.none(), "dropout_p"_a.none(), "deterministic"_a.none(), "compute"_a.none(),
        "return_lse"_a.none());
  m.def("plain_forward", &plain_forward);
  m.def("plain_backward", &plain_backward, "context"_a, "dout"_a.none(), "dlse"_a.none() = nb::none());
}

}  // namespace attend::python
