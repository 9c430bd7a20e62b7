// Tensor operations of the algorithms, on the host or on a GPU: memory, copies, kernels, messages. With this interface,
// algorithms that gather keys or distribute heads are written once for host and GPU.
//
// On a GPU all operations are queued on the caller's stream, in the order of the calls. Messages travel on a separate
// stream of the context.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cuda/driver/driver_types.hpp"
#include "ring/plan/call.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// Dense tensors one after another, sent as one message. A parcel without elements is not sent.
struct Parcel {
  std::vector<Tensor> tensors;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// A parcel to or from another rank.
struct Delivery {
  int peer;
  const Parcel* parcel;
};

using TensorSpecs = std::vector<std::pair<DType, Shape>>;

class Engine {
 public:
  Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  virtual ~Engine() = default;

  /// Returns uninitialised memory for messages, one parcel for each spec. Call once in a pass.
  [[nodiscard]] virtual std::vector<Parcel> parcels(std::span<const TensorSpecs> specs) = 0;

  /// Returns an uninitialised dense tensor that lives as long as the engine.
  [[nodiscard]] virtual Tensor tensor(DType dtype, const Shape& shape) = 0;

  /// Sets every element of a dense f32 or f64 tensor; if value is 0, a tensor of any dtype.
  virtual void fill(const Tensor& dense, float value) = 0;

  /// Computes to = from, of equal shapes, each element rounded once. On a GPU the types must be equal, or `from` must
  /// be f32.
  virtual void copy(const Tensor& to, const Tensor& from) = 0;

  /// Computes to += from, of equal shapes and in partial_dtype.
  virtual void add(const Tensor& to, const Tensor& from) = 0;

  /// Sends and receives. Later operations of the engine can read the received parcels. All ranks must call it the same
  /// number of times.
  virtual void exchange(Channel channel, std::span<const Delivery> sends, std::span<const Delivery> receives) = 0;

  /// Runs one backend call on a problem with separate outputs.
  virtual void run(const core::Problem& problem) = 0;

  /// Computes o and lse of all of the rank's rows from parts over different keys. Call begin_rows, then add_forward any
  /// number of times, then store_rows.
  virtual void begin_rows() = 0;
  virtual void add_forward(const Piece& piece, core::Problem part) = 0;
  virtual void store_rows(const Tensor& o, const Tensor* lse) = 0;

  /// Computes dq of all of the rank's rows likewise. Each part also adds to the piece's keys in dk and dv, in
  /// partial_dtype; on a GPU it stores them if is_first_of_keys.
  virtual void begin_dq() = 0;
  virtual void add_backward(const Piece& piece, core::Problem part, const Tensor& dk, const Tensor& dv) = 0;
  virtual void store_dq(const Tensor& dq) = 0;

  /// Ends the pass; on a GPU when the stream reaches this point.
  virtual void finish() = 0;

  /// Returns the timeline that records spans of compute, or null.
  [[nodiscard]] virtual Timeline* timeline() const = 0;
  [[nodiscard]] virtual cuda::StreamHandle stream() const = 0;
};

/// Lays out tensors without memory one after another, each at a multiple of 256 bytes. `data` holds offsets from 0.
[[nodiscard]] Parcel parcel_of(const TensorSpecs& specs);
/// Returns the same parcel at an address.
[[nodiscard]] Parcel placed(const Parcel& parcel, std::byte* memory, Device device);

/// On a GPU: marks a part as adding to its outputs, and sets the dlse of the piece's rows, which Parts leaves unset.
void prepare_adding(core::Problem& part, const Call& call, const Piece& piece);
/// Sets the gradients of a part. dq has the piece's rows; dk and dv have all keys of their tensor.
void set_gradients(core::Problem& part, const Piece& piece, const Tensor& dq, const Tensor& dk, const Tensor& dv);

/// @param deltas  backward: <dout, o> - dlse of the rank's rows, in partial_dtype; must outlive the engine
[[nodiscard]] std::unique_ptr<Engine> make_host_engine(Transport& transport, const Call& call,
                                                       const Tensor* deltas = nullptr);
/// Requires that the GPU's context is current.
[[nodiscard]] std::unique_ptr<Engine> make_device_engine(Transport& transport, const Call& call,
                                                         cuda::StreamHandle stream);

}  // namespace attend::ring
