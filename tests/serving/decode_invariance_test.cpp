// Checks that the bits of a row of decode() depend only on the keys that the row sees.
#include <gtest/gtest.h>

#include <limits>

#include "core/dtype_traits.hpp"
#include "serving/invariance_checks.hpp"

namespace attend::test {
namespace {

class DecodeInvariance : public testing::TestWithParam<DType> {
 protected:
  void TearDown() override { set_cpu_threads(0); }
};

/// Tests for caches whose dtype can represent NaN, and for caches whose dtype can represent infinity.
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

/// If the cache is larger than the processor caches, the CPU backend reads several chunks at the same time.
TEST_P(DecodeInvariance, CachesInMemoryAndInTheProcessor) {
  CacheFacts facts = long_facts(GetParam());
  facts.lengths = {2500, 1100, 2048, 1024};
  for (const std::int64_t group : {1, 2, 3, 8, 9}) {
    facts.group = group;
    facts.page_size = group % 2 == 0 ? 0 : 16;
    facts.leftpad = group == 2;
    facts.missing_pages = group == 3;
    facts.rows.assign(4, group < 3 ? 3 : 1);
    facts.tree = group == 1;
    facts.window_left = group == 8 ? 1300 : -1;
    facts.head_dim = group == 2 ? 72 : 128;
    facts.head_dim_v = group == 3 ? 40 : 128;
    const CacheCase problem(facts, 8);
    // Sets the last key of sequence 2 to NaN. Only some rows see this key.
    if (facts.rows[0] > 1 && !core::is_quantized(facts.type_of_cache())) {
      const auto last = problem.place(2, 2047);
      problem.v.set(last->block, 1, last->row, 5, std::numeric_limits<double>::quiet_NaN());
    }
    set_cpu_threads(1);
    const CacheCase::Result in_memory = problem.run("cpu");
    set_cpu_threads(64);
    const CacheCase::Result in_processor = problem.run("cpu");
    EXPECT_EQ(in_memory.o_bytes, in_processor.o_bytes) << facts.text();
    EXPECT_EQ(in_memory.lse_bytes, in_processor.lse_bytes) << facts.text();
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
