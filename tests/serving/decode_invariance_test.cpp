// What a row of decode() is made of: its own keys, and nothing else. Bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "core/dtype_traits.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {
namespace {

/// A cache of the dtype. One of 8 bits has a factor for each row, and query rows of bf16.
CacheFacts facts_of(DType dtype) {
  CacheFacts f;
  f.dtype = dtype;
  if (!core::is_quantized(dtype)) return f;
  f.dtype = DType::kBF16;
  f.cache_dtype = dtype;
  f.descales = Descales::kRows;
  return f;
}

CacheFacts long_facts(DType dtype) {
  CacheFacts f = facts_of(dtype);
  f.head_dim = f.head_dim_v = 64;
  f.num_heads_k = 2;
  f.group = 4;
  f.rows = {1, 1, 1, 1};
  f.lengths = {2500, 1, 700, 1024};
  f.sinks = true;
  f.alibi = true;
  return f;
}

/// The rows of one sequence of a call, computed by a call with that sequence alone.
std::vector<std::byte> alone(const CacheCase& problem, std::int64_t s) {
  DecodeCall call = problem.call();
  const Shape& shape = problem.q.shape();
  const TensorBuffer o(problem.facts().dtype, {1, shape[1], shape[2], problem.facts().head_dim_v});
  const TensorBuffer lse(DType::kF32, {1, shape[1], shape[2], 1});
  call.q.data = static_cast<const char*>(call.q.data) + s * call.q.stride[0] * dtype_bytes(call.q.dtype);
  call.q.shape[0] = 1;
  call.o = o.view();
  call.lse = lse.view();
  const auto row = static_cast<std::int32_t>(s);
  call.cache.cache_batch_idx = &row;
  call.cache.seqlens_k += s;
  if (call.params.sinks) {
    call.params.sinks->data = static_cast<const char*>(call.params.sinks->data) + s * shape[1] * 4;
    call.params.sinks->shape[0] = 1;
  }
  attend::decode(call);
  std::vector<std::byte> bytes = o.bytes();
  const std::vector<std::byte> of_lse = lse.bytes();
  bytes.insert(bytes.end(), of_lse.begin(), of_lse.end());
  return bytes;
}

class DecodeInvariance : public testing::TestWithParam<DType> {
 protected:
  void TearDown() override { set_cpu_threads(0); }
};

/// Of caches whose elements may be NaN, and infinite.
using NaNInCaches = DecodeInvariance;
using InfinityInCaches = DecodeInvariance;

TEST_P(DecodeInvariance, ASequenceAloneAndInABatch) {
  for (const std::int64_t page_size : {0, 16}) {
    CacheFacts facts = long_facts(GetParam());
    facts.page_size = page_size;
    const CacheCase problem(facts, 5);
    const CacheCase::Result batch = problem.run("cpu");
    for (std::int64_t s = 0; s < 4; ++s) {
      EXPECT_EQ(alone(problem, s), problem.bytes_of_sequence(batch, s)) << "sequence " << s << ", pages " << page_size;
    }
  }
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
  CacheFacts facts = long_facts(GetParam());
  const CacheCase contiguous(facts, 7);
  const CacheCase::Result wanted = contiguous.run("cpu");
  for (const std::int64_t page_size : {1, 3, 16, 64, 256}) {
    facts.page_size = page_size;
    CacheCase paged(facts, 7);
    // The same q and options, and the same keys in other places.
    paged.q = contiguous.q;
    paged.sinks = contiguous.sinks;
    paged.alibi_slopes = contiguous.alibi_slopes;
    for (std::int64_t s = 0; s < 4; ++s) {
      for (std::int64_t j = 0; j < facts.lengths[static_cast<std::size_t>(s)]; ++j) {
        const auto from = *contiguous.place(s, j);
        const auto to = *paged.place(s, j);
        for (std::int64_t h = 0; h < facts.num_heads_k; ++h) {
          for (std::int64_t c = 0; c < facts.head_dim; ++c) {
            paged.k.set(to.block, h, to.row, c, contiguous.k.at(from.block, h, from.row, c));
            paged.v.set(to.block, h, to.row, c, contiguous.v.at(from.block, h, from.row, c));
          }
          if (facts.descales != Descales::kRows) continue;
          paged.k_descale.set(to.block, h, to.row, 0, contiguous.k_descale.at(from.block, h, from.row, 0));
          paged.v_descale.set(to.block, h, to.row, 0, contiguous.v_descale.at(from.block, h, from.row, 0));
        }
      }
    }
    const CacheCase::Result result = paged.run("cpu");
    EXPECT_EQ(wanted.o_bytes, result.o_bytes) << "pages of " << page_size;
    EXPECT_EQ(wanted.lse_bytes, result.lse_bytes) << "pages of " << page_size;
  }
}

/// Row n of a prefill is the row that decoding gives when the cache has its keys, and rows may come in any chunks.
TEST_P(DecodeInvariance, RowsInAnyChunks) {
  for (const std::int64_t window : {-1, 300}) {
    CacheFacts facts = long_facts(GetParam());
    facts.rows = {40};
    facts.lengths = {1111};
    facts.sinks = false;
    facts.window_left = window;
    const CacheCase problem(facts, 8);
    const CacheCase::Result whole = problem.run("cpu");
    const Shape& shape = problem.q.shape();
    for (const std::int64_t chunk : {1, 3, 16}) {
      const TensorBuffer o(facts.dtype, {1, shape[1], 40, facts.head_dim_v});
      const TensorBuffer lse(DType::kF32, {1, shape[1], 40, 1});
      for (std::int64_t begin = 0; begin < 40; begin += chunk) {
        const std::int64_t rows = std::min(chunk, 40 - begin);
        const auto length = static_cast<std::int32_t>(1111 - 40 + begin + rows);
        const auto part = [&](auto view) {
          view.data =
              static_cast<
                  std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const char*, char*>>(
                  view.data) +
              begin * view.stride[2] * dtype_bytes(view.dtype);
          view.shape[2] = rows;
          return view;
        };
        DecodeCall call = problem.call();
        call.q = part(call.q);
        call.o = part(o.view());
        call.lse = part(lse.view());
        call.cache.seqlens_k = &length;
        attend::decode(call);
      }
      EXPECT_EQ(whole.o_bytes, o.bytes()) << "chunks of " << chunk << ", window " << window;
      EXPECT_EQ(whole.lse_bytes, lse.bytes()) << "chunks of " << chunk << ", window " << window;
    }
  }
}

/// NaN and infinities of a key reach the rows that see it, and no others.
TEST_P(NaNInCaches, NonFiniteKeysReachTheirRowsOnly) {
  CacheFacts facts = long_facts(GetParam());
  facts.rows = {6};
  facts.lengths = {600};
  facts.window_left = 100;
  const CacheCase problem(facts, 9);
  const CacheCase::Result clean = problem.run("cpu");
  problem.v.set(0, 0, 597, 3, std::nan(""));  // rows 3, 4, 5 of the heads of group 0 see it
  problem.k.set(0, 1, 598, 0, std::nan(""));  // rows 4, 5 of group 1
  const CacheCase::Result result = problem.run("cpu");
  const Shape& shape = problem.q.shape();
  for (std::int64_t h = 0; h < shape[1]; ++h) {
    for (std::int64_t i = 0; i < 6; ++i) {
      for (std::int64_t c = 0; c < 64; ++c) {
        const auto at = static_cast<std::size_t>((h * 6 + i) * 64 + c);
        const bool spoilt = h < 4 ? i >= 3 && c == 3 : i >= 4;
        if (spoilt) {
          EXPECT_TRUE(std::isnan(result.o[at])) << h << " " << i << " " << c;
        } else {
          EXPECT_EQ(std::memcmp(&result.o[at], &clean.o[at], sizeof(double)), 0) << h << " " << i << " " << c;
        }
      }
    }
  }
}

/// A key that row 0 does not see has NaN in one column of its value: of any column, also in the last vector of a row.
TEST_P(NaNInCaches, NaNInAnyColumnOfAnUnseenValue) {
  for (const std::int64_t columns : {1, 2, 7, 8, 16, 20, 33, 40, 72, 80}) {
    CacheFacts facts = facts_of(GetParam());
    facts.head_dim = facts.head_dim_v = columns;
    facts.num_heads_k = facts.group = 1;
    facts.rows = {2};
    facts.lengths = {5};
    const CacheCase problem(facts, 10);
    const CacheCase::Result clean = problem.run("cpu");
    for (std::int64_t column = 0; column < columns; ++column) {
      const double before = problem.v.at(0, 0, 4, column);
      problem.v.set(0, 0, 4, column, std::nan(""));
      const CacheCase::Result result = problem.run("cpu");
      problem.v.set(0, 0, 4, column, before);
      EXPECT_TRUE(std::equal(clean.o.begin(), clean.o.begin() + columns, result.o.begin()))
          << columns << " columns, NaN in " << column;
      EXPECT_TRUE(std::isnan(result.o[static_cast<std::size_t>(columns + column)]));
    }
  }
}

/// A key whose score is -inf has no weight, but an infinite value times 0 is NaN: whichever chunk it lies in.
TEST_P(InfinityInCaches, InfinityTimesNoWeightIsNaNInAnyChunk) {
  for (const std::int64_t key : {0, 255, 256, 511, 512}) {
    CacheFacts facts = facts_of(GetParam());
    facts.head_dim = facts.head_dim_v = 1;
    facts.num_heads_k = facts.group = 1;
    facts.rows = {1};
    facts.lengths = {513};
    facts.window_left = key == 255 ? 257 : -1;  // the only key of its chunk
    const CacheCase problem(facts, 11);
    problem.q.set(0, 0, 0, 0, 1);
    problem.k.set(0, 0, key, 0, -std::numeric_limits<double>::infinity());
    problem.v.set(0, 0, key, 0, std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isnan(problem.run("reference").o[0])) << "key " << key;
    EXPECT_TRUE(std::isnan(problem.run("cpu").o[0])) << "key " << key;
  }
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
