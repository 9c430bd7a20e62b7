// Tests memory layouts on every family that `auto` picks. Each tensor may have a different layout, may be part of a
// fused projection, or may share memory between heads. If the alignment permits the same kernels, the bits must equal
// those of dense tensors.
#include <array>
#include <cmath>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "gpu/families.hpp"
#include "gpu/forward_checks.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

class Layouts : public FamilyTest {};

INSTANTIATE_TEST_SUITE_P(Families, Layouts, testing::ValuesIn(kFamilies), kFamilyName);

/// The memory layouts of a tensor. All are aligned to 16 bytes, so every family supports them with the kernels for
/// dense tensors. kFirstOfRows and kLastOfRows are the first and the last heads in the rows of a fused projection.
enum Lies { kHeadsApart, kRowsApart, kFirstOfRows, kLastOfRows };
constexpr std::size_t kNumLies = 4;

AttentionCase layout_case() {
  AttentionCase c = plain(DType::kBF16, 4, 2, 75, 131, 64, true);
  c.batch = 2;
  c.deterministic = true;
  c.dlse = true;
  return c;
}

TensorBuffer new_home(const TensorBuffer& like, Lies lies) {
  const Shape& s = like.shape();
  switch (lies) {
    case kHeadsApart:
      return {like.dtype(), s, {Layout::kBHSD}};
    case kRowsApart:
      return {like.dtype(), s, {Layout::kBSHD}};
    case kFirstOfRows:
      return TensorBuffer::fused(like.dtype(), {s, {s[0], 1, s[2], s[3]}}, 0)[0];
    case kLastOfRows:
      return TensorBuffer::fused(like.dtype(), {s, s}, 0)[1];
  }
  return {};
}

TensorBuffer moved(const TensorBuffer& from, Lies lies) {
  const TensorBuffer to = new_home(from, lies);
  to.generate([&](auto... at) { return from.at(at...); });
  return to;
}

/// Runs the passes of a family and returns `out`. If the family has no forward, it reads o and lse from `out`.
Outputs outputs_of(const char* compute, const Inputs& in, const Outputs& out) {
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  submit_passes(compute, in, out, stream.get());
  cuda::synchronize(stream.get());
  return out;
}

/// Returns new outputs. If the family has no forward, o and lse of the result are the tensors of `given`.
Outputs new_outputs(const char* compute, const Inputs& in, const Outputs& given) {
  Outputs out = make_outputs(in);
  if (!has_forward(compute)) out.o = given.o, out.lse = given.lse;
  return out;
}

/// Tests every combination of layouts for q, k, v and dout. For o and the gradients it tests some combinations.
TEST_P(Layouts, OfEachTensorItsOwnGiveTheSameBits) {
  const Inputs in = make_inputs(layout_case());
  const Outputs want = run(in, GetParam());
  expect_finite(GetParam(), want);
  const TensorBuffer Inputs::*const kTensors[] = {&Inputs::q, &Inputs::k, &Inputs::v, &Inputs::dout};
  std::array<std::array<TensorBuffer, kNumLies>, std::size(kTensors)> homes;
  for (std::size_t t = 0; t < homes.size(); ++t) {
    for (std::size_t lies = 0; lies < kNumLies; ++lies)
      homes[t][lies] = moved(in.*kTensors[t], static_cast<Lies>(lies));
  }
  for (std::size_t number = 0; number < kNumLies * kNumLies * kNumLies * kNumLies; ++number) {
    SCOPED_TRACE(number);
    std::size_t left = number;
    const auto next = [&] {
      const std::size_t lies = left % kNumLies;
      left /= kNumLies;
      return lies;
    };
    Inputs others = in;
    others.q = homes[0][next()], others.k = homes[1][next()], others.v = homes[2][next()];
    others.dout = homes[3][next()];
    left = number * 7 + 3;  // selects another combination of layouts for the outputs
    Outputs out = new_outputs(GetParam(), in, want);
    const auto o_lies = static_cast<Lies>(next());
    out.o = has_forward(GetParam()) ? new_home(out.o, o_lies) : moved(want.o, o_lies);
    for (TensorBuffer* t : {&out.dq, &out.dk, &out.dv}) *t = new_home(*t, static_cast<Lies>(next()));
    const Outputs got = outputs_of(GetParam(), others, out);
    expect_same_bits(got, want);
    for (const TensorBuffer* t : {&got.o, &got.dq, &got.dk, &got.dv}) EXPECT_TRUE(t->gaps_intact());
    if (HasFailure()) return;
  }
}

/// q, k and v share one allocation in which their rows alternate. A fused projection writes them in this way. The
/// gradients share another allocation.
TEST_P(Layouts, OfAFusedProjectionGiveTheSameBits) {
  AttentionCase c = layout_case();
  c.seqlen_k = c.seqlen_q = 131;
  const Outputs want = run(make_inputs(c), GetParam());
  expect_finite(GetParam(), want);
  c.layout = CaseLayout::kFused;
  expect_same_bits(run(make_inputs(c), GetParam()), want);
}

/// With stride 0, heads, keys or batch entries share one set of rows. The results must equal those of a copy without
/// stride 0. A family that loads with tensor maps does not support stride 0. `auto` then picks another family
/// (tests/cuda/auto_test.cpp).
TEST_P(Layouts, WithStrideZeroAreAsTheirCopies) {
  const Inputs in = make_inputs(layout_case());
  const auto one = [](const TensorBuffer& t, const Shape& shape) {
    return made(t.dtype(), shape, [&](auto... at) { return t.at(at...); });
  };
  const Shape k = in.k.shape(), q = in.q.shape();
  Inputs broadcast = in;
  broadcast.k = one(in.k, {1, 1, k[2], k[3]}).expanded(k);     // the same keys for all heads
  broadcast.v = one(in.v, {k[0], k[1], 1, k[3]}).expanded(k);  // one value for all keys
  broadcast.q = one(in.q, {1, q[1], q[2], q[3]}).expanded(q);  // the same queries for all batch entries
  // The same row for every query, as in the gradient of a sum.
  broadcast.dout = one(in.dout, {1, 1, 1, q[3]}).expanded(q);
  Inputs copies = broadcast;
  for (TensorBuffer* t : {&copies.q, &copies.k, &copies.v, &copies.dout}) *t = copy_of(*t);
  const std::string lack = lack_of(GetParam(), broadcast);
  if (std::string_view(GetParam()).starts_with("sm90")) {
    EXPECT_NE(lack.find("none of them 0"), std::string::npos) << lack;
    return;
  }
  EXPECT_EQ(lack, "");
  const Outputs want = run(copies, GetParam());
  expect_finite(GetParam(), want);
  expect_same_bits(outputs_of(GetParam(), broadcast, new_outputs(GetParam(), broadcast, want)), want);
}

}  // namespace
}  // namespace attend::test
