#include "gpu/late_inputs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/kernel.hpp"
#include "cuda/driver/nvrtc.hpp"
#include "gpu/gpu.hpp"

namespace attend::test {
namespace {

constexpr std::size_t kMostInputs = 48U << 20, kMostOutputs = 16U << 20, kMost = kMostInputs + kMostOutputs;  // bytes
constexpr std::size_t kAlignment = 256;  // alignment of each input and output, in bytes
constexpr std::byte kPoison = std::byte{0xFF};
constexpr std::int64_t kLateNs = 200'000;  // far longer than a launch takes
constexpr unsigned kBlocks = 8;            // few blocks, so most SMs are free for the next kernel
constexpr unsigned kThreads = 256;
constexpr int kRounds = 8, kReplays = 8;

// Copies the inputs in units of 16 bytes, `late_ns` nanoseconds after the kernel has started. If `lets_next_start` is
// set, the next kernel may start before the copy.
constexpr const char* kCopySource = R"(
__device__ __forceinline__ long long now_ns() {
  long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

extern "C" __global__ void copy(uint4* to, const uint4* from, long long count, long long late_ns, int lets_next_start) {
#if __CUDA_ARCH__ >= 900
  if (lets_next_start) asm volatile("griddepcontrol.launch_dependents;");
#endif
  for (const long long start = now_ns(); now_ns() - start < late_ns;) __nanosleep(1000);
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  long long n = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; n < count; n += step) to[n] = from[n];
}
)";

const cuda::Kernel& copy_kernel() {
  // Never destroyed, because the driver may already be unloaded when the process exits.
  static const auto* const kernel = [] {
    const std::string arch = cuda::device_info(0).arch().target;
    const cuda::CompileOutput code =
        cuda::Nvrtc::instance().compile("copy.cu", kCopySource, {}, {"--gpu-architecture=" + arch});
    return new cuda::Kernel(0, code.cubin, "copy", "copy of the tests", 0);
  }();
  return *kernel;
}

enum class Start { kAfterTheOneBefore, kEarly };

struct Copy {
  cuda::DevicePointer to, from;
  std::size_t bytes;
  std::int64_t late_ns = 0;
  bool lets_next_start = false;
  Start start = Start::kAfterTheOneBefore;
};

void launch(Copy copy, cuda::StreamHandle stream) {
  auto count = static_cast<std::int64_t>(copy.bytes / 16);
  int lets_next_start = copy.lets_next_start ? 1 : 0;
  void* parameters[] = {&copy.to, &copy.from, &count, &copy.late_ns, &lets_next_start};
  const bool early = copy.start == Start::kEarly;
  copy_kernel().launch({.grid = {kBlocks}, .block = {kThreads}, .overlaps_previous = early}, parameters, stream);
}

void copy_in_order(cuda::DevicePointer to, cuda::DevicePointer from, std::size_t bytes, cuda::StreamHandle stream) {
  if (bytes == 0) return;
  cuda::check_call(cuda::driver().copy_on_device(to, from, bytes, stream), "cuMemcpyDtoDAsync", "restoring");
}

void upload(cuda::DevicePointer to, const void* from, std::size_t bytes) {
  cuda::check_call(cuda::driver().copy_to_device(to, from, bytes, nullptr), "cuMemcpyHtoDAsync", "uploading");
  cuda::synchronize(nullptr);
}

/// Copies `count` bytes from GPU memory and appends them to `bytes`.
void download(cuda::DevicePointer from, std::size_t count, std::vector<std::byte>& bytes) {
  if (count == 0) return;
  const std::size_t before = bytes.size();
  bytes.resize(before + count);
  cuda::check_call(cuda::driver().copy_to_host(bytes.data() + before, from, count, nullptr), "cuMemcpyDtoHAsync",
                   "reading results");
  cuda::synchronize(nullptr);
}

std::size_t rounded_up(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void* address(cuda::DevicePointer at) {
  return reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
}

/// Returns all inputs and outputs, followed by the bytes of seen(), after the steps have run.
std::vector<std::byte> left_by(const LateInputs& memory) {
  std::vector<std::byte> all = memory.bytes();
  const std::vector<std::byte> seen = memory.seen();
  all.insert(all.end(), seen.begin(), seen.end());
  return all;
}

/// Describes the position of the first difference.
std::string difference(const std::vector<std::byte>& found, const std::vector<std::byte>& wanted) {
  if (found.size() != wanted.size()) return "other sizes";
  const auto at = std::mismatch(found.begin(), found.end(), wanted.begin());
  std::size_t differing = 0;
  for (std::size_t n = 0; n < found.size(); ++n) differing += found[n] != wanted[n] ? 1 : 0;
  return std::to_string(differing) + " of " + std::to_string(found.size()) + " bytes differ, first " +
         std::to_string(at.first - found.begin());
}

}  // namespace

LateInputs::LateInputs() : live_(kMost), written_on_gpu_(kMostInputs), poison_on_gpu_(kMost), seen_(kMostInputs) {
  const std::vector<std::byte> all(kMost, kPoison);
  upload(poison_on_gpu_.data(), all.data(), all.size());
}

void* LateInputs::add(const char* name, const void* data, std::size_t bytes, const void* poison) {
  const std::size_t offset = inputs_.size(), size = rounded_up(bytes);
  if (offset + size > kMostInputs) throw std::length_error("inputs of more than 48 MB");
  inputs_.resize(offset + size, kPoison);
  poison_.resize(offset + size, kPoison);
  std::memcpy(inputs_.data() + offset, data, bytes);
  if (poison != nullptr) std::memcpy(poison_.data() + offset, poison, bytes);
  upload(written_on_gpu_.data() + offset, inputs_.data() + offset, size);
  upload(poison_on_gpu_.data() + offset, poison_.data() + offset, size);
  pieces_.push_back({name, offset, bytes});
  return address(live_.data() + offset);
}

Tensor LateInputs::output(DType dtype, const Shape& shape) {
  Tensor t = Tensor::bhsd(address(live_.data() + kMostInputs + output_bytes_), dtype, shape, {DeviceType::kCUDA, 0});
  output_bytes_ += rounded_up(span_bytes(t));
  if (output_bytes_ > kMostOutputs) throw std::length_error("outputs of more than 16 MB");
  return t;
}

void LateInputs::restore(cuda::StreamHandle stream) const {
  const cuda::DevicePointer from = poison_on_gpu_.data();
  copy_in_order(live_.data(), from, inputs_.size(), stream);
  copy_in_order(live_.data() + kMostInputs, from + kMostInputs, output_bytes_, stream);
  copy_in_order(seen_.data(), from, inputs_.size(), stream);
}

void LateInputs::restore_but(const std::string& name, cuda::StreamHandle stream) const {
  restore(stream);
  copy_in_order(live_.data(), written_on_gpu_.data(), inputs_.size(), stream);
  if (name.empty()) return;
  const Piece& poisoned = piece(name);
  copy_in_order(live_.data() + poisoned.offset, poison_on_gpu_.data() + poisoned.offset, poisoned.bytes, stream);
}

void LateInputs::write_late(cuda::StreamHandle stream) const {
  launch({.to = live_.data(),
          .from = written_on_gpu_.data(),
          .bytes = inputs_.size(),
          .late_ns = kLateNs,
          .lets_next_start = true},
         stream);
}

void LateInputs::write_half_late(std::size_t half, cuda::StreamHandle stream) const {
  const std::size_t middle = inputs_.size() / kAlignment / 2 * kAlignment;
  const std::size_t first = half == 0 ? 0 : middle;
  launch({.to = live_.data() + first,
          .from = written_on_gpu_.data() + first,
          .bytes = half == 0 ? middle : inputs_.size() - middle,
          .late_ns = kLateNs,
          .lets_next_start = true},
         stream);
}

void LateInputs::overwrite(cuda::StreamHandle stream) const {
  launch({.to = live_.data(), .from = poison_on_gpu_.data(), .bytes = inputs_.size()}, stream);
}

void LateInputs::look(cuda::StreamHandle stream, bool early) const {
  launch({.to = seen_.data(),
          .from = live_.data(),
          .bytes = inputs_.size(),
          .start = early ? Start::kEarly : Start::kAfterTheOneBefore},
         stream);
}

std::vector<std::byte> LateInputs::bytes() const {
  std::vector<std::byte> all;
  download(live_.data(), inputs_.size(), all);
  download(live_.data() + kMostInputs, output_bytes_, all);
  return all;
}

std::vector<std::byte> LateInputs::seen() const {
  std::vector<std::byte> all;
  download(seen_.data(), inputs_.size(), all);
  return all;
}

std::vector<std::byte> LateInputs::bytes_without(const std::string& name) const {
  std::vector<std::byte> all = bytes();
  const Piece& left_out = piece(name);
  std::fill_n(all.begin() + static_cast<std::ptrdiff_t>(left_out.offset), left_out.bytes, std::byte{0});
  return all;
}

std::vector<std::string> LateInputs::names() const {
  std::vector<std::string> all;
  for (const Piece& each : pieces_) all.push_back(each.name);
  return all;
}

const LateInputs::Piece& LateInputs::piece(const std::string& name) const {
  const auto found = std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& each) { return each.name == name; });
  if (found == pieces_.end()) throw std::out_of_range("no input " + name);
  return *found;
}

void expect_same_in_a_row(const LateInputs& memory, const std::vector<Step>& steps) {
  const cuda::OwnStream stream;
  memory.restore(stream.get());
  cuda::synchronize(stream.get());
  for (const Step& step : steps) {
    step(stream.get());
    cuda::synchronize(stream.get());
  }
  const std::vector<std::byte> wanted = left_by(memory);
  const auto submit = [&] {
    for (const Step& step : steps) step(stream.get());
  };
  for (int round = 0; round < kRounds; ++round) {
    memory.restore(stream.get());
    submit();
    cuda::synchronize(stream.get());
    const std::vector<std::byte> found = left_by(memory);
    ASSERT_TRUE(found == wanted) << "round " << round << ": " << difference(found, wanted);
  }
  CapturedGraph graph(stream.get(), submit);
  for (int replay = 0; replay < kReplays; ++replay) {
    memory.restore(stream.get());
    graph.launch();
    cuda::synchronize(stream.get());
    const std::vector<std::byte> found = left_by(memory);
    ASSERT_TRUE(found == wanted) << "replay " << replay << ": " << difference(found, wanted);
  }
}

void expect_inputs_matter(const LateInputs& memory, const std::vector<Step>& calls,
                          const std::vector<std::string>& not_read) {
  const cuda::OwnStream stream;
  const auto left = [&](const std::string& poisoned, const std::string& name) {
    memory.restore_but(poisoned, stream.get());
    for (const Step& call : calls) call(stream.get());
    cuda::synchronize(stream.get());
    return memory.bytes_without(name);
  };
  for (const std::string& name : memory.names()) {
    if (std::find(not_read.begin(), not_read.end(), name) != not_read.end()) continue;
    EXPECT_TRUE(left(name, name) != left("", name)) << name << " changes nothing: the test could not fail";
  }
}

}  // namespace attend::test
