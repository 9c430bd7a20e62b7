// Passes on the host. A CPU backend computes, the host waits for messages, and partial results are merged in float64.
#include "ring/engine/block.hpp"
#include "ring/engine/engine.hpp"
#include "ring/engine/merge.hpp"
#include "ring/engine/sum_type.hpp"

namespace attend::ring {
namespace {

class HostEngine : public Engine {
 public:
  HostEngine(Transport& transport, const Call& call, const Tensor* deltas)
      : transport_(transport), call_(call), deltas_(deltas) {}

  [[nodiscard]] std::vector<Parcel> parcels(std::span<const TensorSpecs> specs) override {
    std::vector<Parcel> all;
    for (const TensorSpecs& spec : specs) {
      const Parcel nowhere = parcel_of(spec);
      memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(nowhere.bytes));
      all.push_back(placed(nowhere, memory_.back().get(), {}));
    }
    return all;
  }

  [[nodiscard]] Tensor tensor(DType dtype, const Shape& shape) override {
    blocks_.emplace_back(dtype, shape);
    return blocks_.back().first();
  }

  void fill(const Tensor& dense, float value) override {
    const std::int64_t count = dense.numel();
    if (value == 0) {
      std::fill_n(static_cast<std::byte*>(dense.data), count * dtype_bytes(dense.dtype), std::byte{0});
      return;
    }
    with_sum_type(dense.dtype, [&]<class Sum>(Sum) { std::fill_n(static_cast<Sum*>(dense.data), count, value); });
  }

  void copy(const Tensor& to, const Tensor& from) override { convert(to, from); }
  void add(const Tensor& to, const Tensor& from) override { accumulate(to, from); }

  void exchange(Channel channel, std::span<const Delivery> sends, std::span<const Delivery> receives) override {
    // In the timeline, exchanges have even step numbers, and the computation between two exchanges has an odd number.
    const TimedSpan span(timeline(), Activity::kExchange, 2 * exchanges_++);
    std::vector<std::unique_ptr<Pending>> pending;
    for (const Delivery& d : receives) {
      if (d.parcel->bytes == 0) continue;
      pending.push_back(transport_.receive(d.peer, channel, {d.parcel->data, d.parcel->bytes}));
    }
    for (const Delivery& d : sends) {
      if (d.parcel->bytes == 0) continue;
      pending.push_back(transport_.send(d.peer, channel, {d.parcel->data, d.parcel->bytes}));
    }
    for (const auto& message : pending) message->wait();
  }

  void run(const core::Problem& problem) override {
    if (problem.is_backward) {
      call_.backend->backward(problem, nullptr);
    } else {
      call_.backend->forward(problem, nullptr);
    }
  }

  void begin_rows() override { rows_.emplace(call_.problem.o.shape); }

  void add_forward(const Piece& piece, core::Problem part) override {
    const Shape& shape = part.o.shape;
    const Block o(call_.partial_dtype, shape);
    const Block lse(DType::kF64, {shape[0], shape[1], shape[2], 1});
    // In a ring of one rank, the result of this part is the final result, so the backend may round it. In a larger
    // ring, only the merged result is rounded.
    part.as_part().result_dtype = transport_.size() == 1 ? std::optional(part.o.dtype) : std::nullopt;
    part.o = o.first();
    part.lse = lse.first();
    run(part);
    rows_->add(piece.rows.local_begin, part.o, *part.lse);
  }

  void store_rows(const Tensor& o, const Tensor* lse) override { rows_->store(o, lse); }

  void begin_dq() override {
    dq_.emplace(DType::kF64, call_.problem.q.shape);
    dq_->zero();
  }

  void add_backward(const Piece& piece, core::Problem part, const Tensor& dk, const Tensor& dv) override {
    part.as_part().delta = rows_of(*deltas_, piece.rows.local_begin, piece.rows.length);
    const Block part_dq(call_.partial_dtype, part.q.shape);
    const Block part_keys(Pair::of(call_.partial_dtype, part.k.shape, call_.partial_dtype, part.v.shape));
    part.dq = part_dq.first();
    part.dk = part_keys.first();
    part.dv = part_keys.second();
    run(part);
    accumulate(rows_of(dq_->first(), piece.rows.local_begin, piece.rows.length), part.dq);
    accumulate(rows_of(dk, piece.keys.local_begin, piece.keys.length), part.dk);
    accumulate(rows_of(dv, piece.keys.local_begin, piece.keys.length), part.dv);
  }

  void store_dq(const Tensor& dq) override { convert(dq, dq_->first()); }
  void finish() override {}
  [[nodiscard]] Timeline* timeline() const override { return transport_.timeline(); }
  [[nodiscard]] cuda::StreamHandle stream() const override { return nullptr; }

 private:
  Transport& transport_;
  const Call& call_;
  const Tensor* deltas_;
  int exchanges_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<Block> blocks_;
  std::optional<MergedRows> rows_;
  std::optional<Block> dq_;
};

}  // namespace

std::unique_ptr<Engine> make_host_engine(Transport& transport, const Call& call, const Tensor* deltas) {
  return std::make_unique<HostEngine>(transport, call, deltas);
}

}  // namespace attend::ring
