// Compares attend::merge on a GPU with float64. Covers any number of states, all dtypes, sinks, both logarithm bases
// and the limits of float32.
#include <gtest/gtest.h>

#include <vector>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "gpu/gpu.hpp"
#include "serving/merge_checks.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

constexpr Device kGpu = {DeviceType::kCUDA, 0};

/// Submits the merge to a stream of GPU 0.
void submit(std::span<const PartialState> states, const Tensor& o, const Tensor* lse, const MergeParams& params,
            cuda::StreamHandle stream) {
  std::vector<PartialState> on_gpu(states.begin(), states.end());
  for (PartialState& state : on_gpu) state.o.device = state.lse.device = kGpu;
  Tensor to = o, to_lse = lse != nullptr ? *lse : Tensor();
  MergeParams options = params;
  to.device = to_lse.device = kGpu;
  if (options.sinks) options.sinks->device = kGpu;
  merge(on_gpu, to, lse != nullptr ? &to_lse : nullptr, options, stream);
}

void merge_on_gpu(std::span<const PartialState> states, const Tensor& o, const Tensor* lse, const MergeParams& params) {
  submit(states, o, lse, params, nullptr);
  const cuda::ContextGuard guard(0);
  cuda::synchronize(nullptr);
}

class GpuMerge : public GpuTest {};

TEST_F(GpuMerge, AgreesWithFloat64) {
  for (const MergeCase& c : merge_cases()) check_merge(c, merge_on_gpu);
}

TEST_F(GpuMerge, CountsOfStatesAroundThatOfAWarp) {
  for (const std::size_t count : {31, 32, 33, 63, 64, 65, 200}) {
    check_merge({.states = std::vector<DType>(count, DType::kBF16),
                 .dtype = DType::kF16,
                 .share_of_none = 0.3,
                 .sinks = count % 2 == 0,
                 .seed = count},
                merge_on_gpu);
  }
}

TEST_F(GpuMerge, ManyRows) {
  check_merge({.states = {DType::kBF16, DType::kF32, DType::kBF16},
               .dtype = DType::kBF16,
               .shape = {2, 5, 333, 128},
               .share_of_none = 0.2,
               .sinks = true,
               .seed = 77},
              merge_on_gpu);
}

TEST_F(GpuMerge, OneStateKeepsItsBits) {
  check_one_state_keeps_its_bits(merge_on_gpu);
}

TEST_F(GpuMerge, IntoAStateItself) {
  check_merge_into_a_state(merge_on_gpu);
}

TEST_F(GpuMerge, EndsOfFloat32AndNaN) {
  check_ends_of_float32(merge_on_gpu);
}

TEST_F(GpuMerge, OfNothingIsTheSink) {
  check_merge_of_nothing(merge_on_gpu);
}

TEST_F(GpuMerge, OfNoRowsDoesNothing) {
  MergeCase c;
  c.shape = {2, 3, 0, 40};
  check_merge(c, merge_on_gpu);
}

// A few states are passed as kernel parameters. More states are passed as a list in memory that the graph owns.
TEST_F(GpuMerge, InAGraph) {
  for (const std::size_t count : {3, 100}) {
    const MergeCase c = {.states = std::vector<DType>(count, DType::kF32), .seed = count};
    const States states = make_states(c);
    const TensorBuffer want(DType::kF32, c.shape), o(DType::kF32, c.shape);
    const cuda::ContextGuard guard(0);
    const cuda::OwnStream stream;
    CapturedGraph graph(stream.get(), [&] { submit(states.views(), o.view(), nullptr, {}, stream.get()); });
    for (int step = 0; step < 2; ++step) {
      merge_on_gpu(states.views(), want.view(), nullptr, {});
      graph.launch();
      cuda::synchronize(stream.get());
      expect_same_bits("o", o, want);
      states.lse[0].fill(5 + step);
    }
  }
}

}  // namespace
}  // namespace attend::test
