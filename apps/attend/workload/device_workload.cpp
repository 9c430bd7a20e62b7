#include "workload/device_workload.hpp"

#include <algorithm>
#include <cmath>

#include "probe/sm_clock.hpp"

namespace attend::cli {
namespace {

constexpr std::size_t kMostSets = 64;

/// Returns the number of sets of tensors that calls use in turn. With this number, the tensors of a call are no longer
/// in the L2 cache when the set is used again.
std::size_t sets_beyond_cache(const Workload& w, std::size_t l2_bytes) {
  const auto bytes = static_cast<std::size_t>(traffic(w, w.dq.numel() > 0 ? Mode::kBackward : Mode::kForward)) + 1;
  return std::clamp<std::size_t>(2 * l2_bytes / bytes + 1, 1, kMostSets);
}

}  // namespace

DeviceWorkload::DeviceWorkload(const Workload& host, const Choice& choice, bool rotate)
    : host_(host), choice_(choice), device_(choice.device), context_(choice.device.index) {
  const std::size_t sets = rotate ? sets_beyond_cache(host, cuda::device_info(device_.index).l2_bytes) : 1;
  if (host.score != nullptr) {
    score_ = host.score->of_copies([this](const io::HostTensor& tensor) { return upload(tensor); });
  }
  for (std::size_t i = 0; i < sets; ++i) sets_.push_back(upload_all());
  cuda::synchronize(stream_.get());  // afterwards the caller can change or free the host's tensors
}

DeviceWorkload::~DeviceWorkload() = default;

Tensor DeviceWorkload::upload(const io::HostTensor& tensor) {
  memory_.emplace_back(tensor.bytes().size(), stream_.get());
  if (!tensor.bytes().empty()) memory_.back().copy_from_host(tensor.bytes().data(), tensor.bytes().size());
  Tensor view = tensor.view();
  view.data = reinterpret_cast<void*>(memory_.back().data());  // NOLINT(performance-no-int-to-ptr)
  view.device = device_;
  return view;
}

DeviceWorkload::TensorSet DeviceWorkload::upload_all() {
  const auto upload_if = [this](const std::optional<io::HostTensor>& tensor) {
    return tensor ? std::optional(upload(*tensor)) : std::nullopt;
  };
  TensorSet set;
  set.q = upload(host_.q);
  set.k = upload(host_.k);
  set.v = upload(host_.v);
  set.o = upload(host_.o);
  set.lse = upload(host_.lse);
  for (std::size_t i = 0; i < set.score_tensors.size(); ++i) set.score_tensors[i] = upload_if(host_.score_tensors[i]);
  // If dq has no memory, the workload has no backward pass.
  if (host_.dq.dtype() != host_.q.dtype() || host_.dq.shape() != host_.q.shape()) return set;
  set.dout = upload(host_.dout ? *host_.dout : host_.ones());
  set.dout.shape = host_.dout_view().shape;
  set.dout.stride = host_.dout_view().stride;
  set.dq = upload(host_.dq);
  set.dk = upload(host_.dk);
  set.dv = upload(host_.dv);
  for (std::size_t i = 0; i < set.score_gradients.size(); ++i) {
    set.score_gradients[i] = upload_if(host_.score_gradients[i]);
  }
  for (const io::HostTensor& gradient : host_.capture_gradients) set.capture_gradients.push_back(upload(gradient));
  return set;
}

Params DeviceWorkload::params_of(const TensorSet& t, Mode pass) const {
  Params params = host_.options.params(choice_.compute(pass));
  for (std::size_t i = 0; i < t.score_tensors.size(); ++i) params.*core::kScoreTensors[i].param = t.score_tensors[i];
  if (score_) params.score = &*score_;
  if (host_.block_mask) params.block_mask = &*host_.block_mask;
  return params;
}

ForwardCall DeviceWorkload::forward_of(const TensorSet& t) const {
  return {.q = t.q,
          .k = t.k,
          .v = t.v,
          .o = t.o,
          .lse = t.lse,
          .params = params_of(t, Mode::kForward),
          .stream = stream_.get()};
}

BackwardCall DeviceWorkload::backward_of(const TensorSet& t) const {
  BackwardCall call = {.q = t.q,
                       .k = t.k,
                       .v = t.v,
                       .o = t.o,
                       .lse = t.lse,
                       .dout = t.dout,
                       .dq = t.dq,
                       .dk = t.dk,
                       .dv = t.dv,
                       .params = params_of(t, Mode::kBackward),
                       .stream = stream_.get()};
  for (std::size_t i = 0; i < t.score_gradients.size(); ++i) {
    if (t.score_gradients[i]) call.*core::kScoreTensors[i].passed_gradient = t.score_gradients[i];
  }
  for (std::size_t i = 0; i < t.capture_gradients.size(); ++i) {
    const UserScore::Capture& capture = *host_.score->learned_captures()[i];
    StridedTensor gradient = strided_view(host_.capture_gradients[i], capture.array.shape);
    gradient.data = t.capture_gradients[i].data;
    gradient.device = device_;
    call.captures.push_back({capture.name, gradient});
  }
  return call;
}

core::Problem DeviceWorkload::problem_of(const TensorSet& t, Mode pass) const {
  return pass == Mode::kForward ? core::make_problem(forward_of(t)) : core::make_problem(backward_of(t));
}

void DeviceWorkload::run_on(const TensorSet& t, Mode pass) {
  if (pass == Mode::kForward) {
    attend::forward(forward_of(t));
  } else {
    attend::backward(backward_of(t));
  }
}

void DeviceWorkload::run(Mode pass) {
  for (const TensorSet& set : sets_) run_on(set, pass);
}

void DeviceWorkload::download(const Tensor& from, const io::HostTensor& to) {
  const auto same = [&](const cuda::Scratch& m) {
    return m.data() == reinterpret_cast<cuda::DevicePointer>(from.data);
  };
  const auto memory = std::find_if(memory_.begin(), memory_.end(), same);
  if (memory != memory_.end() && !to.bytes().empty()) memory->copy_to_host(to.view().data, to.bytes().size());
}

void DeviceWorkload::fetch() {
  const TensorSet& set = sets_.front();
  download(set.o, host_.o);
  download(set.lse, host_.lse);
  if (set.dq.data != nullptr) {
    download(set.dq, host_.dq);
    download(set.dk, host_.dk);
    download(set.dv, host_.dv);
    for (std::size_t i = 0; i < set.score_gradients.size(); ++i) {
      if (set.score_gradients[i]) download(*set.score_gradients[i], *host_.score_gradients[i]);
    }
    for (std::size_t i = 0; i < set.capture_gradients.size(); ++i) {
      download(set.capture_gradients[i], host_.capture_gradients[i]);
    }
  }
  cuda::synchronize(stream_.get());
}

double DeviceWorkload::time_calls(const Call& call, int calls) {
  cuda::Event start(cuda::Event::Timing::kOn);
  cuda::Event stop(cuda::Event::Timing::kOn);
  start.record(stream_.get());
  for (int i = 0; i < calls; ++i) call(sets_[next_++ % sets_.size()]);
  stop.record(stream_.get());
  stop.synchronize();
  return static_cast<double>(stop.milliseconds_since(start)) / calls;
}

Sampler DeviceWorkload::sampler_of(Call call) {
  constexpr double kSampleMs = 1.0;  // much longer than recording an event, which takes microseconds
  constexpr int kMostCalls = 200;
  return [this, call = std::move(call), calls = 0]() mutable {
    if (calls == 0) {
      for (const TensorSet& set : sets_) call(set);  // warm-up, which compiles kernels and uses every set once
      const double once = std::min(time_calls(call, 1), time_calls(call, 1));
      calls = static_cast<int>(std::clamp(std::ceil(kSampleMs / std::max(once, 1e-3)), 1.0, double{kMostCalls}));
    }
    return time_calls(call, calls);
  };
}

Sampler DeviceWorkload::sampler(Mode pass) {
  return sampler_of([this, pass](const TensorSet& set) { run_on(set, pass); });
}

Sampler DeviceWorkload::sampler(Mode pass, Submit submit) {
  return sampler_of(
      [this, pass, submit = std::move(submit)](const TensorSet& set) { submit(problem_of(set, pass), stream_.get()); });
}

double DeviceWorkload::clock_mhz() {
  return cuda::sm_clock_mhz(device_.index, stream_.get());
}

}  // namespace attend::cli
