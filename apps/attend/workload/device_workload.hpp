// The tensors of a workload on a GPU, and the attention calls on these tensors.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "workload/executor.hpp"

namespace attend::cli {

/// Executor for a GPU. All work is queued on one stream. The workload passed as `host` must outlive this object.
class DeviceWorkload : public Executor {
 public:
  DeviceWorkload(const Workload& host, const Choice& choice, bool rotate);
  ~DeviceWorkload() override;

  void run(Mode pass) override;
  void fetch() override;
  Sampler sampler(Mode pass) override;
  /// A function that queues an attention call on a stream, without the library's public functions. The sampler below
  /// times this function.
  using Submit = std::function<void(const core::Problem&, Stream)>;
  [[nodiscard]] Sampler sampler(Mode pass, Submit submit);
  double clock_mhz() override;

 private:
  /// The tensors of one call. Consecutive calls use different sets of tensors, so that they do not find data in the L2
  /// cache.
  struct TensorSet {
    Tensor q, k, v, dout, o, lse, dq, dk, dv;
    std::array<std::optional<Tensor>, core::kScoreTensors.size()> score_tensors, score_gradients;
    std::vector<Tensor> capture_gradients;
  };

  Tensor upload(const io::HostTensor& tensor);
  TensorSet upload_all();
  void run_on(const TensorSet& set, Mode pass);
  [[nodiscard]] Params params_of(const TensorSet& set, Mode pass) const;
  [[nodiscard]] ForwardCall forward_of(const TensorSet& set) const;
  [[nodiscard]] BackwardCall backward_of(const TensorSet& set) const;
  [[nodiscard]] core::Problem problem_of(const TensorSet& set, Mode pass) const;
  void download(const Tensor& from, const io::HostTensor& to);
  using Call = std::function<void(const TensorSet&)>;
  double time_calls(const Call& call, int calls);
  Sampler sampler_of(Call call);

  const Workload& host_;
  const Choice choice_;
  const Device device_;
  const cuda::ContextGuard context_;
  cuda::OwnStream stream_;
  std::vector<cuda::Scratch> memory_;
  std::optional<ScoreFunction> score_;
  std::vector<TensorSet> sets_;  // fetch() copies results from the first set to the host
  std::size_t next_ = 0;
};

}  // namespace attend::cli
