// Passes on a GPU. Kernels run on the caller's stream, messages on a separate stream of the context, and events order
// the two streams. The host waits for neither stream.
#include <array>
#include <bit>
#include <limits>

#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"
#include "dispatch/dispatch.hpp"
#include "ring/engine/device_rows.hpp"
#include "ring/engine/engine.hpp"
#include "ring/engine/parts.hpp"
#include "ring/engine/ring_rows.hpp"

namespace attend::ring {
namespace {

using core::Problem;
using cuda::DevicePointer;
using cuda::StreamHandle;

DevicePointer address_of(const void* data) {
  return reinterpret_cast<DevicePointer>(data);
}

class DeviceEngine : public Engine {
 public:
  DeviceEngine(Transport& transport, const Call& call, StreamHandle stream)
      : transport_(transport),
        call_(call),
        device_(call.problem.q.device),
        state_(transport.state(device_.index)),
        stream_(stream) {}

  [[nodiscard]] std::vector<Parcel> parcels(std::span<const TensorSpecs> specs) override {
    constexpr std::size_t kAlignment = 256;  // alignment in bytes of each message
    std::vector<Parcel> all;
    std::size_t total = 0;
    for (const TensorSpecs& spec : specs) {
      all.push_back(parcel_of(spec));
      total += (all.back().bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    auto* at = reinterpret_cast<std::byte*>(state_.borrow(total, stream_));  // NOLINT(performance-no-int-to-ptr)
    for (Parcel& parcel : all) {
      parcel = placed(parcel, at, device_);
      clear_gaps(parcel.tensors, stream_);
      at += (parcel.bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
    return all;
  }

  [[nodiscard]] Tensor tensor(DType dtype, const Shape& shape) override {
    Tensor t = Tensor::bhsd<void>(nullptr, dtype, shape, device_);
    memory_.emplace_back(static_cast<std::size_t>(t.numel() * dtype_bytes(dtype)), stream_);
    t.data = reinterpret_cast<void*>(memory_.back().data());  // NOLINT(performance-no-int-to-ptr)
    return t;
  }

  void fill(const Tensor& dense, float value) override {
    const auto count = static_cast<std::size_t>(dense.numel());
    const auto bytes = count * static_cast<std::size_t>(dtype_bytes(dense.dtype));
    if (count == 0) return;
    constexpr const char* kDoing = "clearing sums of a ring";
    const DevicePointer at = address_of(dense.data);
    if (value == 0) {
      cuda::clear(at, bytes, stream_, kDoing);
    } else {
      cuda::check_call(cuda::driver().memset_words_async(at, std::bit_cast<unsigned>(value), count, stream_),
                       "cuMemsetD32Async", kDoing);
    }
  }

  void copy(const Tensor& to, const Tensor& from) override { cuda::convert_rows(to, from, stream_); }
  void add(const Tensor& to, const Tensor& from) override { cuda::add_rows(to, from, stream_); }

  void exchange(Channel /*channel*/, std::span<const Delivery> sends, std::span<const Delivery> receives) override {
    const auto messages = [](std::span<const Delivery> deliveries) {
      std::vector<DeviceMessage> all;
      for (const Delivery& d : deliveries) {
        if (d.parcel->bytes > 0) all.push_back({d.peer, address_of(d.parcel->data), d.parcel->bytes});
      }
      return all;
    };
    const std::vector<DeviceMessage> outgoing = messages(sends), incoming = messages(receives);
    if (outgoing.empty() && incoming.empty()) return;
    cuda::Event ready, done;
    // From here on, the data to send is complete, and no kernel reads the receive buffers any more.
    ready.record(stream_);
    ready.make_wait(state_.stream());
    {
      const TimedSpan span(timeline(), Activity::kExchange, 2 * exchanges_++, state_.stream());
      transport_.exchange(outgoing, incoming);
    }
    done.record(state_.stream());
    done.make_wait(stream_);  // from here on received memory may be read, and sent memory may be overwritten
  }

  void run(const Problem& problem) override {
    const core::Backend& backend = dispatch::choose(call_.compute, problem);
    if (problem.is_backward) {
      backend.backward(problem, stream_);
    } else {
      backend.forward(problem, stream_);
    }
  }

  void begin_rows() override {
    const Shape& shape = call_.problem.o.shape;
    o_ = tensor(DType::kF32, shape);
    lse_ = tensor(DType::kF32, {shape[0], shape[1], shape[2], 1});
    fill(lse_, -std::numeric_limits<float>::infinity());
  }

  void add_forward(const Piece& piece, Problem part) override {
    prepare_adding(part, call_, piece);
    (void)written_.take(piece.rows.local_begin, piece.rows.local_begin + piece.rows.length);
    part.o = rows_of(o_, piece.rows.local_begin, piece.rows.length);
    part.lse = rows_of(lse_, piece.rows.local_begin, piece.rows.length);
    run(part);
  }

  void store_rows(const Tensor& o, const Tensor* lse) override {
    const TimedSpan span(timeline(), Activity::kCopy, 0, stream_);
    clear_unwritten(written_, std::array{o_}, stream_);
    copy(o, o_);
    if (lse != nullptr) copy(*lse, lse_);
  }

  void begin_dq() override { dq_ = tensor(DType::kF32, call_.problem.q.shape); }

  void add_backward(const Piece& piece, Problem part, const Tensor& dk, const Tensor& dv) override {
    prepare_adding(part, call_, piece);
    part.part->is_first_of_rows = stores_rows(written_, piece.rows, std::array{dq_}, stream_);
    set_gradients(part, piece, rows_of(dq_, piece.rows.local_begin, piece.rows.length), dk, dv);
    run(part);
  }

  void store_dq(const Tensor& dq) override {
    const TimedSpan span(timeline(), Activity::kCopy, 0, stream_);
    clear_unwritten(written_, std::array{dq_}, stream_);
    copy(dq, dq_);
  }
  void finish() override { state_.give_back(stream_); }
  [[nodiscard]] Timeline* timeline() const override { return transport_.timeline(); }
  [[nodiscard]] StreamHandle stream() const override { return stream_; }

 private:
  Transport& transport_;
  const Call& call_;
  Device device_;
  DeviceState& state_;
  StreamHandle stream_;
  int exchanges_ = 0;
  std::vector<cuda::Scratch> memory_;
  Tensor o_ = {}, lse_ = {}, dq_ = {};
  WrittenRows written_;  // rows of o_ (forward) or of dq_ (backward) that have a value
};

}  // namespace

std::unique_ptr<Engine> make_device_engine(Transport& transport, const Call& call, StreamHandle stream) {
  return std::make_unique<DeviceEngine>(transport, call, stream);
}

}  // namespace attend::ring
