// Tests simt, which claims to support every option. Covers each pair of options, every head_dim, every mask of short
// sequences, NaN, determinism and graphs.
#include <gmock/gmock.h>

#include <array>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "dispatch/dispatch.hpp"
#include "gpu/gpu.hpp"
#include "gpu/mask_rule.hpp"
#include "kernels/attention/philox.cuh"
#include "support/expect.hpp"
#include "support/nonfinite_checks.hpp"
#include "support/option_cases.hpp"
#include "support/option_pairs.hpp"
#include "support/tolerances.hpp"

namespace attend::test {
namespace {

constexpr const char* kCompute = "simt";
constexpr Device kGpu = {DeviceType::kCUDA, 0};

Tensor on_gpu(const TensorBuffer& buffer) {
  Tensor view = buffer.view();
  view.device = kGpu;
  return view;
}

class Simt : public GpuTest, public testing::WithParamInterface<AttentionCase> {};

TEST_P(Simt, StaysInBudget) {
  check_backend(kCompute, make_inputs(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(OptionPairs, Simt, testing::ValuesIn(option_pair_cases()), kIndexName);
INSTANTIATE_TEST_SUITE_P(OneOptionF32, Simt, testing::ValuesIn(option_cases(DType::kF32)), kIndexName);
INSTANTIATE_TEST_SUITE_P(OneOptionF16, Simt, testing::ValuesIn(option_cases(DType::kF16)), kIndexName);
INSTANTIATE_TEST_SUITE_P(OneOptionBF16, Simt, testing::ValuesIn(option_cases(DType::kBF16)), kIndexName);

/// Returns every head_dim at which the tile, the vector width or the division of columns changes, each combined with a
/// separate head_dim_v.
std::vector<AttentionCase> head_dim_cases() {
  std::vector<std::int64_t> head_dims;
  for (std::int64_t d = 1; d <= 32; ++d) head_dims.push_back(d);
  for (const std::int64_t d : {40, 59, 64, 72, 80, 96, 111, 112, 128, 160, 176, 192, 224, 256, 320, 512}) {
    head_dims.push_back(d);
  }
  constexpr std::array kTypes = {DType::kF32, DType::kF16, DType::kBF16};
  std::vector<AttentionCase> cases;
  for (const std::int64_t d : head_dims) {
    AttentionCase c = {.dtype = kTypes[cases.size() % kTypes.size()],
                       .batch = 1,
                       .heads_q = 2,
                       .heads_k = 1,
                       .seqlen_q = 70,
                       .seqlen_k = 99,
                       .head_dim = d,
                       .head_dim_v = cases.size() % 2 == 0 ? d : (d * 7) % 300 + 1,
                       .causal = d % 4 == 0,
                       .sinks = d % 3 != 1,
                       .dlse = d % 3 == 2,
                       .seed = static_cast<std::uint64_t>(d)};
    cases.push_back(c);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(HeadDim, Simt, testing::ValuesIn(head_dim_cases()), kIndexName);

AttentionCase plain(DType dtype, std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t head_dim) {
  return {.dtype = dtype,
          .batch = 1,
          .heads_q = 4,
          .heads_k = 2,
          .seqlen_q = seqlen_q,
          .seqlen_k = seqlen_k,
          .head_dim = head_dim,
          .head_dim_v = head_dim};
}

AttentionCase with_all_options(AttentionCase c) {
  c.softcap = 3;
  c.alibi = true;
  c.bias = Broadcast{false, true, true};
  c.mask = Broadcast{true, false, true};
  c.sinks = true;
  c.dropout_p = 0.3;
  c.window_left = 80;
  c.window_right = 20;
  c.dlse = true;
  return c;
}

std::vector<AttentionCase> long_cases() {
  std::vector<AttentionCase> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t head_dim : {64, 128}) {
      cases.push_back(plain(dtype, 1000, 1111, head_dim));
      cases.push_back(with_all_options(plain(dtype, 515, 600, head_dim)));
      cases.back().window_left = 200;
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Long, Simt, testing::ValuesIn(long_cases()), kIndexName);

/// The cases have enough rows that every multiprocessor computes some of the larger tiles.
std::vector<AttentionCase> many_row_cases() {
  std::vector<AttentionCase> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t head_dim : {17, 40, 64, 96, 128}) {
      AttentionCase c = plain(dtype, 100, 130, head_dim);
      c.batch = 5;
      c.heads_q = 16;
      c.heads_k = 4;
      c.causal = head_dim != 40;
      c.base_offset = head_dim == 17 ? 1 : 0;
      c.dlse = true;
      cases.push_back(c);
      c.causal = false;
      for (const double dropout_p : {0.0, 0.3}) {
        AttentionCase options = with_all_options(c);
        options.dropout_p = dropout_p;
        cases.push_back(options);
      }
      c.dropout_p = 0.4;
      cases.push_back(c);
    }
  }
  for (AttentionCase& c : cases) c.seed = static_cast<std::uint64_t>(&c - cases.data()) + 1;
  return cases;
}

INSTANTIATE_TEST_SUITE_P(ManyRows, Simt, testing::ValuesIn(many_row_cases()), kIndexName);

/// Returns small cases that use each option once and have more than one tile. The sanitizers run these.
std::vector<AttentionCase> slice_cases() {
  const AttentionCase base = plain(DType::kF32, 65, 100, 40);
  std::vector<AttentionCase> cases = {base, with_all_options(base)};
  const auto with = [&](auto change) {
    AttentionCase c = base;
    constexpr std::array kTypes = {DType::kF16, DType::kBF16, DType::kF32};
    c.dtype = kTypes[cases.size() % kTypes.size()];
    change(c);
    cases.push_back(c);
  };
  with([](AttentionCase& c) { c.softcap = 2; });
  with([](AttentionCase& c) { c.alibi = true; });
  with([](AttentionCase& c) { c.bias = Broadcast{true, false, true}; });
  with([](AttentionCase& c) { c.bias = Broadcast{false, true, false}; });
  with([](AttentionCase& c) { c.mask = Broadcast{}; });
  with([](AttentionCase& c) { c.dropout_p = 0.4; });
  with([](AttentionCase& c) { c.batch = 2, c.sinks = c.sinks_per_sequence = true, c.dlse = true; });
  with([](AttentionCase& c) { c.window_left = 30, c.window_right = 5; });
  with([](AttentionCase& c) { c.varlen_q = {70, 0, 3}, c.varlen_k = {65, 4, 0}, c.causal = c.sinks = true; });
  with([](AttentionCase& c) { c.head_dim = 17, c.head_dim_v = 300, c.layout = CaseLayout::kPadded; });
  with([](AttentionCase& c) { c.head_dim = c.head_dim_v = 128, c.dlse = true, c.broadcast_dout = true; });
  with([](AttentionCase& c) { c.head_dim = 200, c.head_dim_v = 7, c.base_offset = 1; });
  // This problem has enough work for the larger tiles.
  with([](AttentionCase& c) { c.batch = 9, c.heads_q = c.heads_k = 8, c.dropout_p = 0.2; });
  with([](AttentionCase& c) { c.batch = 9, c.heads_q = c.heads_k = 8, c.head_dim = c.head_dim_v = 72; });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Slice, Simt, testing::ValuesIn(slice_cases()), kIndexName);

class SimtNonFinite : public GpuTest, public testing::WithParamInterface<std::tuple<NonFiniteCheck, DType>> {};

TEST_P(SimtNonFinite, GoesWhereItHasTo) {
  const auto& [check, dtype] = GetParam();
  check.check(kCompute, dtype);
}

INSTANTIATE_TEST_SUITE_P(Checks, SimtNonFinite,
                         testing::Combine(testing::ValuesIn(nonfinite_checks()),
                                          testing::Values(DType::kF32, DType::kF16, DType::kBF16)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" + dtype_name(std::get<1>(test.param));
                         });

class SimtProperty : public GpuTest, public testing::WithParamInterface<DType> {};

INSTANTIATE_TEST_SUITE_P(Types, SimtProperty, testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

TEST_P(SimtProperty, MasksAreTheRuleForEveryLengthAndWindow) {
  check_every_mask(kCompute, GetParam(), 1, kMostMaskKeys + 1);
}

/// All scores are equal and the values are unit vectors, so o shows which entries dropout keeps.
TEST_P(SimtProperty, DropsWhatPhiloxSays) {
  constexpr std::int64_t kLength = 150, kHeads = 3;
  AttentionCase c = plain(GetParam(), kLength, kLength, 8);
  c.batch = 2;
  c.heads_q = c.heads_k = kHeads;
  c.head_dim_v = kLength;
  c.dropout_p = 0.4;
  Inputs in = make_inputs(c);
  in.philox_state.reset();  // the test passes seed and offset by value instead
  in.q.fill(0);
  for (const TensorBuffer* t : {&in.v, &in.dout}) {
    t->generate([](auto, auto, auto row, auto col) { return row == col ? 1.0 : 0.0; });
  }
  const Outputs out = run(in, kCompute);
  const Params params = in.params(kCompute);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const auto mask = DropMask::make(params.seed, params.offset, b * kHeads + h, c.dropout_p);
      for (std::int64_t i = 0; i < kLength; ++i) {
        ASSERT_NEAR(out.lse.at(b, h, i, 0), std::log(double(kLength)), kLseAbsolute);
        for (std::int64_t j = 0; j < kLength; ++j) {
          ASSERT_EQ(out.o.at(b, h, i, j) != 0, mask.keeps(i, j)) << b << " " << h << " " << i << " " << j;
          ASSERT_EQ(out.dv.at(b, h, j, i) != 0, mask.keeps(i, j)) << b << " " << h << " " << i << " " << j;
        }
      }
    }
  }
}

TEST_P(SimtProperty, RepeatsAreBitEqual) {
  for (const std::int64_t head_dim : {64, 200}) {
    const Inputs in = make_inputs(with_all_options(plain(GetParam(), 300, 333, head_dim)));
    const Outputs first = run(in, kCompute);
    for (int repeat = 0; repeat < 10; ++repeat) expect_same_bits(run(in, kCompute), first);
  }
}

TEST_P(SimtProperty, AgreesWithTheCpu) {
  for (const bool all : {false, true}) {
    AttentionCase c = plain(GetParam(), 129, 201, 72);
    c.head_dim_v = 40;
    const Inputs in = make_inputs(all ? with_all_options(c) : c);
    expect_near(run(in, kCompute), run(in, "cpu"), property_tolerance(GetParam()));
  }
}

TEST_P(SimtProperty, EmptyRowsAreZero) {
  AttentionCase c = plain(GetParam(), 100, 70, 48);
  c.mask = Broadcast{false, false, true};
  c.dlse = true;
  const Inputs in = make_inputs(c);
  for (std::int64_t i = 0; i < c.seqlen_q; i += 3) {
    for (std::int64_t j = 0; j < c.seqlen_k; ++j) in.mask->set(0, 0, i, j, 0);
    in.dout.set(0, 1, i, 5, NAN);  // this row sees no key
    in.dlse->set(0, 1, i, 0, NAN);
  }
  const Outputs out = run(in, kCompute);
  for (std::int64_t i = 0; i < c.seqlen_q; i += 3) {
    for (std::int64_t h = 0; h < c.heads_q; ++h) {
      EXPECT_EQ(out.lse.at(0, h, i, 0), -INFINITY);
      for (std::int64_t col = 0; col < c.head_dim; ++col) {
        EXPECT_EQ(out.o.at(0, h, i, col), 0);
        EXPECT_EQ(out.dq.at(0, h, i, col), 0);
      }
    }
  }
  for (const TensorBuffer* t : {&out.dq, &out.dk, &out.dv}) {
    for (const double x : t->values()) ASSERT_TRUE(std::isfinite(x));
  }
}

TEST_P(SimtProperty, AutoFallsToItInFloat32) {
  // Rows of 57 elements have no valid tensor map, so the tensor-core families refuse them.
  constexpr std::int64_t kHeadDim = 57;
  const Inputs in = make_inputs(with_all_options(plain(GetParam(), 33, 40, kHeadDim)));
  const Outputs out = make_outputs(in);
  core::Problem p =
      core::make_forward_problem(in.q.view(), in.k.view(), in.v.view(), out.o.view(), nullptr, in.params("auto"));
  p.q.device = kGpu;
  EXPECT_STREQ(dispatch::choose("auto", p).name, GetParam() == DType::kF32 ? kCompute : "sm80_forward");
}

/// Batch entries of k and dk are more than 2^31 elements apart.
TEST_P(SimtProperty, StridesMayExceed32Bits) {
  AttentionCase c = plain(GetParam(), 40, 70, 64);
  c.batch = 2;
  const Inputs in = make_inputs(c);
  const Outputs want = run(in, kCompute);
  const auto copy = driver_function<int (*)(void*, const void*, std::size_t)>("cuMemcpy");
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  const std::int64_t far = (std::int64_t{1} << 31) + 64;
  const std::int64_t entry = c.heads_k * c.seqlen_k * c.head_dim;
  const auto bytes = [&](std::int64_t elements) { return static_cast<std::size_t>(elements * dtype_bytes(c.dtype)); };
  const auto spread_out = [&](const TensorBuffer& like, const cuda::Scratch& memory) {
    Tensor spread = on_gpu(like);
    spread.data = reinterpret_cast<void*>(memory.data());
    spread.stride[0] = far;
    return spread;
  };
  const cuda::Scratch k_memory(bytes(far + entry), stream.get()), dk_memory(bytes(far + entry), stream.get());
  cuda::synchronize(stream.get());
  const Tensor k = spread_out(in.k, k_memory), dk = spread_out(want.dk, dk_memory);
  const auto part = [&](const Tensor& t, std::int64_t batch) {
    return static_cast<std::byte*>(t.data) + bytes(batch * t.stride[0]);
  };
  for (std::int64_t b = 0; b < 2; ++b) ASSERT_EQ(copy(part(k, b), part(in.k.view(), b), bytes(entry)), 0);
  const Outputs out = make_outputs(in);
  const Tensor lse = on_gpu(out.lse);
  forward(on_gpu(in.q), k, on_gpu(in.v), on_gpu(out.o), &lse, in.params(kCompute), stream.get());
  backward(on_gpu(in.dout), on_gpu(in.q), k, on_gpu(in.v), on_gpu(out.o), lse, on_gpu(out.dq), dk, on_gpu(out.dv),
           in.params(kCompute), stream.get());
  cuda::synchronize(stream.get());
  for (std::int64_t b = 0; b < 2; ++b) ASSERT_EQ(copy(part(out.dk.view(), b), part(dk, b), bytes(entry)), 0);
  expect_same_bits(out, want);
}

/// Captures forward and backward in a graph. Replays the graph with other numbers in the same memory.
TEST_P(SimtProperty, AGraphReplaysForwardAndBackward) {
  const AttentionCase c = [&] {
    AttentionCase made = with_all_options(plain(GetParam(), 100, 90, 64));
    made.bias->rows = false;  // a bias that rows share uses both kernels of the bias gradient
    return made;
  }();
  const Inputs in = make_inputs(c);
  (void)run(in, kCompute);  // compiles the kernels
  const Outputs out = make_outputs(in);
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  Params params = in.params(kCompute);
  for (std::optional<ConstTensor>* t : {&params.bias, &params.mask, &params.alibi_slopes, &params.sinks}) {
    (*t)->device = kGpu;
  }
  const Tensor lse = on_gpu(out.lse);
  const BackwardExtras extras = {on_gpu(*in.dlse), on_gpu(*out.dbias), on_gpu(*out.dsinks)};
  CapturedGraph graph(stream.get(), [&] {
    forward(on_gpu(in.q), on_gpu(in.k), on_gpu(in.v), on_gpu(out.o), &lse, params, stream.get());
    backward(on_gpu(in.dout), on_gpu(in.q), on_gpu(in.k), on_gpu(in.v), on_gpu(out.o), lse, on_gpu(out.dq),
             on_gpu(out.dk), on_gpu(out.dv), params, stream.get(), extras);
  });
  for (std::uint64_t seed = 2; seed < 4; ++seed) {
    AttentionCase other = c;
    other.seed = seed;
    const Inputs fresh = make_inputs(other);
    for (const auto& [to, from] : {std::pair{&in.q, &fresh.q}, {&in.k, &fresh.k}, {&in.v, &fresh.v}}) {
      to->generate([from = from](auto... at) { return from->at(at...); });
    }
    graph.launch();
    cuda::synchronize(stream.get());
    expect_same_bits(out, run(in, kCompute));
  }
}

}  // namespace
}  // namespace attend::test
