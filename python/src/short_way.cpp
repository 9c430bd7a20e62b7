#include "short_way.hpp"

#include <nanobind/ndarray.h>

#include <cstdint>

#include "arguments.hpp"
#include "attend/attention.hpp"
#include "exchange.hpp"

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
  nb::object raw_stream;           ///< (index of a GPU): its current stream, as a number
  nb::object is_grad_enabled;      ///< ()
  nb::object is_autocast_enabled;  ///< (name of a type of device)
  nb::object wants_determinism;    ///< (): of all operators
  nb::object as_torch_is_told;     ///< (settings): the settings then
  nb::object forward_ad;           ///< a module
  nb::object no_extras;            ///< an Extras of nothing
  nb::object watchers;             ///< tuple of (): something true where the dispatcher has more to do than autograd

  // Names, made once. The level is a number in forward_ad, at least 0 where there are tangents.
  nb::object current_level = name("_current_level");
  nb::object requires_grad = name("requires_grad");
  nb::object cpu = name("cpu"), cuda = name("cuda");

  static nb::object name(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }
};

const Torch* torch = nullptr;  // outlives the interpreter

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
                    .is_autocast_enabled = named("is_autocast_enabled"),
                    .wants_determinism = named("wants_determinism"),
                    .as_torch_is_told = named("as_torch_is_told"),
                    .forward_ad = named("forward_ad"),
                    .no_extras = named("no_extras"),
                    .watchers = named("watchers")};
}

bool is_true(nb::handle x) {
  const int truth = PyObject_IsTrue(x.ptr());
  if (truth < 0) nb::raise_python_error();
  return truth != 0;
}

bool is_watched() {
  if (nb::cast<std::int64_t>(nb::getattr(torch->forward_ad, torch->current_level)) >= 0) return true;
  for (const nb::handle watcher : nb::borrow<nb::tuple>(torch->watchers)) {
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

/// The bits of a call with the tensors `given`, the first of which is q.
int way_of(const nb::tuple& given) {
  if (is_watched()) return 0;
  int way = kShort;
  dltensor memory;
  bool is_first = true;
  for (const nb::handle x : given) {
    if (!is_plain(x, memory)) return 0;
    if (is_true(nb::getattr(x, torch->requires_grad))) way |= kAutograd;
    if (is_first && is_true(torch->is_autocast_enabled(is_on_gpu(memory) ? torch->cuda : torch->cpu))) way |= kAutocast;
    is_first = false;
  }
  if ((way & kAutograd) != 0 && !is_true(torch->is_grad_enabled())) way -= kAutograd;
  return way;
}

/// Four dimensions, the last one dense, of elements that GPUs take.
bool is_usual(const dltensor& x) {
  using nb::dlpack::dtype_code;
  const auto code = static_cast<dtype_code>(x.dtype.code);
  const bool is_float = code == dtype_code::Bfloat || (code == dtype_code::Float && x.dtype.bits <= 32);
  return x.ndim == 4 && x.strides[3] == 1 && is_float && x.data != nullptr;
}

/// An uninitialised tensor like `x`; not valid where torch would not give it dense rows.
nb::object like(nb::handle x) {
  nb::object result = torch->empty_like(x);
  return is_usual(exchanged_tensor(result)) ? result : nb::object();
}

Stream current_stream(const dltensor& x) {
  if (!is_on_gpu(x)) return {};
  return reinterpret_cast<Stream>(nb::cast<std::uintptr_t>(torch->raw_stream(x.device.device_id)));
}

/// (batch, heads, seqlen_q) of floats, for q.
nb::object empty_lse(nb::handle q, const dltensor& memory, Layout layout) {
  const bool heads_first = layout == Layout::kBhsd;
  const std::int64_t heads = memory.shape[heads_first ? 1 : 2], rows = memory.shape[heads_first ? 2 : 1];
  return torch->new_empty_strided(q, nb::make_tuple(memory.shape[0], heads, rows),
                                  nb::make_tuple(heads * rows, rows, 1), "dtype"_a = torch->float32);
}

/// (o, lse or None), or None: the long way. For tensors that `way_of` has seen; without extras.
nb::object short_forward(nb::handle q, nb::handle k, nb::handle v, nb::handle settings, bool return_lse) {
  const dltensor q_memory = exchanged_tensor(q), k_memory = exchanged_tensor(k), v_memory = exchanged_tensor(v);
  if (!is_usual(q_memory) || !is_usual(k_memory) || !is_usual(v_memory)) return nb::none();
  const Layout layout = layout_of_call(settings);
  if (q_memory.shape[3] != v_memory.shape[3] || layout == Layout::kThd) return nb::none();
  const nb::object o = like(q);
  if (!o.is_valid()) return nb::none();
  const nb::object lse = return_lse ? empty_lse(q, q_memory, layout) : nb::none();
  run_forward({q, k, v, o, lse, nb::none(), torch->no_extras, settings}, current_stream(q_memory));
  return nb::make_tuple(o, lse);
}

/// (dq, dk, dv, None, ...), a gradient for each argument of forward's function; or None: the long way.
/// `saved`: q, k, v, o, lse, and what is no business of the short way. dout and dlse may be None.
nb::object short_backward(const nb::tuple& saved, nb::handle dout, nb::handle dlse, nb::handle settings) {
  constexpr std::size_t kSaved = 5;
  if (saved.size() != kSaved || dout.is_none()) return nb::none();
  if (is_true(torch->is_grad_enabled()) || is_watched())
    return nb::none();  // the operator refuses a graph of gradients
  dltensor q_memory, memory;
  const nb::handle q = saved[0], k = saved[1], v = saved[2], o = saved[3], lse = saved[4];
  if (!is_plain(q, q_memory) || !is_plain(lse, memory)) return nb::none();
  if (!dlse.is_none() && !is_plain(dlse, memory)) return nb::none();
  for (const nb::handle x : {q, k, v, o, dout}) {
    // Of another dtype (a forward under autocast) they would take the slow reference.
    if (!is_plain(x, memory) || !is_usual(memory) || !(memory.dtype == q_memory.dtype)) return nb::none();
  }
  const nb::object dq = like(q), dk = like(k), dv = like(v);
  if (!dq.is_valid() || !dk.is_valid() || !dv.is_valid()) return nb::none();
  const nb::tuple gradients = nb::make_tuple(dout, dlse, dq, dk, dv, nb::none());
  const nb::object told =
      is_true(torch->wants_determinism()) ? torch->as_torch_is_told(settings) : nb::borrow(settings);
  run_backward({q, k, v, o, lse, gradients, torch->no_extras, told}, current_stream(q_memory));
  return nb::make_tuple(dq, dk, dv, nb::none(), nb::none(), nb::none(), nb::none());
}

}  // namespace

void add_short_way(nb::module_& m) {
  m.def("learn_torch", &learn_torch);
  m.def("way_of", &way_of);
  m.def("short_forward", &short_forward);
  m.def("short_backward", &short_backward, "saved"_a, "dout"_a.none(), "dlse"_a.none(), "settings"_a);
}

}  // namespace attend::python
