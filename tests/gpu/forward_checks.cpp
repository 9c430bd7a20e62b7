#include "gpu/forward_checks.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "attend/attention.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "support/expect.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr Device kGpu = {DeviceType::kCUDA, 0};

}  // namespace

Tensor on_gpu(const TensorBuffer& buffer) {
  Tensor view = buffer.view();
  view.device = kGpu;
  return view;
}

AttentionCase plain(DType dtype, std::int64_t heads_q, std::int64_t heads_k, std::int64_t seqlen_q,
                    std::int64_t seqlen_k, std::int64_t head_dim, bool causal) {
  return {.dtype = dtype,
          .batch = 1,
          .heads_q = heads_q,
          .heads_k = heads_k,
          .seqlen_q = seqlen_q,
          .seqlen_k = seqlen_k,
          .head_dim = head_dim,
          .head_dim_v = head_dim,
          .causal = causal};
}

void submit(std::string_view compute, const Inputs& in, const Outputs& out, Stream stream) {
  const Tensor lse = on_gpu(out.lse);
  Params params = in.params(compute);
  for (std::optional<ConstTensor>* t : {&params.bias, &params.mask, &params.alibi_slopes, &params.sinks}) {
    if (*t) (*t)->device = kGpu;
  }
  forward(on_gpu(in.q), on_gpu(in.k), on_gpu(in.v), on_gpu(out.o), &lse, params, stream);
}

void check_repeats(std::string_view compute, const AttentionCase& c, int rounds) {
  constexpr int kUnderWay = 20;  // number of calls that are submitted without waiting; each has separate outputs
  const Inputs in = make_inputs(c);
  const Outputs first = run(in, compute);
  std::vector<Outputs> again;
  for (int i = 0; i < kUnderWay; ++i) again.push_back(make_outputs(in));
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  for (int round = 0; round < rounds; round += kUnderWay) {
    for (const Outputs& out : again) submit(compute, in, out, stream.get());
    cuda::synchronize(stream.get());
    for (const Outputs& out : again) {
      ASSERT_EQ(out.o.bytes(), first.o.bytes()) << round;
      ASSERT_EQ(out.lse.bytes(), first.lse.bytes()) << round;
    }
  }
}

void check_finite_bias(std::string_view compute, std::int64_t head_dim, DType dtype) {
  AttentionCase c = plain(dtype, 2, 1, 70, 200, head_dim, false);
  c.bias = Broadcast{true, true, true};
  const Inputs in = make_inputs(c);
  constexpr double kLowest = -0x1.fep127;  // lowest finite bfloat16
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t i = 0; i < 70; i += 3) {
      for (std::int64_t j = 0; j < 200; ++j) in.bias->set(0, h, i, j, kLowest);
    }
  }
  const Outputs out = run(in, compute), want = run(in, "simt");
  for (std::int64_t i = 0; i < 70; i += 3) {
    EXPECT_TRUE(std::isfinite(out.lse.at(0, 1, i, 0))) << i;
    for (std::int64_t col = 0; col < head_dim; ++col) {
      ASSERT_NEAR(out.o.at(0, 1, i, col), want.o.at(0, 1, i, col), 0.01) << i << " " << col;
    }
  }
}

void check_large_scores(std::string_view compute, std::int64_t head_dim, DType dtype) {
  for (const double magnitude : {1e3, 1e9, 1e12, 1e15}) {
    AttentionCase c = plain(dtype, 1, 1, 20, 300, head_dim, false);
    c.scale = 1;
    const Inputs in = make_inputs(c);
    for (std::int64_t i = 0; i < 20; ++i) {
      for (std::int64_t col = 0; col < head_dim; ++col)
        in.q.set(0, 0, i, col, col == 0 ? magnitude * (i % 2 == 0 ? 1 : -1) : 0);
    }
    // The tiles are processed in order. Some of the first tiles contain the largest score, and others do not.
    for (std::int64_t j = 0; j < 300; ++j) in.k.set(0, 0, j, 0, j % 100 == 70 ? magnitude : -magnitude);
    const Outputs out = make_outputs(in), want = make_outputs(in);
    run_forward(in, out, compute);
    run_forward(in, want, "reference");
    expect_near("o", out.o.values(), want.o.values(), property_tolerance(c.dtype));
    expect_near("lse", out.lse.values(), want.lse.values(), property_tolerance(DType::kF32));
  }
}

void check_neighbours(std::string_view compute, std::int64_t head_dim, bool packed, DType dtype) {
  AttentionCase c = plain(dtype, 2, 2, 150, 170, head_dim, true);
  c.batch = 3;
  if (packed) {
    c.varlen_q = {150, 150, 150};
    c.varlen_k = {170, 170, 170};
  }
  const Inputs in = make_inputs(c);
  const Outputs want = run(in, compute);
  const std::int64_t rows = packed ? 150 : 0, keys = packed ? 170 : 0;
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t col = 0; col < head_dim; ++col) {
      for (const std::int64_t sequence : {0, 2}) {
        const std::int64_t b = packed ? 0 : sequence;
        for (std::int64_t i = 0; i < 150; ++i) in.q.set(b, h, sequence * rows + i, col, NAN);
        for (std::int64_t j = 0; j < 170; ++j) {
          in.k.set(b, h, sequence * keys + j, col, NAN);
          in.v.set(b, h, sequence * keys + j, col, INFINITY);
        }
      }
    }
  }
  const Outputs got = run(in, compute);
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t i = 0; i < 150; ++i) {
      const std::int64_t b = packed ? 0 : 1, row = rows + i;
      for (std::int64_t col = 0; col < head_dim; ++col) {
        ASSERT_EQ(got.o.at(b, h, row, col), want.o.at(b, h, row, col)) << packed << " " << h << " " << i;
      }
      ASSERT_EQ(got.lse.at(b, h, row, 0), want.lse.at(b, h, row, 0));
    }
  }
}

}  // namespace attend::test
