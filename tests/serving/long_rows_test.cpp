// Tests which decode calls use the long-row kernel, which computes sequences with many query rows on Hopper's tensor
// cores. Also tests how this kernel loads the cache. tests/gpu/long_rows_test.cpp runs the kernel.
#include "cuda/serving/long_rows.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "cuda/driver/arch.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {
namespace {

CacheFacts long_rows() {
  CacheFacts f;
  f.dtype = DType::kBF16;
  f.head_dim = f.head_dim_v = 128;
  f.rows = {65, 65};
  f.lengths = {80, 0};
  return f;
}

std::optional<cuda::Sm90ForwardVariant> variant(const CacheFacts& facts, const char* arch = "sm_90a") {
  const CacheCase problem(facts, 1);
  DecodeCall call = problem.call();
  const Shape& q = problem.q.shape();
  const TensorBuffer o(facts.dtype, {q[0], q[1], q[2], facts.head_dim_v});
  call.o = o.view();
  return cuda::long_rows_variant(core::make_decode_problem(call), cuda::find_arch(arch), 64);
}

TEST(LongRows, AreThoseOfMoreThan64) {
  CacheFacts facts = long_rows();
  EXPECT_TRUE(variant(facts));
  facts.rows = {64, 64};
  EXPECT_FALSE(variant(facts));
}

TEST(LongRows, WantHopper) {
  for (const char* arch : {"sm_75", "sm_80", "sm_120"}) EXPECT_FALSE(variant(long_rows(), arch)) << arch;
}

TEST(LongRows, OfOtherTypesAndHeadDimsAreShortOnes) {
  CacheFacts f32 = long_rows(), eight_bits = long_rows(), wide = long_rows(), odd = long_rows(), mla = long_rows();
  f32.dtype = DType::kF32;
  eight_bits.cache_dtype = DType::kF8E4M3;
  wide.head_dim = wide.head_dim_v = 264;
  odd.head_dim = odd.head_dim_v = 68;
  mla.head_dim = 576, mla.head_dim_v = 512, mla.values_in_keys = true;
  for (const CacheFacts& facts : {f32, eight_bits, wide, odd, mla}) EXPECT_FALSE(variant(facts)) << facts.text();
  CacheFacts f16 = long_rows();
  f16.dtype = DType::kF16;
  f16.head_dim = 192;
  f16.head_dim_v = 40;
  EXPECT_TRUE(variant(f16));
}

/// The copy engine cannot load rows whose stride is not a multiple of 16 bytes. The long-row kernel must not be used
/// for them.
TEST(LongRows, OfStridesThatTheCopyEngineDoesNotTakeAreShortOnes) {
  CacheFacts facts = long_rows();
  facts.layout = Layout::kPadded;
  EXPECT_FALSE(variant(facts));
}

TEST(LongRows, ComeInBoxesAsLargeAsPagesAllow) {
  struct Expected {
    std::int64_t head_dim, page_size;
    int has_boxes, loaders, box_rows;
  };
  // Key tiles have 128 keys in general, 112 keys for head_dim 192, and 64 keys for head_dim 256.
  for (const auto& [head_dim, page_size, has_boxes, loaders, box_rows] : {Expected{128, 0, 1, 1, 128},
                                                                          {128, 128, 1, 1, 128},
                                                                          {128, 256, 1, 1, 128},
                                                                          {128, 64, 1, 4, 32},
                                                                          {128, 48, 1, 4, 16},
                                                                          {128, 8, 1, 4, 8},
                                                                          {128, 4, 0, 4, 0},
                                                                          {128, 3, 0, 4, 0},
                                                                          {128, 1, 0, 4, 0},
                                                                          {192, 0, 1, 1, 112},
                                                                          {192, 112, 1, 1, 112},
                                                                          {192, 256, 1, 4, 16},
                                                                          {256, 64, 1, 1, 64},
                                                                          {256, 96, 1, 2, 32}}) {
    CacheFacts facts = long_rows();
    facts.head_dim = facts.head_dim_v = head_dim;
    facts.page_size = page_size;
    const auto found = variant(facts);
    ASSERT_TRUE(found) << head_dim << " " << page_size;
    EXPECT_EQ(found->has_boxes, has_boxes) << head_dim << " " << page_size;
    EXPECT_EQ(found->key_loaders, loaders) << head_dim << " " << page_size;
    EXPECT_EQ(cuda::sm90_forward_box_rows(*found, page_size), box_rows) << head_dim << " " << page_size;
  }
}

/// Each block of the long-row kernel computes 128 query rows of one head. The kernel is used only if at least 16 blocks
/// have work. With few heads, sequences therefore need more rows.
TEST(LongRows, OfFewHeadsAreMore) {
  using enum cuda::LongRows;
  for (const auto& [heads, most] : {std::pair{64, 64}, {16, 64}, {15, 128}, {8, 128}, {4, 384}, {2, 896}, {1, 1920}}) {
    EXPECT_EQ(cuda::most_decode_rows(kFaster, heads), most) << heads;
    EXPECT_EQ(cuda::most_decode_rows(kSm90Forward, heads), 64) << heads;
    EXPECT_GT(cuda::most_decode_rows(kDecode, heads), 1 << 30) << heads;
  }
}

/// The tile size must not depend on the number of rows or sequences, because it determines the order of summation.
TEST(LongRows, HaveOneTileForAnyBatch) {
  CacheFacts few = long_rows(), many = long_rows();
  many.rows.assign(9, 300);
  many.lengths.assign(9, 600);
  many.capacity = 1000;
  const auto a = variant(few), b = variant(many);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(std::memcmp(&*a, &*b, sizeof(*a)), 0);
}

}  // namespace
}  // namespace attend::test
