// Tests bfloat16 problems whose masks cut tiles at rows and keys inside the blocks of a product, and sums of more tiles
// than one float accumulates. The backend recomputes non-finite results with the reference, so a right result alone
// could hide that a product has read uninitialized memory.
#include <gtest/gtest.h>

#include "cpu/backends.hpp"
#include "support/compare.hpp"

namespace attend::test {
namespace {

constexpr DType kBF16 = DType::kBF16;

class TileEdges : public testing::TestWithParam<AttentionCase> {};

TEST_P(TileEdges, RightWithoutTheReference) {
  const std::int64_t before = cpu::parts_redone();
  std::printf("%s\n", check_against_reference(make_inputs(GetParam()), "cpu").c_str());
  EXPECT_EQ(cpu::parts_redone(), before);
}

const AttentionCase kCases[] = {
    {.dtype = kBF16,
     .seqlen_q = 217,
     .seqlen_k = 104,
     .head_dim = 60,
     .head_dim_v = 426,
     .causal = true,
     .window_left = 49,
     .seed = 407},
    {.dtype = kBF16,
     .head_dim = 56,
     .head_dim_v = 56,
     .varlen_q = {85, 17, 18},
     .varlen_k = {85, 17, 18},
     .window_left = 8,
     .window_right = 57,
     .alibi = true,
     .layout = CaseLayout::kFused,
     .seed = 277},
    {.dtype = kBF16,
     .heads_q = 2,
     .seqlen_q = 301,
     .seqlen_k = 333,
     .head_dim = 64,
     .head_dim_v = 64,
     .window_left = 21,
     .window_right = 3,
     .seed = 5},
    {.dtype = kBF16,
     .heads_q = 2,
     .heads_k = 2,
     .seqlen_q = 259,
     .seqlen_k = 259,
     .head_dim = 41,
     .head_dim_v = 18,
     .causal = true,
     .seed = 6},
    {.dtype = kBF16, .seqlen_q = 65, .seqlen_k = 9239, .head_dim = 32, .head_dim_v = 27, .seed = 7},
    {.dtype = kBF16,
     .seqlen_q = 70,
     .seqlen_k = 9001,
     .head_dim = 16,
     .head_dim_v = 40,
     .causal = true,
     .window_left = 8700,
     .seed = 8},
    {.dtype = kBF16, .seqlen_q = 8470, .seqlen_k = 75, .head_dim = 24, .head_dim_v = 16, .seed = 9},
};

INSTANTIATE_TEST_SUITE_P(bf16, TileEdges, testing::ValuesIn(kCases));

}  // namespace
}  // namespace attend::test
