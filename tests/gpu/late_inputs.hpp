// GPU memory for calls whose inputs are written late. A kernel first lets the next one start, then spins, and only then
// writes. A call that reads before that kernel has ended reads poison.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attend/tensor.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::test {

/// Work that a test puts on a stream: a call, or a kernel of LateInputs.
using Step = std::function<void(cuda::StreamHandle)>;

/// Inputs and outputs of calls in device memory. GPU 0 must be current.
class LateInputs {
 public:
  LateInputs();

  /// Moves the view to this memory, with the bytes that it has now. They are written late. Before that, the place holds
  /// poison (0xFF, NaN in every float type).
  template <class View>
  void input(const char* name, View& view) {
    view.data = add(name, view.data, span_bytes(view), nullptr);
    view.device = {DeviceType::kCUDA, 0};
  }

  /// Does the same for an array whose poison is another set of valid entries.
  template <class T>
  void input(const char* name, const T*& array, const std::vector<T>& poison) {
    array = static_cast<const T*>(add(name, array, poison.size() * sizeof(T), poison.data()));
  }

  /// Returns a dense tensor that calls write, or write and read. It starts as NaN.
  [[nodiscard]] Tensor output(DType dtype, const Shape& shape);

  /// Writes poison everywhere, in stream order.
  void restore(cuda::StreamHandle stream) const;
  /// Writes all inputs, but leaves the poison in the input called `name`.
  void restore_but(const std::string& name, cuda::StreamHandle stream) const;

  /// Writes the inputs late, with a kernel that lets the next one start right away.
  void write_late(cuda::StreamHandle stream) const;
  /// Writes one half of the inputs, 0 or 1, late.
  void write_half_late(std::size_t half, cuda::StreamHandle stream) const;
  /// Poisons the inputs with an ordinary kernel launch, which must run after all earlier work.
  void overwrite(cuda::StreamHandle stream) const;
  /// Copies the current inputs to seen(). With `early`, the kernel starts early and does not wait; otherwise it is
  /// launched ordinarily.
  void look(cuda::StreamHandle stream, bool early) const;

  /// Returns every byte of inputs and outputs as they are now.
  [[nodiscard]] std::vector<std::byte> bytes() const;
  /// Returns the bytes that look() copied.
  [[nodiscard]] std::vector<std::byte> seen() const;
  /// Returns bytes() with the bytes of one input set to 0.
  [[nodiscard]] std::vector<std::byte> bytes_without(const std::string& name) const;
  /// The final inputs, and their poison.
  [[nodiscard]] const std::vector<std::byte>& written() const { return inputs_; }
  [[nodiscard]] const std::vector<std::byte>& poison() const { return poison_; }
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  struct Piece {
    std::string name;
    std::size_t offset, bytes;
  };

  void* add(const char* name, const void* data, std::size_t bytes, const void* poison);
  [[nodiscard]] const Piece& piece(const std::string& name) const;

  /// Returns the number of bytes from the first to the last element.
  template <class View>
  [[nodiscard]] static std::size_t span_bytes(const View& view) {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < 4; ++d) last += (view.shape[d] - 1) * view.stride[d];
    return static_cast<std::size_t>((last + 1) * dtype_bytes(view.dtype));
  }

  std::vector<Piece> pieces_;  // the inputs, which come first in the memory
  std::vector<std::byte> inputs_, poison_;
  std::size_t output_bytes_ = 0;
  cuda::DeviceMemory live_, written_on_gpu_, poison_on_gpu_, seen_;
};

/// Runs the steps one at a time, each after the previous one has ended. Then runs them back to back without waiting,
/// several times and in a replayed graph. Expects the same bytes of inputs, outputs and seen() each time.
void expect_same_in_a_row(const LateInputs& memory, const std::vector<Step>& steps);

/// Expects that poison in one input changes bytes elsewhere, for every input that is not in `not_read`. Otherwise the
/// tests could not detect a call that reads this input too early.
void expect_inputs_matter(const LateInputs& memory, const std::vector<Step>& calls,
                          const std::vector<std::string>& not_read = {});

}  // namespace attend::test
