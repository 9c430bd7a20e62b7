// Bitwise tests of decode() on a GPU. The results of a sequence must not depend on the other sequences of the batch.
// Graphs are replayed while lengths and page tables change. Calls run on concurrent streams and threads, and together
// with append().
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>

#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "gpu/serving.hpp"
#include "serving/invariance_checks.hpp"

namespace attend::test {
namespace {

const auto kNameOfDType = [](const testing::TestParamInfo<DType>& of) { return std::string(dtype_name(of.param)); };

class GpuDecodeBits : public GpuTest, public testing::WithParamInterface<DType> {};

TEST_P(GpuDecodeBits, ASequenceAloneAndInABatch) {
  check_sequences_alone_and_in_a_batch(GetParam(), gpu_decode_by("decode"));
}

TEST_P(GpuDecodeBits, KeysThatBeginLate) {
  check_keys_that_begin_late(GetParam(), gpu_decode_by("decode"));
}

TEST_P(GpuDecodeBits, PageSizes) {
  check_page_sizes(long_facts(GetParam()), gpu_decode_by("decode"));
}

TEST_P(GpuDecodeBits, RowsInAnyChunks) {
  check_rows_in_any_chunks(long_facts(GetParam()), gpu_decode_by("decode"));
}

INSTANTIATE_TEST_SUITE_P(DTypes, GpuDecodeBits,
                         testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI8),
                         kNameOfDType);

/// Cache shapes. Each shape uses a different code path of the kernels.
struct Shaped {
  const char* name;
  DType dtype;  // dtype of the cache
  std::int64_t head_dim, head_dim_v, num_heads_k, group, rows;
};

void PrintTo(const Shaped& shaped, std::ostream* out) {
  *out << shaped.name;
}

CacheFacts facts_of(const Shaped& shaped) {
  CacheFacts f = invariance_facts(shaped.dtype);
  f.head_dim = shaped.head_dim;
  f.head_dim_v = shaped.head_dim_v;
  f.values_in_keys = shaped.head_dim == 576;
  f.num_heads_k = shaped.num_heads_k;
  f.group = shaped.group;
  f.sinks = true;
  return f;
}

const std::array kShaped = {Shaped{"f32", DType::kF32, 64, 64, 2, 4, 1},
                            Shaped{"bf16", DType::kBF16, 128, 128, 2, 8, 1},
                            Shaped{"bf16_one_head", DType::kBF16, 128, 128, 4, 1, 1},
                            Shaped{"bf16_drafts", DType::kBF16, 128, 128, 2, 5, 4},
                            Shaped{"bf16_prefill", DType::kBF16, 128, 128, 2, 4, 40},
                            Shaped{"f16_odd", DType::kF16, 40, 40, 2, 7, 2},
                            Shaped{"bf16_wide", DType::kBF16, 256, 256, 1, 6, 1},
                            Shaped{"f8e4m3", DType::kF8E4M3, 128, 128, 2, 8, 1},
                            Shaped{"i8", DType::kI8, 64, 64, 2, 4, 3},
                            Shaped{"mla", DType::kBF16, 576, 512, 1, 16, 1},
                            Shaped{"mla_128", DType::kBF16, 576, 512, 1, 128, 1}};

class GpuDecodeShapes : public GpuTest, public testing::WithParamInterface<Shaped> {};

/// Returns lengths for `count` sequences. They include short, long, empty and dead sequences.
std::vector<std::int64_t> some_lengths(std::int64_t count) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t s = 0; s < count; ++s) lengths.push_back(s * s * 37 % 601);
  lengths[0] = 1500;
  if (count > 5) lengths[3] = 1, lengths[5] = -1;
  if (count > 40) lengths[17] = 1024, lengths[40] = 777;
  return lengths;
}

/// Decodes the same sequence at the start and at the end of batches with different other sequences.
TEST_P(GpuDecodeShapes, ASequenceInBatchesOfAnySize) {
  constexpr std::int64_t kSequences = 64;
  CacheFacts facts = facts_of(GetParam());
  facts.page_size = 64;
  facts.rows.assign(kSequences, GetParam().rows);
  facts.lengths = some_lengths(kSequences);
  const CacheCase problem(facts, 31);
  const Decode decode = gpu_decode_by("decode");
  for (const std::int64_t target : {0, 3, 17, 40, 63}) {
    const std::vector<std::byte> alone = decode_some(problem, {target}, decode)[0];
    for (const std::int64_t count : {2, 3, 8, 17, 33, 64}) {
      std::vector<std::int64_t> batch;
      for (std::int64_t n = 0; n < count; ++n) batch.push_back((target + n * 5) % kSequences);
      EXPECT_EQ(decode_some(problem, batch, decode).front(), alone) << target << " first of " << count;
      std::reverse(batch.begin(), batch.end());
      EXPECT_EQ(decode_some(problem, batch, decode).back(), alone) << target << " last of " << count;
    }
  }
}

TEST_P(GpuDecodeShapes, PageSizes) {
  CacheFacts facts = facts_of(GetParam());
  facts.rows.assign(4, GetParam().rows);
  facts.lengths = {1500, 1, 700, 1024};
  check_page_sizes(facts, gpu_decode_by("decode"));
}

TEST_P(GpuDecodeShapes, RowsInAnyChunks) {
  check_rows_in_any_chunks(facts_of(GetParam()), gpu_decode_by("decode"));
}

/// Changes the length of one sequence and sets a key of another one to NaN. The remaining sequences must keep their
/// bits.
TEST_P(GpuDecodeShapes, NeighboursThatChange) {
  CacheFacts facts = facts_of(GetParam());
  facts.rows.assign(4, GetParam().rows);
  facts.lengths = {1300, 2000, 40, 512};
  CacheCase problem(facts, 32);
  const Decode decode = gpu_decode_by("decode");
  const CacheCase::Result before = problem.run(decode);
  problem.seqlens[1] = 129;
  problem.k.set(2, 0, 7, 0, std::nan(""));  // i8 stores 0 for NaN
  const CacheCase::Result after = problem.run(decode);
  for (const std::int64_t s : {0, 3}) {
    EXPECT_EQ(problem.bytes_of_sequence(before, s), problem.bytes_of_sequence(after, s)) << "sequence " << s;
  }
  for (const std::int64_t s : {1, 2}) {
    EXPECT_NE(problem.bytes_of_sequence(before, s), problem.bytes_of_sequence(after, s)) << "sequence " << s;
  }
}

TEST_P(GpuDecodeShapes, ACapturedGraphFollowsLengthsAndTables) {
  CacheFacts facts = facts_of(GetParam());
  facts.page_size = 16;
  facts.batch_idx = true;
  facts.rows.assign(4, GetParam().rows);
  facts.lengths = {1700, 300, 1030, 800};
  CacheCase problem(facts, 33);
  const GpuDecode replayed(problem), direct(problem);
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  const auto longest = problem.seqlens;
  std::fill(problem.seqlens.begin(), problem.seqlens.end(), 1);
  direct.submit(stream.get());  // compiles and loads the kernels before the capture
  cuda::synchronize(stream.get());
  CapturedGraph graph(stream.get(), [&] { replayed.submit(stream.get()); });
  const auto expect_same = [&](const char* what) {
    replayed.poison(), direct.poison();
    graph.launch();
    cuda::synchronize(stream.get());
    direct.submit(stream.get());
    cuda::synchronize(stream.get());
    EXPECT_EQ(replayed.bytes(), direct.bytes()) << what;
  };
  expect_same("as captured");
  const auto change_lengths = [&](std::initializer_list<int> lengths) {
    std::copy(lengths.begin(), lengths.end(), problem.seqlens.begin());
  };
  std::copy(longest.begin(), longest.end(), problem.seqlens.begin());
  expect_same("long");
  change_lengths({0, 300, -1, 17});
  expect_same("an empty and a dead one");
  change_lengths({256, 257, 255, 768});
  expect_same("at the edges of chunks");
  std::swap(problem.batch_idx[0], problem.batch_idx[2]);
  expect_same("other rows of the table");
  std::reverse(problem.pages.begin(), problem.pages.begin() + problem.pages_per_row);
  expect_same("other pages");
  problem.q.set(3, 0, 0, 0, 2.5);
  expect_same("another query");
}

/// Submits calls without waiting in between. Each call reuses the workspace memory of earlier calls, which may have
/// other shapes.
TEST_P(GpuDecodeShapes, CallsOfOtherShapesInARow) {
  CacheFacts facts = facts_of(GetParam());
  facts.rows.assign(2, GetParam().rows);
  facts.lengths = {3000, 900};
  const CacheCase first(facts, 34);
  CacheFacts small = facts_of(kShaped[0]);
  small.page_size = 16;
  small.rows.assign(9, 3);
  small.lengths = {1, 2, 700, 4, 0, 600, 7, 80, 9};
  const CacheCase second(small, 35);
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  std::vector<GpuDecode> of_first, of_second;
  for (int n = 0; n < 20; ++n) of_first.emplace_back(first), of_second.emplace_back(second);
  for (std::size_t n = 0; n < of_first.size(); ++n) {
    of_first[n].submit(stream.get());
    of_second[n].submit(stream.get());
    if (n == 0) cuda::synchronize(stream.get());  // only the first round waits, for the kernels to load
  }
  cuda::synchronize(stream.get());
  const GpuDecode first_alone(first), second_alone(second);
  first_alone.submit(stream.get());
  cuda::synchronize(stream.get());
  second_alone.submit(stream.get());
  cuda::synchronize(stream.get());
  for (std::size_t n = 0; n < of_first.size(); ++n) {
    EXPECT_EQ(of_first[n].bytes(), first_alone.bytes()) << "call " << n;
    EXPECT_EQ(of_second[n].bytes(), second_alone.bytes()) << "call " << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuDecodeShapes, testing::ValuesIn(kShaped),
                         [](const auto& of) { return std::string(of.param.name); });

class GpuDecodeStreams : public GpuTest {
 protected:
  /// Builds problems of different shapes and computes the result of each one alone.
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    for (std::size_t n : {0, 1, 3, 5}) {
      CacheFacts facts = facts_of(kShaped[n]);
      facts.page_size = n % 2 == 0 ? 0 : 16;
      facts.rows.assign(3, kShaped[n].rows);
      facts.lengths = {static_cast<std::int64_t>(2000 + 100 * n), 77, 513};
      problems_.push_back(std::make_unique<CacheCase>(facts, 40 + n));
    }
    const cuda::ContextGuard guard(0);
    for (const auto& problem : problems_) {
      const GpuDecode alone(*problem);
      alone.submit(nullptr);
      cuda::synchronize(nullptr);
      wanted_.push_back(alone.bytes());
    }
  }

  std::vector<std::unique_ptr<CacheCase>> problems_;
  std::vector<std::vector<std::byte>> wanted_;
};

TEST_F(GpuDecodeStreams, OfOneThreadAtTheSameTime) {
  constexpr std::size_t kRounds = 20;
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream one, two;
  std::vector<GpuDecode> calls;
  for (std::size_t n = 0; n < kRounds * problems_.size(); ++n) calls.emplace_back(*problems_[n % problems_.size()]);
  for (std::size_t n = 0; n < calls.size(); ++n) calls[n].submit((n / 3 % 2 == 0 ? one : two).get());
  cuda::synchronize(one.get());
  cuda::synchronize(two.get());
  for (std::size_t n = 0; n < calls.size(); ++n) EXPECT_EQ(calls[n].bytes(), wanted_[n % problems_.size()]) << n;
}

TEST_F(GpuDecodeStreams, OfAsManyThreadsAtTheSameTime) {
  constexpr int kRounds = 20;
  std::vector<std::vector<GpuDecode>> calls(problems_.size());
  for (std::size_t t = 0; t < calls.size(); ++t) {
    for (int n = 0; n < kRounds; ++n) calls[t].emplace_back(*problems_[t]);
  }
  std::vector<std::thread> threads;
  for (const std::vector<GpuDecode>& of_thread : calls) {
    threads.emplace_back([&of_thread] {
      const cuda::ContextGuard guard(0);
      const cuda::OwnStream stream;
      for (const GpuDecode& call : of_thread) call.submit(stream.get());
      cuda::synchronize(stream.get());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t t = 0; t < calls.size(); ++t) {
    for (const GpuDecode& call : calls[t]) EXPECT_EQ(call.bytes(), wanted_[t]) << "thread " << t;
  }
}

class GpuAppendAndDecode : public GpuTest {};

TEST_F(GpuAppendAndDecode, InOneCallIsOneAfterTheOther) {
  for (AppendCase c : append_and_decode_cases()) {
    c.head_dim = c.head_dim_v = 64;
    check_one_call_is_two(c, gpu_calls());
  }
}

/// Both threads use the same stream. The rows of q that pass from append to decode must not be shared between the
/// calls.
TEST_F(GpuAppendAndDecode, OfTwoThreadsOnOneStream) {
  const auto run = [](std::uint64_t seed) {
    for (AppendCase c : append_and_decode_cases()) {
      c.head_dim = c.head_dim_v = 64;
      c.seed += seed;
      check_one_call_is_two(c, gpu_calls());
    }
  };
  std::thread one(run, 100), two(run, 200);
  one.join();
  two.join();
}

}  // namespace
}  // namespace attend::test
