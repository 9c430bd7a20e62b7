// Ring attention on this machine's GPUs over NCCL, beside one GPU that does a rank's share of the work alone. bfloat16,
// head_dim 128, causal, zigzag. Prints a line of JSON for each length and pass.
//
//   ring_gpu [RANKS [TOKENS...]]     RANKS: all GPUs if not given; TOKENS of the whole sequence, 32768 131072
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <bit>
#include <cstdlib>
#include <exception>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "attend/ring_nccl.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"

namespace {

using namespace attend;

constexpr std::int64_t kHeads = 16, kHeadDim = 128;
constexpr int kWarmUps = 2;

/// Normally distributed numbers, the same block again and again: products of zeros would draw less power.
const std::vector<std::uint16_t>& numbers() {
  static const std::vector<std::uint16_t> kNumbers = [] {
    std::mt19937 engine(1);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> values(std::size_t{1} << 20);
    for (std::uint16_t& value : values)
      value = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(engine)) >> 16);
    return values;
  }();
  return kNumbers;
}

/// A tensor (1, kHeads, rows, cols) in memory of its own.
class GpuTensor {
 public:
  GpuTensor(int device, DType dtype, std::int64_t rows, std::int64_t cols, cuda::StreamHandle stream)
      : memory_(static_cast<std::size_t>(kHeads * rows * cols * dtype_bytes(dtype))),
        tensor(Tensor::bshd(reinterpret_cast<void*>(memory_.data()), dtype, {1, kHeads, rows, cols},
                            {DeviceType::kCUDA, device})) {
    const std::size_t block = numbers().size() * sizeof(std::uint16_t);
    for (std::size_t at = 0; at < memory_.bytes(); at += block) {
      cuda::check_call(cuda::driver().copy_to_device(memory_.data() + at, numbers().data(),
                                                     std::min(block, memory_.bytes() - at), stream),
                       "cuMemcpyHtoDAsync", "filling a tensor");
    }
  }

 private:
  cuda::DeviceMemory memory_;

 public:
  Tensor tensor;
};

/// What one rank, or one GPU alone, computes with.
struct Work {
  Work(int device, std::int64_t rows, std::int64_t keys, cuda::StreamHandle stream)
      : q(device, DType::kBF16, rows, kHeadDim, stream),
        k(device, DType::kBF16, keys, kHeadDim, stream),
        v(device, DType::kBF16, keys, kHeadDim, stream),
        o(device, DType::kBF16, rows, kHeadDim, stream),
        dout(device, DType::kBF16, rows, kHeadDim, stream),
        dq(device, DType::kBF16, rows, kHeadDim, stream),
        dk(device, DType::kBF16, keys, kHeadDim, stream),
        dv(device, DType::kBF16, keys, kHeadDim, stream),
        lse(device, DType::kF32, rows, 1, stream) {}
  GpuTensor q, k, v, o, dout, dq, dk, dv, lse;
};

/// Milliseconds of one call, the mean of `repeats` in a row.
template <class Call>
double milliseconds(cuda::StreamHandle stream, int repeats, const Call& call, const std::function<void()>& together) {
  for (int i = 0; i < kWarmUps; ++i) call();
  cuda::synchronize(stream);
  together();
  cuda::Event start(cuda::Event::Timing::kOn), end(cuda::Event::Timing::kOn);
  start.record(stream);
  for (int i = 0; i < repeats; ++i) call();
  end.record(stream);
  end.synchronize();
  return end.milliseconds_since(start) / repeats;
}

struct Times {
  double forward = 0, both = 0;
};

Times time_rank(const RingContext& ring, int device, std::int64_t tokens, const std::function<void()>& together) {
  const cuda::ContextGuard guard(device);
  const cuda::OwnStream stream;
  const std::int64_t rows = tokens / ring.size();
  const Work w(device, rows, rows, stream.get());
  const Params params = {.causal = true};
  const auto forward = [&] {
    ring_forward(ring, w.q.tensor, w.k.tensor, w.v.tensor, w.o.tensor, &w.lse.tensor, params, Sharding::kZigzag,
                 stream.get());
  };
  const auto both = [&] {
    forward();
    ring_backward(ring, w.dout.tensor, w.q.tensor, w.k.tensor, w.v.tensor, w.o.tensor, w.lse.tensor, w.dq.tensor,
                  w.dk.tensor, w.dv.tensor, params, Sharding::kZigzag, stream.get());
  };
  const int repeats = tokens > 65536 ? 3 : 10;
  return {milliseconds(stream.get(), repeats, forward, together), milliseconds(stream.get(), repeats, both, together)};
}

/// A rank's share without a ring: its rows see half of all keys on average, and here these and no others.
Times time_alone(int ranks, std::int64_t tokens) {
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  const Work w(0, tokens / ranks, tokens / 2, stream.get());
  const auto run_forward = [&] {
    forward(w.q.tensor, w.k.tensor, w.v.tensor, w.o.tensor, &w.lse.tensor, {}, stream.get());
  };
  const auto both = [&] {
    run_forward();
    backward(w.dout.tensor, w.q.tensor, w.k.tensor, w.v.tensor, w.o.tensor, w.lse.tensor, w.dq.tensor, w.dk.tensor,
             w.dv.tensor, {}, stream.get());
  };
  const int repeats = tokens > 65536 ? 3 : 10;
  return {milliseconds(stream.get(), repeats, run_forward, [] {}), milliseconds(stream.get(), repeats, both, [] {})};
}

void measure(int ranks, std::int64_t tokens) {
  const NcclId id = make_nccl_id();
  std::barrier<> barrier(ranks);
  std::vector<Times> times(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const RingContext ring = make_nccl_ring(id, rank, ranks, rank);
      times[static_cast<std::size_t>(rank)] = time_rank(ring, rank, tokens, [&] { barrier.arrive_and_wait(); });
    });
  }
  threads.clear();  // joins
  const Times alone = time_alone(ranks, tokens);
  const auto print = [&](const char* mode, double Times::*member) {
    double slowest = 0;
    for (const Times& t : times) slowest = std::max(slowest, t.*member);
    fmt::print(R"({{"ranks": {}, "S": {}, "H": {}, "D": {}, "mode": "{}", "sharding": "zigzag", "causal": true, )"
               R"("ms": {:.3f}, "alone_ms": {:.3f}, "share_of_ideal": {:.3f}}})"
               "\n",
               ranks, tokens, kHeads, kHeadDim, mode, slowest, alone.*member, alone.*member / slowest);
  };
  print("forward", &Times::forward);
  print("both", &Times::both);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int ranks = argc > 1 ? std::atoi(argv[1]) : cuda::device_count();
    std::vector<std::int64_t> lengths;
    for (int i = 2; i < argc; ++i) lengths.push_back(std::atoll(argv[i]));
    if (lengths.empty()) lengths = {32768, 131072};
    for (const std::int64_t tokens : lengths) measure(ranks, tokens);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  return 0;
}
