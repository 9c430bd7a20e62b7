#include "workload/workload.hpp"

#include <algorithm>

namespace attend::cli {
namespace {

io::HostTensor poisoned(DType dtype, const Shape& shape) {
  io::HostTensor tensor(dtype, shape);
  tensor.poison();
  return tensor;
}

/// Returns the number of scores that operations() counts for one head of one sequence.
double scores(const core::Problem& p, const AttentionOptions& options) {
  const double all = static_cast<double>(p.max_seqlen_q) * static_cast<double>(p.max_seqlen_k);
  if (options.window_left < 0 && (options.causal || options.window_right < 0)) return options.causal ? all / 2 : all;
  const WindowMask window = p.window(p.sequence(0));
  double seen = 0;
  for (std::int64_t row = 0; row < p.max_seqlen_q; ++row) {
    seen += static_cast<double>(window.row(row).end - window.row(row).begin);
  }
  return seen;
}

/// Returns the fraction of the elements of the option `mask` that are true. Only stored elements are counted, without
/// repetitions by broadcast.
double share_kept(const ScoreTensors& tensors) {
  double share = 1;
  for (const auto& tensor : tensors) {
    if (!tensor || tensor->dtype() != DType::kBool || tensor->numel() == 0) continue;
    const auto bytes = tensor->bytes();
    const auto hidden = std::count(bytes.begin(), bytes.end(), std::byte{0});
    share = 1 - static_cast<double>(hidden) / static_cast<double>(bytes.size());
  }
  return share;
}

}  // namespace

void Workload::allocate_forward() {
  o = poisoned(io::output_dtype(q.dtype()), {q.shape()[0], q.shape()[1], q.shape()[2], v.shape()[3]});
  lse = poisoned(io::lse_dtype(q.dtype()), {q.shape()[0], q.shape()[1], q.shape()[2], 1});
}

void Workload::allocate_backward() {
  dq = poisoned(q.dtype(), q.shape());
  dk = poisoned(k.dtype(), k.shape());
  dv = poisoned(v.dtype(), v.shape());
  for (std::size_t i = 0; i < score_tensors.size(); ++i) {
    const auto& tensor = score_tensors[i];
    if (tensor && core::kScoreTensors[i].gradient != nullptr) {
      score_gradients[i] = poisoned(tensor->dtype(), tensor->shape());
    }
  }
  capture_gradients.clear();
  if (score != nullptr) {
    const DType dtype = q.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
    for (const UserScore::Capture* capture : score->learned_captures()) {
      capture_gradients.push_back(poisoned(dtype, capture->array.tensor.shape()));
    }
  }
  if (!dout) {
    ones_ = io::HostTensor(q.dtype(), {1, 1, 1, v.shape()[3]});
    ones_.fill(1.0);
  }
}

Tensor Workload::dout_view() const {
  if (dout) return dout->view();
  Tensor view = ones_.view();
  view.shape = {q.shape()[0], q.shape()[1], q.shape()[2], v.shape()[3]};
  view.stride = {0, 0, 0, 1};
  return view;
}

Params Workload::params(std::string_view compute) const {
  Params params = options.params(compute);
  for (std::size_t i = 0; i < score_tensors.size(); ++i) {
    if (score_tensors[i]) params.*core::kScoreTensors[i].param = score_tensors[i]->view();
  }
  if (score != nullptr) params.score = &score->function();
  if (block_mask) params.block_mask = &*block_mask;
  return params;
}

ForwardCall Workload::forward_of(std::string_view compute) const {
  return {.q = q.view(), .k = k.view(), .v = v.view(), .o = o.view(), .lse = lse.view(), .params = params(compute)};
}

BackwardCall Workload::backward_of(std::string_view compute) const {
  BackwardCall call = {.q = q.view(),
                       .k = k.view(),
                       .v = v.view(),
                       .o = o.view(),
                       .lse = lse.view(),
                       .dout = dout_view(),
                       .dq = dq.view(),
                       .dk = dk.view(),
                       .dv = dv.view(),
                       .params = params(compute)};
  for (std::size_t i = 0; i < score_gradients.size(); ++i) {
    if (score_gradients[i]) call.*core::kScoreTensors[i].passed_gradient = score_gradients[i]->view();
  }
  for (std::size_t i = 0; i < capture_gradients.size(); ++i) {
    const UserScore::Capture& capture = *score->learned_captures()[i];
    call.captures.push_back({capture.name, strided_view(capture_gradients[i], capture.array.shape)});
  }
  return call;
}

void Workload::forward(std::string_view compute) const {
  attend::forward(forward_of(compute));
}

void Workload::backward(std::string_view compute) const {
  attend::backward(backward_of(compute));
}

core::Problem Workload::forward_problem() const {
  return core::make_problem(forward_of("auto"));
}

core::Problem Workload::backward_problem() const {
  return core::make_problem(backward_of("auto"));
}

Workload Workload::inputs_as(DType dtype) const {
  Workload copy;
  copy.options = options;
  copy.score = score;
  copy.block_mask = block_mask;
  copy.q = q.converted(dtype);
  copy.k = k.converted(dtype);
  copy.v = v.converted(dtype);
  if (dout) copy.dout = dout->converted(dtype);
  for (std::size_t i = 0; i < score_tensors.size(); ++i) {
    const auto& tensor = score_tensors[i];
    if (!tensor) continue;
    const DType wanted = dtype == DType::kF64 ? dtype : tensor->dtype();
    copy.score_tensors[i] = tensor->converted(core::kScoreTensors[i].dtype.value_or(wanted));
  }
  return copy;
}

void set_threads(std::int64_t threads) {
  if (threads > 0) set_cpu_threads(static_cast<int>(threads));
}

double share_seen(const Workload& w) {
  const core::Problem p = w.forward_problem();
  const double all = static_cast<double>(p.max_seqlen_q) * static_cast<double>(p.max_seqlen_k);
  const double of_options = all > 0 ? scores(p, w.options) / all : 1;
  return std::min({of_options, w.block_mask ? w.block_mask->density() : 1.0, share_kept(w.score_tensors)});
}

double operations(const Workload& w, Mode mode, double seen) {
  const core::Problem p = w.forward_problem();
  const double of_head = seen * static_cast<double>(p.max_seqlen_q) * static_cast<double>(p.max_seqlen_k);
  const double forward = 2.0 * static_cast<double>(p.num_sequences) * static_cast<double>(p.num_heads_q) * of_head *
                         static_cast<double>(p.head_dim + p.head_dim_v);
  constexpr double kBackwardFactor = 2.5;  // five matrix products in backward, two in forward
  return mode == Mode::kForward    ? forward
         : mode == Mode::kBackward ? kBackwardFactor * forward
                                   : (1 + kBackwardFactor) * forward;
}

double traffic(const Workload& w, Mode mode) {
  const auto size = [](const auto& tensor) { return static_cast<double>(tensor.bytes().size()); };
  const auto optional_size = [&](const auto& tensor) { return tensor ? size(*tensor) : 0.0; };
  double inputs = size(w.q) + size(w.k) + size(w.v);
  for (const auto& tensor : w.score_tensors) inputs += optional_size(tensor);
  const double forward = inputs + size(w.o) + size(w.lse);
  if (mode == Mode::kForward) return forward;
  const double dout = w.dout ? size(*w.dout) : size(w.o);
  double backward = inputs + size(w.o) + size(w.lse) + dout + size(w.dq) + size(w.dk) + size(w.dv);
  for (const auto& gradient : w.score_gradients) backward += optional_size(gradient);
  for (const auto& gradient : w.capture_gradients) backward += size(gradient);
  return mode == Mode::kBackward ? backward : forward + backward;
}

}  // namespace attend::cli
