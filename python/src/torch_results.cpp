#include "torch_results.hpp"

#include <nanobind/ndarray.h>

#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "arguments.hpp"
#include "attend/attention.hpp"
#include "exchange.hpp"
#include "read_settings.hpp"
#include "tensor_views.hpp"
#include "torch_api.hpp"
#include "torch_route.hpp"

namespace attend::python {
namespace {

using nb::dlpack::dltensor;

void compute_forward(const Views& x, const Options& options) {
  const Stream stream = current_stream(x.q.device);
  const nb::gil_scoped_release release;
  attend::forward({.q = x.q, .k = x.k, .v = x.v, .o = x.o, .lse = x.lse, .params = options.params(), .stream = stream});
}

/// Runs a backward pass. `x` must contain lse.
void compute_backward(const Views& x, const Gradients& g, const Options& options) {
  const Stream stream = current_stream(x.q.device);
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
                    .params = options.params(),
                    .stream = stream});
}

/// An uninitialised tensor with the shape, dtype and device of `x`. It is invalid if torch would allocate it with a
/// last dimension that is not contiguous.
struct Like {
  nb::object object;
  Tensor view;

  Like(nb::handle x, Layout layout) : object(torch->empty_like(x)) {
    const dltensor memory = exchanged_tensor(object);
    if (is_dense_4d(memory)) {
      view = heads_of(memory, layout);
    } else {
      object = {};
    }
  }
};

/// Allocates lse for `q`: a float32 tensor (batch, heads, seqlen_q). Returns the tensor and its view. `view` is the
/// view of q.
std::pair<nb::object, Tensor> empty_lse(nb::handle q, const Tensor& view) {
  const auto [batch, heads, rows, head_dim] = view.shape;
  const nb::tuple shape = nb::make_tuple(batch, heads, rows), strides = nb::make_tuple(heads * rows, rows, 1);
  nb::object lse =
      view.dtype == DType::kF32 ? torch->new_empty_strided(q, shape, strides) : empty_float32(q, shape, strides);
  return {lse, rows_of(exchanged_tensor(lse)).value()};
}

/// Allocates o for a packed tensor: a contiguous tensor (batch, seqlen, heads, head_dim). Returns the tensor and its
/// view.
std::pair<nb::object, Tensor> empty_packed_o(nb::handle qkv, const Tensor& q) {
  const auto [batch, heads, rows, width] = q.shape;
  nb::object o = torch->new_empty_strided(qkv, nb::make_tuple(batch, rows, heads, width),
                                          nb::make_tuple(rows * heads * width, heads * width, width, 1));
  return {o, heads_of(exchanged_tensor(o), Layout::kBshd)};
}

/// Computes o, and also lse if return_lse is true. lse is allocated on the device of `q`.
ForwardResults finished(Views& x, const nb::object& o, nb::handle q, bool return_lse, const Options& options) {
  nb::object lse = nb::none();
  if (return_lse) std::tie(lse, x.lse.emplace()) = empty_lse(q, x.q);
  compute_forward(x, options);
  return {o, std::move(lse)};
}

bool read_heads(nb::handle x, Layout layout, Tensor& view) {
  dltensor memory;
  if (!is_ordinary(x, memory) || !is_dense_4d(memory)) return false;
  view = heads_of(memory, layout);
  return true;
}

bool read_rows(nb::handle x, std::optional<Tensor>& view) {
  dltensor memory;
  if (is_ordinary(x, memory)) view = rows_of(memory);
  return view.has_value();
}

/// Returns whether backward may read its tensors. If there is no gradient of o, there is nothing to read.
bool can_read_gradients(nb::handle dout) {
  return torch->has_exchange_table && !dout.is_none() && engine_allows_direct_route();
}

/// Returns the settings for backward. If torch requires determinism now, the returned settings are deterministic, even
/// if torch did not require determinism during forward.
std::shared_ptr<const ReadSettings> settings_of_backward(nb::handle tuple) {
  return settings_of_tuple(is_true(torch->requires_determinism()) ? torch->with_required_determinism(tuple)
                                                                  : nb::borrow(tuple));
}

}  // namespace

ForwardResults forward_results(nb::handle q, nb::handle k, nb::handle v, nb::handle settings, bool return_lse) {
  if (!torch->has_exchange_table) return {};
  const std::array memory = {exchanged_tensor(q), exchanged_tensor(k), exchanged_tensor(v)};
  for (const dltensor& x : memory) {
    if (!is_dense_4d(x) || !(x.dtype == memory[0].dtype)) return {};
  }
  const auto read = settings_of_tuple(settings);
  const Layout layout = read->layout;
  if (memory[0].shape[3] != memory[2].shape[3] || layout == Layout::kThd) return {};
  const Like o(q, layout);
  if (!o.object.is_valid()) return {};
  // The DLPack descriptions point to shapes in the tensors, which other threads may change. The views copy the shapes.
  Views x = {heads_of(memory[0], layout), heads_of(memory[1], layout), heads_of(memory[2], layout), o.view, {}};
  return finished(x, o.object, q, return_lse, read->options);
}

bool is_packed(nb::handle qkv) {
  return torch->has_exchange_table && parts_of(exchanged_tensor(qkv)).has_value();
}

ForwardResults forward_results_packed(nb::handle qkv, nb::handle settings, bool return_lse) {
  const auto parts = parts_of(exchanged_tensor(qkv));
  if (!parts) return {};
  const auto read = settings_of_tuple(settings);
  const auto [o, o_view] = empty_packed_o(qkv, (*parts)[0]);
  Views x = {(*parts)[0], (*parts)[1], (*parts)[2], o_view, {}};
  return finished(x, o, qkv, return_lse, read->options);
}

std::array<nb::object, 3> backward_results(const nb::tuple& saved, nb::handle dout, nb::handle dlse,
                                           nb::handle settings) {
  constexpr std::size_t kSavedWithoutExtras = 5;
  if (saved.size() != kSavedWithoutExtras || !can_read_gradients(dout)) return {};
  const auto read = settings_of_backward(settings);
  const Layout layout = read->layout;
  Views x;
  Gradients g;
  const std::pair<nb::handle, Tensor*> heads[] = {
      {saved[0], &x.q}, {saved[1], &x.k}, {saved[2], &x.v}, {saved[3], &x.o}, {dout, &g.dout}};
  for (const auto& [tensor, view] : heads) {
    // A tensor can have another dtype than q, for example if the forward pass ran under autocast. "auto" would then
    // choose the slow `reference` backend.
    if (!read_heads(tensor, layout, *view) || view->dtype != x.q.dtype) return {};
  }
  if (!read_rows(saved[4], x.lse) || (!dlse.is_none() && !read_rows(dlse, g.dlse))) return {};
  const Like dq(saved[0], layout), dk(saved[1], layout), dv(saved[2], layout);
  if (!dq.object.is_valid() || !dk.object.is_valid() || !dv.object.is_valid()) return {};
  g.dq = dq.view, g.dk = dk.view, g.dv = dv.view;
  compute_backward(x, g, read->options);
  return {dq.object, dk.object, dv.object};
}

nb::object backward_results_packed(const nb::tuple& saved, nb::handle dout, nb::handle dlse, nb::handle settings) {
  dltensor memory;
  if (!can_read_gradients(dout) || !is_ordinary(saved[0], memory)) return {};
  const auto parts = parts_of(memory);
  if (!parts) return {};
  Views x = {(*parts)[0], (*parts)[1], (*parts)[2], {}, {}};
  Gradients g;
  if (!read_heads(saved[1], Layout::kBshd, x.o) || !read_heads(dout, Layout::kBshd, g.dout)) return {};
  if (x.o.dtype != x.q.dtype || g.dout.dtype != x.q.dtype) return {};
  if (!read_rows(saved[2], x.lse) || (!dlse.is_none() && !read_rows(dlse, g.dlse))) return {};
  const auto read = settings_of_backward(settings);
  nb::object dqkv = torch->empty_like(saved[0]);
  const auto gradients = parts_of(exchanged_tensor(dqkv));
  if (!gradients) return {};
  g.dq = (*gradients)[0], g.dk = (*gradients)[1], g.dv = (*gradients)[2];
  compute_backward(x, g, read->options);
  return dqkv;
}

}  // namespace attend::python
