// The direct route of decode and append. torch allocates the results. All other arguments are passed to the library in
// the same way as attend/torch/_serving.py passes them. If the library refuses a call, it has written nothing. The
// Python code then repeats the call and reports the invalid argument.
#include "torch_serving.hpp"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "attend/error.hpp"
#include "exchange.hpp"
#include "serving.hpp"
#include "serving_arguments.hpp"
#include "tensor_views.hpp"
#include "torch_api.hpp"
#include "torch_route.hpp"

namespace attend::python {
namespace {

using namespace nb::literals;
using nb::dlpack::dltensor;
using Sizes = std::vector<std::int64_t>;

/// Returns the result of a call that the direct route does not support.
nb::object not_direct() {
  return nb::none();
}

/// Returns a tuple with `size` elements. Element i is the object that `item(i)` returns.
template <class Item>
nb::tuple tuple_of(std::size_t size, Item item) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(size)));
  if (!tuple.is_valid()) nb::raise_python_error();
  for (std::size_t i = 0; i < size; ++i) {
    NB_TUPLE_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), item(i).release().ptr());
  }
  return nb::borrow<nb::tuple>(tuple);
}

nb::tuple tuple_of(std::span<const nb::handle> items) {
  return tuple_of(items.size(), [&](std::size_t i) { return nb::borrow(items[i]); });
}

nb::tuple tuple_of(const Sizes& sizes) {
  return tuple_of(sizes.size(), [&](std::size_t i) { return nb::int_(sizes[i]); });
}

/// Returns an uninitialised contiguous tensor on the device of `like`. Its dtype is float32 or the dtype of `like`.
nb::object dense(nb::handle like, const Sizes& shape, bool is_float32) {
  Sizes strides(shape.size());
  std::int64_t step = 1;
  for (std::size_t d = shape.size(); d-- > 0; step *= std::max<std::int64_t>(shape[d], 1)) strides[d] = step;
  const nb::tuple sizes = tuple_of(shape), steps = tuple_of(strides);
  return is_float32 ? empty_float32(like, sizes, steps) : torch->new_empty_strided(like, sizes, steps);
}

/// Returns `out`, or a new tensor if `out` is None. The result is invalid if `out` does not have the given shape, or if
/// torch would allocate the new tensor with a last dimension that is not contiguous.
nb::object result(nb::handle out, nb::handle like, const Sizes& shape) {
  const auto is_of_shape = [&](const dltensor& x) { return std::ranges::equal(std::span(x.shape, x.ndim), shape); };
  if (!out.is_none()) return is_of_shape(exchanged_tensor(out)) ? nb::borrow(out) : nb::object();
  const dltensor memory = exchanged_tensor(like);
  if (memory.strides[memory.ndim - 1] != 1) return {};
  if (!is_of_shape(memory)) return dense(like, shape, false);
  nb::object made = torch->empty_like(like);
  return exchanged_tensor(made).strides[memory.ndim - 1] == 1 ? made : nb::object();
}

/// The tensors o and lse for decode. lse is None if the caller did not request it. They are invalid if result() returns
/// an invalid object.
struct DecodeResults {
  nb::object o, lse;
};

DecodeResults decode_results(const ServingArguments& x, nb::handle q, nb::handle out) {
  const dltensor rows = exchanged_tensor(q);
  if (rows.ndim != (x.layout_q == Layout::kThd ? 3 : 4)) return {};
  Sizes shape(rows.shape, rows.shape + rows.ndim);
  shape.back() = x.head_dim_of_values;
  DecodeResults results = {result(out, q, shape), nb::none()};
  if (!results.o.is_valid() || !is_true(x.return_lse)) return results;
  shape.pop_back();
  if (x.layout_q == Layout::kBshd) std::swap(shape[1], shape[2]);
  if (x.layout_q == Layout::kThd) std::swap(shape[0], shape[1]);
  results.lse = dense(q, shape, true);
  return results;
}

/// Calls the library. All tensors are on the device of `owner`. Returns false if the library refuses the call.
bool run(void (*call)(nb::handle, nb::handle, std::uintptr_t), const ServingArguments& x, nb::handle owner) {
  const dltensor memory = exchanged_tensor(owner);
  Device device;
  if (is_on_gpu(memory)) device = {DeviceType::kCUDA, memory.device.device_id};
  const nb::tuple tensors = tuple_of(x.tensors), numbers = tuple_of(x.numbers);
  const auto stream = reinterpret_cast<std::uintptr_t>(current_stream(device));
  try {
    call(tensors, numbers, stream);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument && error.code() != ErrorCode::kUnsupported) throw;
    return false;
  }
}

/// Makes autograd count a write to tensors of the caller. If autograd has saved such a tensor, it then reports an error
/// in backward.
void count_writes(std::initializer_list<nb::handle> tensors) {
  for (const nb::handle x : tensors) {
    if (!x.is_none() && !is_true(torch->is_inference(x))) torch->increment_version(x);
  }
}

/// Returns the converted arguments of a call, or nothing if the direct route does not support the call.
std::optional<ServingArguments> direct_arguments(ServingCall call, const nb::tuple& options,
                                                 std::initializer_list<PositionalArgument> others) {
  if (torch == nullptr || !torch->has_exchange_table) return std::nullopt;
  std::optional<ServingArguments> x = placed_arguments(call, options, others);
  if (!x || !is_direct_without_gradients(x->given_tensors()) || !resolve(call, *x)) return std::nullopt;
  return x;
}

nb::object decode_of_options(nb::handle q, nb::handle k_cache, nb::handle v_cache, const nb::tuple& options) {
  auto x = direct_arguments(ServingCall::kDecode, options, {{"q", q}, {"k_cache", k_cache}, {"v_cache", v_cache}});
  if (!x) return not_direct();
  nb::handle& out = x->tensor("out");
  const nb::handle given = out;
  const auto [o, lse] = decode_results(*x, q, given);
  if (!o.is_valid()) return not_direct();
  out = o;
  x->tensor("lse") = lse;
  if (!run(&decode, *x, q)) return not_direct();
  count_writes({given});
  if (x->has("k")) count_writes({k_cache, v_cache});
  return lse.is_none() ? o : nb::object(nb::make_tuple(o, lse));
}

/// Returns a tuple with the element q_out. q_out is None if q is not given.
nb::object append_of_options(nb::handle k, nb::handle v, nb::handle k_cache, nb::handle v_cache,
                             const nb::tuple& options) {
  auto x =
      direct_arguments(ServingCall::kAppend, options, {{"k", k}, {"v", v}, {"k_cache", k_cache}, {"v_cache", v_cache}});
  if (!x) return not_direct();
  nb::object q_out = nb::none();
  nb::handle& out = x->tensor("out");
  const nb::handle given = out;
  if (x->has("q")) {
    const dltensor q = exchanged_tensor(x->tensor("q"));
    q_out = q.ndim == 0 ? nb::object() : result(given, x->tensor("q"), Sizes(q.shape, q.shape + q.ndim));
    if (!q_out.is_valid()) return not_direct();
  }
  out = q_out;
  if (!run(&append, *x, k)) return not_direct();
  count_writes({given, k_cache, v_cache});
  return nb::make_tuple(q_out);
}

void learn_decode(const nb::dict& defaults) {
  learn_serving_options(ServingCall::kDecode, defaults);
}

void learn_append(const nb::dict& defaults) {
  learn_serving_options(ServingCall::kAppend, defaults);
}

}  // namespace

void add_torch_serving(nb::module_& m) {
  m.def("learn_decode", &learn_decode);
  m.def("learn_append", &learn_append);
  // None is allowed for tensors here. The other route then reports the argument by name.
  m.def("decode_of_options", &decode_of_options, "q"_a.none(), "k_cache"_a.none(), "v_cache"_a.none(), "options"_a);
  m.def("append_of_options", &append_of_options, "k"_a.none(), "v"_a.none(), "k_cache"_a.none(), "v_cache"_a.none(),
        "options"_a);
}

}  // namespace attend::python
