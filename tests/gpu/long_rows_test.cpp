// Tests decode() on a GPU with sequences that have many query rows. Results are compared with float64 and bit for bit.
// Some calls also contain sequences with few query rows. Hopper has a separate kernel for sequences with many query
// rows. Other GPUs use the usual decode kernel.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "core/decode_problem.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/serving/long_rows.hpp"
#include "gpu/serving.hpp"
#include "serving/decode_cases.hpp"
#include "serving/invariance_checks.hpp"

namespace attend::test {
namespace {

constexpr int kParts = 4;
constexpr int kLeastCases = 160;

const DecodeValues& values() {
  using enum DType;
  using enum DecodeValues::Rows::Kind;
  static const DecodeValues all = {
      .columns = {{128, 128, kBF16},
                  {64, 64, kF16},
                  {192, 128, kBF16},
                  {72, 72, kBF16},
                  {256, 256, kBF16},
                  {80, 40, kF16},
                  {96, 96, kBF16},
                  {128, 128, kF16}},
      .groups = {1, 2, 4, 7},
      .page_sizes = {0, 0, 16, 64, 1, 256, 3, 24},
      .layouts = {Layout::kBHSD, Layout::kBSHD, Layout::kSliced},
      .rows = {{65}, {130}, {70, kPacked}, {200, kPacked}, {260}},
      .long_capacity = 2000,
      .most_rows = 300,
  };
  return all;
}

class GpuLongRows : public GpuTest, public testing::WithParamInterface<int> {};

TEST_P(GpuLongRows, CoveringArrayAgainstFloat64) {
  std::vector<DecodeCase> cases = decode_cases(values(), kLeastCases, 7);
  DecodeErrors errors;
  for (std::size_t n = 0; n < cases.size(); n += ATTEND_TEST_STRIDE) {
    if (cases[n].columns % kParts == GetParam()) {
      check_decode(cases[n], gpu_decode_by("sm90_forward"), errors, Products::kHalf);
    }
  }
  fmt::print("{}", errors.text());
}

INSTANTIATE_TEST_SUITE_P(Parts, GpuLongRows, testing::Range(0, kParts),
                         [](const auto& of) { return fmt::format("{}", of.param); });

CacheFacts mixed_facts() {
  CacheFacts f = invariance_facts(DType::kBF16);
  f.head_dim = f.head_dim_v = 128;
  f.num_heads_k = 4;  // with fewer key heads, `auto` needs more query rows before it picks the kernel for long rows
  f.group = 4;
  f.packed = true;
  f.rows = {1, 200, 0, 64, 65, 3, 90, 1};
  f.lengths = {900, 1000, 40, 64, 300, 0, -1, 1500};
  f.sinks = true;
  f.page_size = 16;
  return f;
}

/// A subset of the cases for the sanitizers. This test also checks that the tests below run the kernels that they are
/// meant for.
class SliceLongRows : public GpuTest {};

TEST_F(SliceLongRows, FewAndManyInOneCall) {
  CacheFacts facts = mixed_facts();
  DecodeErrors errors;
  for (const std::int64_t page_size : {0, 1, 16}) {
    facts.page_size = page_size;
    facts.leftpad = page_size == 16;
    facts.missing_pages = page_size == 16;
    check_decode({facts, 3, 0}, gpu_decode_by("sm90_forward"), errors, Products::kHalf);
  }
  fmt::print("{}", errors.text());
}

class GpuLongRowsBits : public GpuTest {
 protected:
  /// Decodes each sequence alone and returns its output bytes.
  static std::vector<std::vector<std::byte>> alone(const CacheCase& problem, const Decode& decode) {
    std::vector<std::vector<std::byte>> bytes;
    for (std::int64_t s = 0; s < problem.num_sequences(); ++s) {
      bytes.push_back(decode_some(problem, {s}, decode)[0]);
    }
    return bytes;
  }
};

TEST_F(GpuLongRowsBits, HopperHasAKernelForThem) {
  const CacheCase problem(mixed_facts(), 1);
  DecodeCall call = problem.call();
  const TensorBuffer o(DType::kBF16, problem.q.shape());
  call.o = o.view();
  const cuda::Arch arch = cuda::device_info(0).arch();
  EXPECT_EQ(cuda::long_rows_variant(core::make_decode_problem(call), arch, 64).has_value(), arch.wgmma);
}

/// `auto` must use the faster kernel. With one key head, the kernel for few rows is faster up to 384 rows.
TEST_F(GpuLongRowsBits, AutoTakesThemWhereTheyAreManyOrHeadsAre) {
  CacheFacts facts = mixed_facts();
  facts.packed = false;
  facts.lengths = {700, 500};
  for (const auto& [heads_k, rows, is_long] :
       {std::tuple{4, 65, true}, {4, 64, false}, {1, 384, false}, {1, 385, true}}) {
    facts.num_heads_k = heads_k;
    facts.rows.assign(2, rows);
    const CacheCase problem(facts, 2);
    const std::vector<std::byte> few = problem.run(gpu_decode_by("decode")).o_bytes;
    const std::vector<std::byte> by_auto = problem.run(gpu_calls().decode).o_bytes;
    const bool goes_there = is_long && cuda::device_info(0).arch().wgmma;
    EXPECT_EQ(by_auto != few, goes_there) << heads_k << " " << rows;
    if (goes_there) {
      EXPECT_EQ(by_auto, problem.run(gpu_decode_by("sm90_forward")).o_bytes) << heads_k << " " << rows;
    }
  }
}

/// In a batch with long sequences, the short sequences must have the same bits as with the backend "decode".
TEST_F(GpuLongRowsBits, ShortOnesBesideLongOnes) {
  for (const std::int64_t page_size : {0, 1, 16, 64}) {
    CacheFacts facts = mixed_facts();
    facts.page_size = page_size;
    facts.lengths = {900, 1000, 40, 64, 300, 37, -1, 2500};
    const CacheCase problem(facts, 6);
    const CacheCase::Result together = problem.run(gpu_decode_by("sm90_forward"));
    const CacheCase::Result by_one = problem.run(gpu_decode_by("decode"));
    for (std::int64_t s = 0; s < problem.num_sequences(); ++s) {
      if (facts.rows[static_cast<std::size_t>(s)] > 64) continue;
      EXPECT_EQ(problem.bytes_of_sequence(by_one, s), problem.bytes_of_sequence(together, s))
          << s << " page " << page_size;
    }
  }
}

TEST_F(GpuLongRowsBits, ASequenceAloneAndInABatch) {
  for (const std::int64_t rows : {65, 300}) {
    CacheFacts facts = long_facts(DType::kBF16);
    facts.head_dim = facts.head_dim_v = 128;
    facts.rows = {rows, rows, rows, rows};
    facts.lengths = {2500, 65, 700, 1024};
    const CacheCase problem(facts, 5);
    const CacheCase::Result batch = problem.run(gpu_decode_by("sm90_forward"));
    const auto of_each = alone(problem, gpu_decode_by("sm90_forward"));
    for (std::int64_t s = 0; s < 4; ++s) {
      EXPECT_EQ(of_each[static_cast<std::size_t>(s)], problem.bytes_of_sequence(batch, s)) << s << " of rows " << rows;
    }
  }
}

/// Covers every tile shape of the kernel, with boxes (rectangles of one TMA copy) of all sizes and without boxes.
TEST_F(GpuLongRowsBits, PageSizes) {
  for (const std::int64_t head_dim : {64, 80, 96, 128, 192, 256}) {
    CacheFacts facts = long_facts(DType::kF16);
    facts.head_dim = facts.head_dim_v = head_dim;
    facts.alibi = head_dim == 80;
    facts.rows.assign(4, 140);
    facts.lengths = {1500, 140, 700, 1024};
    check_page_sizes(facts, gpu_decode_by("sm90_forward"));
  }
}

/// Returns packed cases in which a sequence ends within the 16 rows of a warp, so the warp also contains rows of the
/// next sequence.
std::vector<CacheFacts> facts_of_neighbours() {
  std::vector<CacheFacts> all;
  for (const std::int64_t head_dim : {64, 128, 256}) {
    CacheFacts f = mixed_facts();
    f.head_dim = f.head_dim_v = head_dim;
    f.num_heads_k = 1;
    f.rows = {72, 90, 3, 65, 130};
    f.lengths = {1000, 500, 40, 300, 777};
    all.push_back(f);
    f.softcap = 1.5;
    all.push_back(f);
    f.softcap = 0, f.alibi = true, f.window_left = 200;
    all.push_back(f);
  }
  return all;
}

/// Neighbouring rows in q and the lengths of other sequences must not change any bit of a sequence's results.
TEST_F(GpuLongRowsBits, NeighboursThatChange) {
  for (const CacheFacts& facts : facts_of_neighbours()) {
    CacheCase problem(facts, 32);
    const CacheCase::Result before = problem.run(gpu_decode_by("sm90_forward"));
    const auto lengths = problem.seqlens;
    for (const double factor : {8.0, std::nan("")}) {
      for (const std::size_t target : {0, 1, 3}) {
        const TensorBuffer q = problem.q;
        const int begin = problem.cu_seqlens_q[target], end = problem.cu_seqlens_q[target + 1];
        problem.q = TensorBuffer(facts.dtype, q.shape());
        problem.q.generate([&](auto n, auto h, auto i, auto c) {
          return i >= begin && i < end ? q.at(n, h, i, c) : q.at(n, h, i, c) * factor;
        });
        problem.seqlens[(target + 1) % 5] = 60;
        const CacheCase::Result after = problem.run(gpu_decode_by("sm90_forward"));
        const auto s = static_cast<std::int64_t>(target);
        EXPECT_EQ(problem.bytes_of_sequence(before, s), problem.bytes_of_sequence(after, s))
            << "sequence " << s << " beside " << factor << ": " << facts.text();
        EXPECT_NE(problem.bytes_of_sequence(before, s + 1), problem.bytes_of_sequence(after, s + 1));
        problem.q = q;
        problem.seqlens = lengths;
      }
    }
  }
}

/// Decodes only the last rows of a sequence and compares them with a call that decodes all rows.
void check_last_rows(const CacheFacts& facts, std::initializer_list<std::int64_t> counts, const Decode& decode) {
  const CacheCase whole(facts, 9);
  const CacheCase::Result wanted = whole.run(decode);
  const std::int64_t all = facts.rows[0], columns = facts.head_dim_v, heads = whole.q.shape()[1];
  for (const std::int64_t rows : counts) {
    DecodeCall call = whole.call();
    const TensorBuffer q(facts.dtype, {1, heads, rows, facts.head_dim}), o(facts.dtype, {1, heads, rows, columns});
    q.generate([&](auto n, auto h, auto i, auto c) { return whole.q.at(n, h, all - rows + i, c); });
    call.q = q.view();
    call.o = o.view();
    decode(call);
    int different = 0;
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        const auto at = static_cast<std::size_t>((h * all + all - rows) * columns + i);
        if (o.at(0, h, i / columns, i % columns) != wanted.o[at]) ++different;
      }
    }
    EXPECT_EQ(different, 0) << "the last " << rows << " of " << facts.text();
  }
}

CacheFacts one_sequence(const CacheFacts& of, std::int64_t rows) {
  CacheFacts facts = of;
  facts.packed = false;
  facts.page_size = 0;
  facts.rows = {rows};
  facts.lengths = {1031};
  return facts;
}

TEST_F(GpuLongRowsBits, RowsInChunksOfMoreThan64) {
  for (const CacheFacts& facts : facts_of_neighbours()) {
    check_last_rows(one_sequence(facts, 260), {65, 72, 100, 131, 200}, gpu_decode_by("sm90_forward"));
  }
}

/// With the backend "decode", the bits of a row must not depend on the number of rows in the call.
TEST_F(GpuLongRowsBits, RowsInAnyChunksByOneKernel) {
  check_last_rows(one_sequence(facts_of_neighbours()[3], 150), {1, 30, 100}, gpu_decode_by("decode"));
}

/// Replays one graph while the lengths of sequences change from long to short and back.
TEST_F(GpuLongRowsBits, ACapturedGraphFollowsTheMixture) {
  CacheFacts facts = mixed_facts();
  facts.lengths = {900, 1000, 400, 640, 300, 700, 90, 1500};
  CacheCase problem(facts, 33);
  const GpuDecode replayed(problem), direct(problem);
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  direct.submit(stream.get());  // compiles and loads the kernels before the capture
  cuda::synchronize(stream.get());
  CapturedGraph graph(stream.get(), [&] { replayed.submit(stream.get()); });
  const auto expect_same = [&](const char* what) {
    for (int round = 0; round < 3; ++round) {
      replayed.poison(), direct.poison();
      graph.launch();
      graph.launch();
      cuda::synchronize(stream.get());
      direct.submit(stream.get());
      cuda::synchronize(stream.get());
      EXPECT_EQ(replayed.bytes(), direct.bytes()) << what;
    }
  };
  const auto change_rows = [&](std::initializer_list<int> rows) {
    std::size_t s = 0;
    for (const int count : rows) problem.cu_seqlens_q[s + 1] = problem.cu_seqlens_q[s] + count, ++s;
  };
  expect_same("as captured");
  change_rows({1, 1, 1, 1, 1, 1, 1, 1});
  expect_same("one row each");
  change_rows({100, 100, 0, 0, 0, 100, 100, 0});
  expect_same("long ones only");
  change_rows({0, 0, 0, 0, 0, 0, 0, 424});
  expect_same("one sequence has all");
  problem.seqlens[7] = 600;
  std::reverse(problem.pages.begin() + 7 * problem.pages_per_row,
               problem.pages.begin() + 7 * problem.pages_per_row + 38);
  expect_same("other lengths and pages");
}

/// Submits calls with and without long sequences, one after the other and on two streams. Each call reuses the counters
/// and workspaces of earlier calls.
TEST_F(GpuLongRowsBits, CallsInARow) {
  CacheFacts facts = mixed_facts();
  const CacheCase mixed(facts, 34);
  facts.rows = {300, 0, 0, 0, 0, 0, 0, 500};
  facts.lengths = {900, 1000, 40, 64, 300, 0, -1, 1500};
  const CacheCase many(facts, 35);
  facts.rows.assign(8, 1);
  const CacheCase few(facts, 36);
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream one, two;
  std::vector<GpuDecode> calls;
  std::vector<std::vector<std::byte>> wanted;
  for (const CacheCase* problem : {&mixed, &many, &few}) {
    const GpuDecode alone(*problem);
    alone.submit(one.get());
    cuda::synchronize(one.get());
    wanted.push_back(alone.bytes());
  }
  for (int n = 0; n < 90; ++n) calls.emplace_back(n % 3 == 0 ? mixed : n % 3 == 1 ? many : few);
  for (std::size_t n = 0; n < calls.size(); ++n) calls[n].submit((n / 5 % 2 == 0 ? one : two).get());
  cuda::synchronize(one.get());
  cuda::synchronize(two.get());
  for (std::size_t n = 0; n < calls.size(); ++n) EXPECT_EQ(calls[n].bytes(), wanted[n % 3]) << "call " << n;
}

}  // namespace
}  // namespace attend::test
