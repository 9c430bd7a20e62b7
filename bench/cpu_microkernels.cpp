// Micro-benchmarks of the `cpu` backend on one thread. They time the matrix products of one tile, and complete forward
// and backward tasks. Compare the counter `GFLOP/s` with the FMA peak of one thread (fma_peak.cpp), which the program
// prints first.
//
//   build/release/bench/cpu_microkernels [--benchmark_filter=...]
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "cpu/kernels.hpp"

namespace {

using attend::DType;
using attend::Shape;
using attend::Tensor;
using attend::cpu::GemmArgs;
using attend::cpu::GemmMode;
using attend::cpu::kBackwardScoreStride;
using attend::cpu::kBlockN;
using attend::cpu::kForwardBlockM;
using attend::cpu::kPanel;

/// Normally distributed random floats. Their memory is aligned to 64 bytes, like a framework's tensors.
class Floats {
 public:
  explicit Floats(std::int64_t size) : data_(hwy::AllocateAligned<float>(static_cast<std::size_t>(size))) {
    std::mt19937_64 generator(size);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < size; ++i) data_[i] = normal(generator);
  }
  float* data() { return data_.get(); }

 private:
  hwy::AlignedFreeUniquePtr<float[]> data_;
};

void report_flops(benchmark::State& state, double flops) {
  state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void run_gemm(benchmark::State& state, const GemmArgs& args) {
  for (auto _ : state) {
    attend::cpu::tile_gemm(args);
    benchmark::ClobberMemory();
  }
  report_flops(state, 2.0 * static_cast<double>(args.m * args.n * args.k));
}

/// Times S^T = K Q^T for one panel of query rows.
void score_product(benchmark::State& state) {
  const std::int64_t head_dim = state.range(0);
  Floats k(kBlockN * head_dim), q(head_dim * kPanel), s(kBlockN * kPanel);
  run_gemm(state, {.a = {k.data(), head_dim, 1},
                   .b = {q.data(), kPanel},
                   .c = s.data(),
                   .c_stride = kPanel,
                   .m = kBlockN,
                   .n = kPanel,
                   .k = head_dim});
}
BENCHMARK(score_product)->Arg(64)->Arg(128)->Arg(256);

/// Times O = diag(r) O + P V for one panel of query rows. r contains the factor that rescales each row of O.
void value_product(benchmark::State& state) {
  const std::int64_t head_dim = state.range(0);
  Floats p(kBlockN * kPanel), v(kBlockN * head_dim), o(kPanel * head_dim);
  const std::vector<float> rescale(kPanel, 0.5F);
  run_gemm(state, {.a = {p.data(), 1, kPanel},
                   .b = {v.data(), head_dim},
                   .c = o.data(),
                   .c_stride = head_dim,
                   .m = kPanel,
                   .n = head_dim,
                   .k = kBlockN,
                   .mode = GemmMode::kScaleAccumulate,
                   .row_scale = rescale.data()});
}
BENCHMARK(value_product)->Arg(64)->Arg(128)->Arg(256);

/// Times dV += P^T dO for one backward tile. The sums grow without bound, which does not affect the time.
void key_gradient_product(benchmark::State& state) {
  const std::int64_t head_dim = state.range(0);
  Floats p(kBlockN * kBackwardScoreStride), dout(attend::cpu::kBackwardBlockM * head_dim), dv(kBlockN * head_dim);
  run_gemm(state, {.a = {p.data(), kBackwardScoreStride, 1},
                   .b = {dout.data(), head_dim},
                   .c = dv.data(),
                   .c_stride = head_dim,
                   .m = kBlockN,
                   .n = head_dim,
                   .k = attend::cpu::kBackwardBlockM,
                   .mode = GemmMode::kAccumulate});
}
BENCHMARK(key_gradient_product)->Arg(64)->Arg(128)->Arg(256);

struct Head {
  Shape shape;
  Floats q, k, v, o, lse, dout, dq, dk, dv;

  explicit Head(std::int64_t seqlen, std::int64_t head_dim)
      : shape{1, 1, seqlen, head_dim},
        q(seqlen * head_dim),
        k(seqlen * head_dim),
        v(seqlen * head_dim),
        o(seqlen * head_dim),
        lse(seqlen),
        dout(seqlen * head_dim),
        dq(seqlen * head_dim),
        dk(seqlen * head_dim),
        dv(seqlen * head_dim) {}

  Tensor view(Floats& data) { return Tensor::bhsd(data.data(), DType::kF32, shape); }
  Tensor lse_view() { return Tensor::bhsd(lse.data(), DType::kF32, {1, 1, shape[2], 1}); }
};

/// Times one forward task: 256 query rows and 2048 keys.
void forward_task(benchmark::State& state) {
  constexpr std::int64_t kKeys = 2048;
  Head head(kKeys, state.range(0));
  const Tensor lse = head.lse_view();
  const auto problem = attend::core::make_forward_problem(head.view(head.q), head.view(head.k), head.view(head.v),
                                                          head.view(head.o), &lse, {});
  attend::cpu::Scratch scratch;
  for (auto _ : state) {
    if (!attend::cpu::forward_rows(problem, {problem.sequence(0), 0, 0, kForwardBlockM}, scratch)) {
      state.SkipWithError("not finite");
    }
  }
  report_flops(state, 4.0 * kForwardBlockM * kKeys * static_cast<double>(state.range(0)));
}
BENCHMARK(forward_task)->Arg(64)->Arg(128)->Arg(256);

/// Times one backward task, which computes dq, dk and dv of one head with 1024 query rows and 1024 keys.
void backward_task(benchmark::State& state) {
  constexpr std::int64_t kLength = 1024;
  Head head(kLength, state.range(0));
  const Tensor lse = head.lse_view();
  attend::forward(head.view(head.q), head.view(head.k), head.view(head.v), head.view(head.o), &lse);
  const auto problem = attend::core::make_backward_problem(
      head.view(head.dout), head.view(head.q), head.view(head.k), head.view(head.v), head.view(head.o), lse,
      head.view(head.dq), head.view(head.dk), head.view(head.dv), {}, {});
  attend::cpu::Scratch scratch;
  for (auto _ : state) {
    if (!attend::cpu::backward_keys(problem, {problem.sequence(0), 0, 0, kLength, true, nullptr}, scratch)) {
      state.SkipWithError("not finite");
    }
  }
  report_flops(state, 10.0 * kLength * kLength * static_cast<double>(state.range(0)));
}
BENCHMARK(backward_task)->Arg(64)->Arg(128)->Arg(256);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  // The program fma_peak is in the folder of this program, and prints one line of JSON.
  const std::string here = argv[0];
  const std::string peak = here.substr(0, here.rfind('/') + 1) + "fma_peak 1";
  std::fprintf(stderr, "FMA peak of one thread: ");
  if (std::system((peak + " >&2").c_str()) != 0) std::fprintf(stderr, "unknown, %s did not run\n", peak.c_str());
  benchmark::RunSpecifiedBenchmarks();
}
