#include "ranks/executor.hpp"

#include <utility>

namespace attend::cli {
namespace {

class RingExecutor : public Executor {
 public:
  RingExecutor(const Workload& w, Choice choice, const RingParams& ring_params, RingSession& ring)
      : work_(w), choice_(std::move(choice)), ring_params_(ring_params), ring_(ring) {
    mine_.options = w.options;
    mine_.q = rows_of(w.q.view());
    mine_.k = rows_of(w.k.view());
    mine_.v = rows_of(w.v.view());
    mine_.allocate_forward();
    params_ = w.params("");
    for (std::size_t i = 0; i < w.score_tensors.size(); ++i) {
      const core::ScoreTensor& row = core::kScoreTensors[i];
      if (!row.is_of_scores() || !w.score_tensors[i]) continue;
      params_.*row.param = rows_of_scores(*w.score_tensors[i], mine_.score_tensors[i]);
    }
  }

  void run(Mode pass) override {
    params_.compute = choice_.compute(pass);
    if (pass == Mode::kForward) {
      ring_forward(ring_.context(), mine_.q.view(), mine_.k.view(), mine_.v.view(), mine_.o.view(), &mine_.lse.view(),
                   params_, ring_params_);
      has_forward_ = true;
      return;
    }
    if (!has_gradients_) prepare_backward();
    ring_backward(ring_.context(), mine_.dout_view(), mine_.q.view(), mine_.k.view(), mine_.v.view(), mine_.o.view(),
                  mine_.lse.view(), mine_.dq.view(), mine_.dk.view(), mine_.dv.view(), params_, ring_params_);
  }

  void fetch() override {
    if (has_forward_) {
      bring(mine_.o, work_.o);
      bring(mine_.lse, work_.lse);
    }
    if (has_gradients_) {
      bring(mine_.dq, work_.dq);
      bring(mine_.dk, work_.dk);
      bring(mine_.dv, work_.dv);
    }
  }

  Sampler sampler(Mode pass) override {
    return [this, timed = wall_clock([this, pass] { run(pass); })] { return ring_.largest(timed()); };
  }

  double clock_mhz() override { return 0; }

 private:
  [[nodiscard]] Shape shape_of(Shape whole, int rank) const {
    whole[2] = shard_seqlen(ring_params_.sharding, whole[2], rank, ring_.context().size());
    return whole;
  }

  [[nodiscard]] io::HostTensor rows_of(const Tensor& whole) const {
    const int rank = ring_.context().rank();
    io::HostTensor rows(whole.dtype, shape_of(whole.shape, rank));
    shard(ring_params_.sharding, whole, rows.view(), rank, ring_.context().size());
    return rows;
  }

  /// Returns the rows of a bias or mask that belong to this rank. If the tensor is the same for all rows, returns it
  /// unchanged.
  Tensor rows_of_scores(const io::HostTensor& whole, std::optional<io::HostTensor>& mine) const {
    if (whole.shape()[2] == 1) return whole.view();
    mine = rows_of(whole.view());
    return mine->view();
  }

  void prepare_backward() {
    if (work_.dout) mine_.dout = rows_of(work_.dout->view());
    mine_.allocate_backward();
    for (auto& gradient : mine_.score_gradients) gradient.reset();  // a ring computes no gradients of score tensors
    // If only backward is computed, o and lse are inputs from an earlier run.
    if (!has_forward_) {
      mine_.o = rows_of(work_.o.view());
      mine_.lse = rows_of(work_.lse.view());
    }
    has_gradients_ = true;
  }

  /// Collects the rows of all ranks on rank 0, which writes them to their positions in `whole`.
  void bring(io::HostTensor& rows, const io::HostTensor& whole) {
    const RingContext& context = ring_.context();
    if (!ring_.is_first()) return ring_.bring_to_first(context.rank(), rows.bytes());
    unshard(ring_params_.sharding, rows.view(), whole.view(), 0, context.size());
    for (int rank = 1; rank < context.size(); ++rank) {
      io::HostTensor theirs(whole.dtype(), shape_of(whole.shape(), rank));
      ring_.bring_to_first(rank, theirs.bytes());
      unshard(ring_params_.sharding, theirs.view(), whole.view(), rank, context.size());
    }
  }

  const Workload& work_;
  Workload mine_;  // contains this rank's rows
  Choice choice_;
  RingParams ring_params_;
  RingSession& ring_;
  Params params_;
  bool has_forward_ = false, has_gradients_ = false;
};

}  // namespace

std::unique_ptr<Executor> make_ring_executor(const Workload& w, const Choice& choice, const RingParams& ring_params,
                                             RingSession& ring) {
  return std::make_unique<RingExecutor>(w, choice, ring_params, ring);
}

}  // namespace attend::cli
