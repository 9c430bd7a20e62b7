// GPU memory of calls whose inputs are written late: by a kernel that lets the next one start, spins, and only then
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

/// What a test puts on a stream: a call, or a kernel of LateInputs.
using Step = std::function<void(cuda::StreamHandle)>;

/// Inputs and outputs of calls, in device memory. Wants GPU 0 current.
class LateInputs {
 public:
  LateInputs();

  /// Gives the view a place here, with the bytes of its memory so far. They come late: poison (0xFF, NaN in every float
  /// type) is there before.
  template <class View>
  void input(const char* name, View& view) {
    view.data = add(name, view.data, span_bytes(view), nullptr);
    view.device = {DeviceType::kCUDA, 0};
  }

  /// The same for an array, before which other valid entries are there.
  template <class T>
  void input(const char* name, const T*& array, const std::vector<T>& poison) {
    array = static_cast<const T*>(add(name, array, poison.size() * sizeof(T), poison.data()));
  }

  /// A dense tensor that calls write, or write and read. Starts as NaN.
  [[nodiscard]] Tensor output(DType dtype, const Shape& shape);

  /// Poison everywhere, in the stream's order.
  void restore(cuda::StreamHandle stream) const;
  /// The inputs everywhere but in one place, which keeps its poison.
  void restore_but(const std::string& name, cuda::StreamHandle stream) const;

  /// Writes the inputs, late: by a kernel that lets the next one start at its beginning.
  void write_late(cuda::StreamHandle stream) const;
  /// Half of them, 0 or 1, in the same way.
  void write_half_late(std::size_t half, cuda::StreamHandle stream) const;
  /// Poisons the inputs, by a kernel that is launched as any other: it has to come after all before it.
  void overwrite(cuda::StreamHandle stream) const;
  /// Copies the inputs as they are to seen(): with `early` by a kernel that starts early and does not wait, else by one
  /// that is launched as any other.
  void look(cuda::StreamHandle stream, bool early) const;

  /// Every byte of inputs and outputs as they are now.
  [[nodiscard]] std::vector<std::byte> bytes() const;
  /// What look() saw.
  [[nodiscard]] std::vector<std::byte> seen() const;
  /// bytes() with those of one input set to 0.
  [[nodiscard]] std::vector<std::byte> bytes_without(const std::string& name) const;
  /// The inputs as they are to be, and their poison.
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

  /// Bytes from the first to the last element.
  template <class View>
  [[nodiscard]] static std::size_t span_bytes(const View& view) {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < 4; ++d) last += (view.shape[d] - 1) * view.stride[d];
    return static_cast<std::size_t>((last + 1) * dtype_bytes(view.dtype));
  }

  std::vector<Piece> pieces_;  // of the inputs, which lie in front
  std::vector<std::byte> inputs_, poison_;
  std::size_t output_bytes_ = 0;
  cuda::DeviceMemory live_, written_on_gpu_, poison_on_gpu_, seen_;
};

/// Runs the steps one by one, each after the one before has ended, and then in a row without waiting, several times and
/// in a graph that is replayed: expects the same bytes of inputs, outputs and of what was seen.
void expect_same_in_a_row(const LateInputs& memory, const std::vector<Step>& steps);

/// Expects other bytes elsewhere if one input is poison, for every input but those that are `not_read`: else a call
/// that reads it too early would not be found out.
void expect_inputs_matter(const LateInputs& memory, const std::vector<Step>& calls,
                          const std::vector<std::string>& not_read = {});

}  // namespace attend::test
