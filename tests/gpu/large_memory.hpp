// Gigabytes of a GPU's memory for tensors that no host copy is made of: what indices beyond 2^31 are tested with.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cuda/driver/stream.hpp"
#include "support/tensor_buffer.hpp"

namespace attend::test {

/// Memory of GPU 0. Other processes of the tests have some too: waits for theirs, a minute at most.
class LargeMemory {
 public:
  explicit LargeMemory(std::size_t bytes);

  [[nodiscard]] std::byte* data() const { return reinterpret_cast<std::byte*>(memory_.data()); }
  [[nodiscard]] std::size_t bytes() const { return memory_.bytes(); }

 private:
  cuda::DeviceMemory memory_;
};

/// Why GPU 0 cannot have so many bytes, empty where it can: the GPU is too small.
[[nodiscard]] std::string memory_is_short(std::size_t bytes);

/// Row by row from one tensor to another of its shape and dtype, either of which the GPU sees.
void copy_rows(const Tensor& from, const Tensor& to, cuda::StreamHandle stream);

/// Tensors side by side in one memory, each of whose entries in one dimension lie `step` bytes after another; in the
/// other dimensions they are dense. They lie between one another, so that no call may write one and read another.
class FarTensors {
 public:
  FarTensors(const LargeMemory& memory, std::size_t dimension, std::int64_t step)
      : memory_(memory), dimension_(dimension), step_(step) {}

  /// Room for a tensor like this one, without its numbers.
  [[nodiscard]] Tensor place(const TensorBuffer& like);

  /// Bytes that one entry of all tensors may take together: memory of (entries - 1) * step + kRoom bytes is enough.
  static constexpr std::int64_t kRoom = 16 << 20;

 private:
  const LargeMemory& memory_;
  std::size_t dimension_;
  std::int64_t step_;
  std::int64_t used_ = 0;
};

/// A dense tensor with the batch entries of a smaller one again and again.
class Repeated {
 public:
  /// @param like   dense (batch, heads, seqlen, head_dim)
  /// @param batch  how many entries there are to be
  Repeated(const TensorBuffer& like, std::int64_t batch, cuda::StreamHandle stream);

  [[nodiscard]] const Tensor& view() const { return view_; }
  /// How many entries differ from those of the first repetition, which `like` gets.
  [[nodiscard]] std::int64_t fetch_first(const TensorBuffer& like, cuda::StreamHandle stream) const;

 private:
  LargeMemory memory_;
  Tensor view_;
};

}  // namespace attend::test
