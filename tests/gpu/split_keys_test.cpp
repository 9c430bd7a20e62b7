// Compares sm90_forward with float64 when several blocks share the keys of a row.
#include <gtest/gtest.h>

#include "cuda/driver/device.hpp"
#include "cuda/launch/family.hpp"
#include "cuda/launch/sm90_forward_variant.hpp"
#include "dispatch/dispatch.hpp"
#include "gpu/forward_checks.hpp"
#include "gpu/gpu.hpp"

namespace attend::test {
namespace {

constexpr const char* kCompute = "sm90_forward";

/// Returns whether the variant that the family chooses by default splits the keys of a row among blocks.
bool splits_keys(const Inputs& in) {
  const Outputs out = make_outputs(in);
  core::Problem p = core::make_forward_problem(in.q.view(), in.k.view(), in.v.view(), out.o.view(), &out.lse.view(),
                                               in.params(kCompute));
  p.q.device = {DeviceType::kCUDA, 0};
  const cuda::Choice choice = cuda::find_family(kCompute)->choose(p, cuda::device_info(0));
  return choice.variant.as<cuda::Sm90ForwardVariant>().splits_keys != 0;
}

class SplitKeys : public HopperTest, public testing::WithParamInterface<AttentionCase> {};

TEST_P(SplitKeys, StaysInBudget) {
  const Inputs in = make_inputs(GetParam());
  ASSERT_TRUE(supports(kCompute, in)) << describe(GetParam());
  EXPECT_TRUE(splits_keys(in)) << describe(GetParam());
  check_backend(kCompute, in);
}

/// Returns cases with few rows and many keys. The cases cover each mask and score option, key ranges that no row sees,
/// and numbers of keys that no tile size divides.
std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> found;
  const auto add = [&](std::int64_t q, std::int64_t k, std::int64_t head_dim, bool causal = false) -> AttentionCase& {
    AttentionCase c = plain(found.size() % 2 == 0 ? DType::kBF16 : DType::kF16, 4, 2, q, k, head_dim, causal);
    c.layout = found.size() % 4 < 2 ? CaseLayout::kBSHD : CaseLayout::kBHSD;
    c.seed = 900 + found.size();
    return found.emplace_back(c);
  };
  for (const std::int64_t head_dim : {64, 128, 256}) {
    add(1, 4096, head_dim);
    add(65, 4097, head_dim).batch = 2;
    add(130, 5001, head_dim, true);
    add(64, 8192, head_dim, true).fill = Fill::kLarge;
    add(2048, 2048, head_dim, true).heads_q = 2;             // the first rows only see keys of the first block's range
    AttentionCase& blind = add(1300, 1100, head_dim, true);  // the first rows see no key
    blind.heads_q = blind.heads_k = 1;
    AttentionCase& windowed = add(200, 6000, head_dim);
    windowed.window_left = 3000;
    windowed.window_right = 100;
    add(100, 4100, head_dim).softcap = 2;
    add(100, 4100, head_dim, true).alibi = true;
    add(70, 4200, head_dim).dropout_p = 0.3;
    add(64, 4096, head_dim).fill = Fill::kOneHot;
    add(33, 4096, head_dim).scale = -0.2;
  }
  add(64, 4096, 40).head_dim_v = 200;
  add(64, 4096, 192).head_dim_v = 128;
  return found;
}

INSTANTIATE_TEST_SUITE_P(All, SplitKeys, testing::ValuesIn(cases()), kIndexName);

class SplitKeysAlone : public HopperTest {};

TEST_F(SplitKeysAlone, AHundredRepeatsAreBitEqual) {
  check_repeats(kCompute, plain(DType::kBF16, 2, 1, 100, 8192, 128, true), 100);
  check_repeats(kCompute, plain(DType::kF16, 2, 1, 200, 4096, 64, false), 100);
}

/// Block masks, packed lengths, biases and sinks would need another merge kernel, so the library must not split the
/// keys of these problems.
TEST_F(SplitKeysAlone, AreNotThoseOfListsLengthsOrSinks) {
  const AttentionCase c = plain(DType::kBF16, 2, 1, 64, 4096, 128, false);
  EXPECT_TRUE(splits_keys(make_inputs(c)));
  AttentionCase other = c;
  other.sinks = true;
  EXPECT_FALSE(splits_keys(make_inputs(other)));
  other = c;
  other.bias = Broadcast{true, true, true};
  EXPECT_FALSE(splits_keys(make_inputs(other))) << "-1e9 for a whole row would take its keys' number from lse";
  other = c;
  other.mask = Broadcast{true, true, true};
  EXPECT_FALSE(splits_keys(make_inputs(other)));
  other = c;
  other.varlen_q = {64};
  other.varlen_k = {4096};
  EXPECT_FALSE(splits_keys(make_inputs(other)));
}

}  // namespace
}  // namespace attend::test
