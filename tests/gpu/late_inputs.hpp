// GPU memory for calls whose inputs are written late. The kernel that writes them first lets the next kernel start,
// then spins, and only then writes. A call that reads its inputs before this kernel has ended reads poison.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attend/tensor.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::test {

/// Work that a test submits to a stream: a call of the library or a kernel of LateInputs.
using Step = std::function<void(cuda::StreamHandle)>;

/// Owns inputs and outputs of calls in device memory. GPU 0 must be current.
class LateInputs {
 public:
  LateInputs();

  /// Moves the view to this memory. Its current bytes become the input that is written late. Until then, the memory
  /// holds poison (0xFF, which is NaN in every float type).
  template <class View>
  void input(const char* name, View& view) {
    view.data = add(name, view.data, span_bytes(view), nullptr);
    view.device = {DeviceType::kCUDA, 0};
  }

  /// Moves an array to this memory. Until its contents are written late, the memory holds `poison`, which must be
  /// another set of valid entries.
  template <class T>
  void input(const char* name, const T*& array, const std::vector<T>& poison) {
    array = static_cast<const T*>(add(name, array, poison.size() * sizeof(T), poison.data()));
  }

  /// Returns a dense tensor that calls may write, or read and write. All elements start as NaN.
  [[nodiscard]] Tensor output(DType dtype, const Shape& shape);

  /// Writes poison to all inputs and outputs, in stream order.
  void restore(cuda::StreamHandle stream) const;
  /// Poisons all memory and writes all inputs except `name`, which keeps its poison.
  void restore_but(const std::string& name, cuda::StreamHandle stream) const;

  /// Submits a kernel that lets the next kernel start at once and writes the inputs late.
  void write_late(cuda::StreamHandle stream) const;
  /// Writes only one half of the inputs (0 or 1) late.
  void write_half_late(std::size_t half, cuda::StreamHandle stream) const;
  /// Submits an ordinary kernel that poisons the inputs. It must run after all earlier work in the stream.
  void overwrite(cuda::StreamHandle stream) const;
  /// Submits a kernel that copies the current inputs to seen(). If `early` is set, the kernel may start early and does
  /// not wait for earlier kernels. Otherwise it is an ordinary launch.
  void look(cuda::StreamHandle stream, bool early) const;

  /// Returns the current bytes of all inputs and outputs.
  [[nodiscard]] std::vector<std::byte> bytes() const;
  /// Returns the bytes that look() copied.
  [[nodiscard]] std::vector<std::byte> seen() const;
  /// Returns bytes() with the bytes of one input set to 0.
  [[nodiscard]] std::vector<std::byte> bytes_without(const std::string& name) const;
  /// Return the inputs as they are after the late write, and their poison.
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

  /// Returns the number of bytes from the first element to the end of the last element.
  template <class View>
  [[nodiscard]] static std::size_t span_bytes(const View& view) {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < 4; ++d) last += (view.shape[d] - 1) * view.stride[d];
    return static_cast<std::size_t>((last + 1) * dtype_bytes(view.dtype));
  }

  std::vector<Piece> pieces_;  // one entry for each input; inputs are stored before the outputs
  std::vector<std::byte> inputs_, poison_;
  std::size_t output_bytes_ = 0;
  cuda::DeviceMemory live_, written_on_gpu_, poison_on_gpu_, seen_;
};

/// Runs the steps one at a time and waits for the end of each. Then runs them several times in sequence without
/// waiting, and in a replayed graph. Expects the same bytes of inputs, outputs and seen() each time.
void expect_same_in_a_row(const LateInputs& memory, const std::vector<Step>& steps);

/// For every input that is not in `not_read`, expects that poison in this input changes other bytes. Otherwise the
/// tests could not detect a call that reads the input too early.
void expect_inputs_matter(const LateInputs& memory, const std::vector<Step>& calls,
                          const std::vector<std::string>& not_read = {});

}  // namespace attend::test
