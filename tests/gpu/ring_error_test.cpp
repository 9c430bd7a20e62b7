// Compares the error of a long sequence on a ring of GPUs with the error on one GPU. Both errors are measured against
// float64.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>

#include "cuda/driver/device.hpp"
#include "gpu/gpu.hpp"
#include "gpu/gpu_ring.hpp"
#include "ring/long_truth.hpp"

namespace attend::test {
namespace {

constexpr std::int64_t kSeqlen = 65536, kHeads = 2, kHeadDim = 128;
constexpr std::int64_t kSamples = 512;  // sampled rows and keys per head whose gradients are compared
constexpr double kMostOfOneGpu = 1.05;

/// The largest error among the rows of each rank, and the root mean square error over all rows.
struct RingError {
  std::vector<double> largest;  // one entry per rank
  double sum_of_squares = 0;
  std::int64_t count = 0;

  explicit RingError(int num_ranks) : largest(static_cast<std::size_t>(num_ranks)) {}
  void add(int rank, double error) {
    double& most = largest[static_cast<std::size_t>(rank)];
    if (!(error <= most)) most = error;  // std::max() would drop a NaN error
    sum_of_squares += error * error;
    ++count;
  }
  [[nodiscard]] double worst() const {
    double all = 0;
    for (const double of_rank : largest) all = of_rank <= all ? all : of_rank;
    return all;
  }
  [[nodiscard]] double rms() const { return std::sqrt(sum_of_squares / static_cast<double>(count)); }
};

/// Returns the rank that holds a token under zigzag sharding with N ranks. Rank r holds chunks r and 2N - 1 - r.
int rank_of(std::int64_t token, int num_ranks) {
  const auto chunk = static_cast<int>(token * 2 * num_ranks / kSeqlen);
  return chunk < num_ranks ? chunk : 2 * num_ranks - 1 - chunk;
}

/// Returns rows spread evenly over the sequence, and its first rows, because these have the largest gradients.
std::vector<std::int64_t> sampled_rows() {
  std::vector<std::int64_t> rows;
  for (std::int64_t n = 0; n < kSamples / 4; ++n) rows.push_back(n);
  const std::int64_t rest = kSamples - kSamples / 4, begin = kSamples / 4;
  for (std::int64_t n = 0; n < rest; ++n) rows.push_back(begin + (kSeqlen - 1 - begin) * n / (rest - 1));
  return rows;
}

void add_rows(RingError& error, const TensorBuffer& got, const std::vector<double>& want, std::int64_t head,
              const std::vector<std::int64_t>& rows) {
  for (std::size_t n = 0; n < rows.size(); ++n) {
    for (std::int64_t col = 0; col < kHeadDim; ++col) {
      const double truth = want[n * kHeadDim + static_cast<std::size_t>(col)];
      error.add(rank_of(rows[n], static_cast<int>(error.largest.size())),
                std::abs(got.at(0, head, rows[n], col) - truth));
    }
  }
}

struct Truth {
  std::vector<double> o;
  std::vector<HeadRows> dq, dk_dv;  // one entry per head
};

RingError error_of(const TensorBuffer Outputs::*tensor, const Outputs& got, const Truth& truth, int num_ranks) {
  RingError error(num_ranks);
  if (tensor == &Outputs::o) {
    const std::vector<double> o = got.o.values();
    for (std::size_t i = 0; i < o.size(); ++i) {
      const auto token = static_cast<std::int64_t>(i) / kHeadDim % kSeqlen;
      error.add(rank_of(token, num_ranks), std::abs(o[i] - truth.o[i]));
    }
    return error;
  }
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const auto at = static_cast<std::size_t>(head);
    const HeadRows& want = tensor == &Outputs::dq ? truth.dq[at] : truth.dk_dv[at];
    add_rows(error, got.*tensor, tensor == &Outputs::dv ? want.second : want.first, head, want.rows);
  }
  return error;
}

class GpuRingError : public HopperTest {};

/// Compares o of every row, and gradients of sampled rows and keys. Inside the kernels, rounding to 16 bits causes
/// errors about as large as the final rounding does. A ring must not increase the error.
TEST_F(GpuRingError, OfALongSequenceIsThatOfOneGpu) {
  const int num_ranks = std::min(4, cuda::device_count());
  if (num_ranks < 2) GTEST_SKIP() << "one GPU, wanted one for each of two ranks";
  RingCase c = long_ring_case(DType::kBF16, Sharding::kZigzag, num_ranks);
  c.problem.heads_q = c.problem.heads_k = kHeads;
  c.problem.seqlen_q = c.problem.seqlen_k = kSeqlen;
  const auto start = std::chrono::steady_clock::now();
  const auto say = [&](const char* what) {
    std::printf("%s after %.1f s\n", what,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    std::fflush(stdout);
  };
  const Inputs in = make_inputs(c.problem);
  std::vector<int> devices;
  for (int rank = 0; rank < num_ranks; ++rank) devices.push_back(rank);
  const Outputs ring = run_on_gpus(make_thread_ring(num_ranks), devices, in, c);
  const Outputs alone = run(in, "sm90_backward");  // also runs the forward, which computes o and lse
  say("both have run");
  const LongTruth whole(in);
  Truth truth = {whole.o(), {}, {}};
  const std::vector<std::int64_t> rows = sampled_rows();
  for (std::int64_t head = 0; head < kHeads; ++head) {
    truth.dq.push_back(whole.dq(head, rows));
    truth.dk_dv.push_back(whole.dk_dv(head, rows));
  }
  say("the truth is there");
  for (const auto& [name, tensor] : {std::pair<const char*, TensorBuffer Outputs::*>{"o", &Outputs::o},
                                     {"dq", &Outputs::dq},
                                     {"dk", &Outputs::dk},
                                     {"dv", &Outputs::dv}}) {
    const RingError of_one = error_of(tensor, alone, truth, num_ranks);
    const RingError of_ring = error_of(tensor, ring, truth, num_ranks);
    std::string by_rank;
    for (const double largest : of_ring.largest) by_rank += fmt::format(" {:.3e}", largest);
    fmt::print("{}: one GPU max {:.4e} rms {:.4e}, ring of {} max {:.4e} ({:.3f} of it) rms {:.4e}, max by rank:{}\n",
               name, of_one.worst(), of_one.rms(), num_ranks, of_ring.worst(), of_ring.worst() / of_one.worst(),
               of_ring.rms(), by_rank);
    EXPECT_LE(of_ring.worst(), kMostOfOneGpu * of_one.worst()) << name;
    EXPECT_LE(of_ring.rms(), kMostOfOneGpu * of_one.rms()) << name;
  }
}

}  // namespace
}  // namespace attend::test
