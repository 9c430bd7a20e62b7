// Lesson 8: the same ring on GPUs. Compared with lesson 4, only the location of the tensors and the transport of the
// messages change. NCCL is NVIDIA's library for communication between GPUs. It copies a block from one GPU's memory to
// that of the next GPU, over NVLink if there is one. The copy uses a separate stream, so it runs at the same time as
// the kernels. This is the overlap of lesson 5 in hardware.
//
// To connect, all ranks need the same id of 128 bytes. One rank makes the id and gives it to the other ranks. Here the
// ranks are threads of one process, so a variable is enough. On several machines, a launcher distributes it. The
// program requires two GPUs and libnccl, and prints a message if they are missing.
#include <cstdio>
#include <random>
#include <vector>

#include "attend/error.hpp"
#include "attend/ring_nccl.hpp"
#include "difference.hpp"
#include "gpus.hpp"
#include "mailbox.hpp"

namespace {

constexpr attend::Sharding kSharding = attend::Sharding::kZigzag;
constexpr attend::Shape kShape = {1, 4, 4096, 64};  // (batch, heads, seqlen, head_dim)

std::vector<float> random_values(unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(kShape[0] * kShape[1] * kShape[2] * kShape[3]));
  for (float& value : values) value = normal(engine);
  return values;
}

/// Returns a Tensor, or a ConstTensor for const values.
auto view(auto& values, const attend::Shape& shape) {
  return attend::Tensor::bhsd(values.data(), attend::DType::kF32, shape);
}

}  // namespace

int main() {
  const int ranks = number_of_gpus();
  if (ranks < 2) {
    std::printf("skipped: %d GPUs here, the ring wants two\n", ranks);
    return 0;
  }
  attend::NcclId id;
  try {
    id = attend::make_nccl_id();
  } catch (const attend::Error& error) {
    std::printf("skipped: %s\n", error.what());
    return 0;
  }
  const attend::Params params = {.causal = true};
  const std::vector<float> q = random_values(1), k = random_values(2), v = random_values(3);
  std::vector<float> o(q.size()), o_of_ring(q.size());
  attend::forward(view(q, kShape), view(k, kShape), view(v, kShape), view(o, kShape), nullptr, params);

  on_ranks(ranks, [&](int rank) {
    use_gpu(rank);
    const attend::RingContext ring = attend::make_nccl_ring(id, rank, ranks, rank);
    attend::Shape shape = kShape;
    shape[2] = attend::shard_seqlen(kSharding, kShape[2], rank, ranks);
    GpuTensor my_q(shape, rank), my_k(shape, rank), my_v(shape, rank), my_o(shape, rank);
    std::vector<float> share(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
    for (const auto& [whole, mine] : {std::pair{&q, &my_q}, {&k, &my_k}, {&v, &my_v}}) {
      attend::shard(kSharding, view(*whole, kShape), view(share, shape), rank, ranks);
      mine->take(share);
    }
    attend::ring_forward(ring, my_q.view, my_k.view, my_v.view, my_o.view, nullptr, params, kSharding);
    my_o.give(share);
    attend::unshard(kSharding, view(share, shape), view(o_of_ring, kShape), rank, ranks);
  });

  const float error = largest_difference(o, o_of_ring);
  std::printf("%d GPUs against one call on the CPU: largest error %.1e, allowed 1e-5\n", ranks, error);
  return error <= 1e-5F ? 0 : 1;
}
