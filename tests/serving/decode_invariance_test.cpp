// What a row of decode() is made of: its own keys, and nothing else. Bit for bit.
#include <gtest/gtest.h>

#include "serving/invariance_checks.hpp"

namespace attend::test {
namespace {

class DecodeInvariance : public testing::TestWithParam<DType> {
 protected:
  void TearDown() override { set_cpu_threads(0); }
};

/// Of caches whose elements may be NaN, and infinite.
using NaNInCaches = DecodeInvariance;
using InfinityInCaches = DecodeInvariance;

TEST_P(DecodeInvariance, ASequenceAloneAndInABatch) {
  check_sequences_alone_and_in_a_batch(GetParam(), decode_with("cpu"));
}

TEST_P(DecodeInvariance, KeysThatBeginLate) {
  check_keys_that_begin_late(GetParam(), decode_with("cpu"));
}

TEST_P(DecodeInvariance, NumbersOfThreads) {
  const CacheCase problem(long_facts(GetParam()), 6);
  set_cpu_threads(1);
  const CacheCase::Result one = problem.run("cpu");
  for (const int threads : {2, 3, 7, 64}) {
    set_cpu_threads(threads);
    const CacheCase::Result many = problem.run("cpu");
    EXPECT_EQ(one.o_bytes, many.o_bytes) << threads << " threads";
    EXPECT_EQ(one.lse_bytes, many.lse_bytes) << threads << " threads";
  }
}

TEST_P(DecodeInvariance, PageSizes) {
  check_page_sizes(long_facts(GetParam()), decode_with("cpu"));
}

TEST_P(DecodeInvariance, RowsInAnyChunks) {
  check_rows_in_any_chunks(long_facts(GetParam()), decode_with("cpu"));
}

TEST_P(NaNInCaches, NonFiniteKeysReachTheirRowsOnly) {
  check_nonfinite_keys(GetParam(), decode_with("cpu"));
}

TEST_P(NaNInCaches, NaNInAnyColumnOfAnUnseenValue) {
  check_nan_in_any_column(GetParam(), {1, 2, 7, 8, 16, 20, 33, 40, 72, 80}, decode_with("cpu"));
}

TEST_P(InfinityInCaches, InfinityTimesNoWeightIsNaNInAnyChunk) {
  for (const std::int64_t head_dim : {1, 64}) check_infinity_times_no_weight(GetParam(), head_dim, decode_with("cpu"));
}

std::string name_of(const testing::TestParamInfo<DType>& of) {
  return dtype_name(of.param);
}

INSTANTIATE_TEST_SUITE_P(DTypes, DecodeInvariance,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI8), name_of);
INSTANTIATE_TEST_SUITE_P(DTypes, NaNInCaches, testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3),
                         name_of);
INSTANTIATE_TEST_SUITE_P(DTypes, InfinityInCaches, testing::Values(DType::kF32, DType::kF16, DType::kBF16), name_of);

}  // namespace
}  // namespace attend::test
