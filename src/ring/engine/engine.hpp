// All that an algorithm does with tensors, on the host or on a GPU: memory, copies, kernels, messages. Algorithms give
// the orders, so that those that gather keys or deal heads out are written once for both places.
//
// On a GPU everything is put on the caller's stream, in the order of the calls; messages travel on the context's own.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cuda/driver/driver_types.hpp"
#include "ring/plan/call.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// Dense tensors side by side, so that they are one message. Of no tensor, or none with an element: it is not sent.
struct Parcel {
  std::vector<Tensor> tensors;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// A parcel to a rank, or from it.
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

  /// Memory for messages, undefined, one of each of the specs. To be called once in a pass.
  [[nodiscard]] virtual std::vector<Parcel> parcels(std::span<const TensorSpecs> specs) = 0;

  /// A dense tensor, undefined, that is there as long as the engine.
  [[nodiscard]] virtual Tensor tensor(DType dtype, const Shape& shape) = 0;

  /// Every element of a dense f32 or f64 tensor; of any dtype where value is 0.
  virtual void fill(const Tensor& dense, float value) = 0;

  /// to = from, of one shape, each element rounded once. On a GPU one type, or from f32.
  virtual void copy(const Tensor& to, const Tensor& from) = 0;

  /// to += from, of one shape and in partial_dtype.
  virtual void add(const Tensor& to, const Tensor& from) = 0;

  /// Sends and receives; what has come is there for what is asked of the engine next. All ranks call it as often.
  virtual void exchange(Channel channel, std::span<const Delivery> sends, std::span<const Delivery> receives) = 0;

  /// One call of a backend, of a problem with outputs of its own.
  virtual void run(const core::Problem& problem) = 0;

  /// o and lse of all of the rank's rows, of parts over different keys: begin, add them in any number, store.
  virtual void begin_rows() = 0;
  virtual void add_forward(const Piece& piece, core::Problem part) = 0;
  virtual void store_rows(const Tensor& o, const Tensor* lse) = 0;

  /// dq of all of the rank's rows likewise. Each part adds to the piece's keys in dk and dv, in partial_dtype, too; on
  /// a GPU it stores them where it is_first_of_keys.
  virtual void begin_dq() = 0;
  virtual void add_backward(const Piece& piece, core::Problem part, const Tensor& dk, const Tensor& dv) = 0;
  virtual void store_dq(const Tensor& dq) = 0;

  /// The pass is done; on a GPU when the stream gets here.
  virtual void finish() = 0;

  /// Where spans of compute are recorded, if they are.
  [[nodiscard]] virtual Timeline* timeline() const = 0;
  [[nodiscard]] virtual cuda::StreamHandle stream() const = 0;
};

/// Tensors without memory, one after another, each at a multiple of 256 bytes; data is the first one's place from 0.
[[nodiscard]] Parcel parcel_of(const TensorSpecs& specs);
/// The same at an address.
[[nodiscard]] Parcel placed(const Parcel& parcel, std::byte* memory, Device device);

/// On a GPU: makes a part one whose outputs are added to, with what of the piece's rows Parts leaves out.
void prepare_adding(core::Problem& part, const Call& call, const Piece& piece);
/// dq has the piece's rows; dk and dv have all keys of their tensor.
void set_gradients(core::Problem& part, const Piece& piece, const Tensor& dq, const Tensor& dk, const Tensor& dv);

/// @param deltas  backward: <dout, o> - dlse of the rank's rows, in partial_dtype; has to live as long
[[nodiscard]] std::unique_ptr<Engine> make_host_engine(Transport& transport, const Call& call,
                                                       const Tensor* deltas = nullptr);
/// Wants the GPU's context current.
[[nodiscard]] std::unique_ptr<Engine> make_device_engine(Transport& transport, const Call& call,
                                                         cuda::StreamHandle stream);

}  // namespace attend::ring
