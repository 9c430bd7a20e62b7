// Rung 02 on a GPU, from source to result: compiled at run time, launched on a stream of its own, held against float64.
// Skipped, visibly, where there is no GPU.
#include <gtest/gtest.h>

#include <cstdio>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/jit/jit.hpp"
#include "cuda/launch/ladder.hpp"
#include "kernels/common/args.cuh"
#include "support/compare.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

/// Why there is no GPU to test on; empty where there is one.
std::string missing_gpu() {
  try {
    return cuda::device_count() > 0 ? "" : "no GPU";
  } catch (const Error& error) {
    return error.what();
  }
}

/// A dense tensor's copy on the device.
class OnDevice {
 public:
  OnDevice(const TensorBuffer& host, cuda::StreamHandle stream)
      : host_(host), memory_(static_cast<std::size_t>(host.view().numel() * dtype_bytes(host.dtype())), stream) {
    if (memory_.bytes() > 0) memory_.copy_from_host(host.view().data, memory_.bytes());
  }
  void copy_back() const {
    if (memory_.bytes() > 0) memory_.copy_to_host(host_.view().data, memory_.bytes());
  }
  [[nodiscard]] void* data() const { return reinterpret_cast<void*>(memory_.data()); }
  [[nodiscard]] TensorStrides strides() const {
    const Shape& s = host_.view().stride;
    return {s[0], s[1], s[2]};
  }

 private:
  TensorBuffer host_;
  cuda::Scratch memory_;
};

void run_naive(const Inputs& in, const Outputs& out) {
  constexpr int kDevice = 0;
  constexpr int kThreads = 128;
  const cuda::ContextGuard guard(kDevice);
  const cuda::OwnStream stream;
  const AttentionCase& c = in.options;
  const OnDevice q(in.q, stream.get()), k(in.k, stream.get()), v(in.v, stream.get()), o(out.o, stream.get()),
      lse(out.lse, stream.get());
  ForwardArgs args = {.q = q.data(),
                      .k = k.data(),
                      .v = v.data(),
                      .o = o.data(),
                      .lse = static_cast<float*>(lse.data()),
                      .q_stride = q.strides(),
                      .k_stride = k.strides(),
                      .v_stride = v.strides(),
                      .o_stride = o.strides(),
                      .lse_stride = lse.strides(),
                      .seqlen_q = c.seqlen_q,
                      .seqlen_k = c.seqlen_k,
                      .batch = static_cast<uint32>(c.batch),
                      .num_heads_q = static_cast<uint32>(c.heads_q),
                      .num_heads_k = static_cast<uint32>(c.heads_k),
                      .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)))};
  const cuda::NaiveConfig config = {static_cast<int>(c.head_dim), static_cast<int>(c.head_dim_v),
                                    c.causal ? MaskKind::kCausal : MaskKind::kFull};
  const auto kernel = cuda::Jit::instance().load(cuda::naive_spec(config, cuda::device_info(kDevice).arch()), kDevice);
  const auto blocks = static_cast<unsigned>((c.seqlen_q + kThreads - 1) / kThreads * c.heads_q * c.batch);
  void* parameters[] = {&args};
  kernel->launch({.grid = {blocks}, .block = {kThreads}}, parameters, stream.get());
  o.copy_back();
  lse.copy_back();
  cuda::synchronize(stream.get());
}

TEST(GpuNaive, ForwardStaysInBudget) {
  if (const std::string why = missing_gpu(); !why.empty()) GTEST_SKIP() << why;
  std::printf("%s\n", cuda::device_info(0).name.c_str());
  for (const bool causal : {false, true}) {
    for (const std::int64_t head_dim : {64, 128}) {
      for (const auto& [seqlen_q, seqlen_k] : {std::pair{1, 1}, {17, 63}, {65, 100}, {129, 127}, {1000, 1000}}) {
        const AttentionCase c = {.batch = 2,
                                 .heads_q = 4,
                                 .heads_k = 2,
                                 .seqlen_q = seqlen_q,
                                 .seqlen_k = seqlen_k,
                                 .head_dim = head_dim,
                                 .head_dim_v = head_dim,
                                 .causal = causal};
        SCOPED_TRACE(describe(c));
        const Inputs in = make_inputs(c);
        const Outputs truth = run(as_f64(in), "reference");
        const Standard standard = run_standard(in);
        const Outputs out = make_outputs(in);
        run_naive(in, out);
        const Comparison o = compare({"o", c.dtype, kForwardFactor, out.o.values(), truth.o.values(), standard.o});
        const Comparison lse = compare_lse(out.lse.values(), truth.lse.values(), standard.lse);
        std::printf("%s\n  %s\n  %s\n", describe(c).c_str(), o.report.c_str(), lse.report.c_str());
        EXPECT_TRUE(o.ok) << o.report;
        EXPECT_TRUE(lse.ok) << lse.report;
      }
    }
  }
}

}  // namespace
}  // namespace attend::test
