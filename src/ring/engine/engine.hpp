// Interface to the operations that ring algorithms need: memory, copies, attention kernels and messages. One class
// implements it for the host and another one for a GPU. The algorithms that gather keys or distribute heads therefore
// need only one version.
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

/// Dense tensors stored one after another and sent as one message. A parcel without elements is not sent.
struct Parcel {
  std::vector<Tensor> tensors;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// A parcel that is sent to or received from another rank.
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

  /// Returns uninitialised memory for messages, one parcel for each element of `specs`. May be called once in a pass.
  [[nodiscard]] virtual std::vector<Parcel> parcels(std::span<const TensorSpecs> specs) = 0;

  /// Returns an uninitialised dense tensor. It lives as long as the engine.
  [[nodiscard]] virtual Tensor tensor(DType dtype, const Shape& shape) = 0;

  /// Sets every element of a dense tensor to `value`. The tensor is f32 or f64, or of any dtype if `value` is 0.
  virtual void fill(const Tensor& dense, float value) = 0;

  /// Computes to = from for equal shapes. Each element is rounded once. On a GPU the types must be equal, or `from`
  /// must be f32.
  virtual void copy(const Tensor& to, const Tensor& from) = 0;

  /// Computes to += from. The tensors have equal shapes and are in partial_dtype.
  virtual void add(const Tensor& to, const Tensor& from) = 0;

  /// Sends and receives parcels. Later operations of the engine may read the received parcels. All ranks must make the
  /// same number of calls.
  virtual void exchange(Channel channel, std::span<const Delivery> sends, std::span<const Delivery> receives) = 0;

  /// Runs one backend call on a problem whose outputs are not merged with other results.
  virtual void run(const core::Problem& problem) = 0;

  /// These three functions compute o and lse of all rows of the rank. They must be called in this order: begin_rows,
  /// add_forward for each part, store_rows. A part covers some rows and some keys.
  virtual void begin_rows() = 0;
  virtual void add_forward(const Piece& piece, core::Problem part) = 0;
  virtual void store_rows(const Tensor& o, const Tensor* lse) = 0;

  /// These three functions compute dq of all rows of the rank. They must be called in this order: begin_dq,
  /// add_backward for each part, store_dq. add_backward also adds the gradients of the piece's keys to dk and dv, which
  /// are in partial_dtype. On a GPU, if Part::is_first_of_keys is set, it stores these gradients instead of adding
  /// them.
  virtual void begin_dq() = 0;
  virtual void add_backward(const Piece& piece, core::Problem part, const Tensor& dk, const Tensor& dv) = 0;
  virtual void store_dq(const Tensor& dq) = 0;

  /// Ends the pass. On a GPU, it ends when the stream reaches this point.
  virtual void finish() = 0;

  /// Returns the timeline in which the engine records when it computes, or null if nothing is recorded.
  [[nodiscard]] virtual Timeline* timeline() const = 0;
  [[nodiscard]] virtual cuda::StreamHandle stream() const = 0;
};

/// Lays out tensors one after another, each at a multiple of 256 bytes, without allocating memory. The `data` of each
/// tensor is its offset from the start.
[[nodiscard]] Parcel parcel_of(const TensorSpecs& specs);
/// Returns the same parcel, stored at `memory`.
[[nodiscard]] Parcel placed(const Parcel& parcel, std::byte* memory, Device device);

/// Prepares a part for a GPU: sets Part::adds_to_outputs, and sets dlse to the dlse of the piece's rows, because Parts
/// leaves it unset.
void prepare_adding(core::Problem& part, const Call& call, const Piece& piece);
/// Sets the gradient tensors of a part. `dq` has the piece's rows; `dk` and `dv` have all rows of their tensors.
void set_gradients(core::Problem& part, const Piece& piece, const Tensor& dq, const Tensor& dk, const Tensor& dv);

/// @param deltas  used only in backward: <dout, o> - dlse of the rank's rows, in partial_dtype. The tensor must outlive
///   the engine
[[nodiscard]] std::unique_ptr<Engine> make_host_engine(Transport& transport, const Call& call,
                                                       const Tensor* deltas = nullptr);
/// Makes an engine for tensors on a GPU, whose context must be current.
[[nodiscard]] std::unique_ptr<Engine> make_device_engine(Transport& transport, const Call& call,
                                                         cuda::StreamHandle stream);

}  // namespace attend::ring
