// Tests what `attend ring` prints and writes, on threads and under mpirun, and how measured times become steps and
// bars.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "io/attend_program.hpp"
#include "io/on_ranks.hpp"
#include "io/temp_folder.hpp"
#include "ranks/timeline.hpp"

namespace attend::test {
namespace {

using ring::Activity;
using testing::HasSubstr;

TEST(RingTimeline, ExposedIsWhatNoComputationHides) {
  const std::vector<ring::Span> spans = {{Activity::kExchange, 0, 0, 5},
                                         {Activity::kCompute, 0, 1, 3},
                                         // This activity overlaps with the first one of the same step. The time that
                                         // they share counts once.
                                         {Activity::kExchange, 0, 2, 6},
                                         {Activity::kCompute, 1, 6, 8},
                                         {Activity::kExchange, 1, 7, 9}};
  const std::vector<cli::StepTimes> steps = cli::step_times(spans);
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_DOUBLE_EQ(steps[0].compute, 2);
  EXPECT_DOUBLE_EQ(steps[0].exchange, 6);
  EXPECT_DOUBLE_EQ(steps[0].exposed, 4);
  EXPECT_DOUBLE_EQ(steps[1].compute, 2);
  EXPECT_DOUBLE_EQ(steps[1].exchange, 2);
  EXPECT_DOUBLE_EQ(steps[1].exposed, 1);
  const std::vector<cli::StepTimes> most = cli::slowest({steps, {{1, 7, 1, 3}}});
  ASSERT_EQ(most.size(), 2U);
  EXPECT_DOUBLE_EQ(most[1].compute, 7);
  EXPECT_DOUBLE_EQ(most[1].exchange, 2);
  EXPECT_DOUBLE_EQ(most[1].exposed, 3);
}

TEST(RingTimeline, DrawsTwoBarsARank) {
  const std::string text = cli::timeline_text(
      {{{Activity::kCompute, 0, 0, 4.5}, {Activity::kExchange, 0, 5, 9.9}}, {{Activity::kCompute, 11, 5, 10}}}, 10);
  EXPECT_EQ(text,
            "rank 0   |00000     |\n"
            "         |     -----|\n"
            "rank 1   |     11111|\n"
            "         |          |\n"
            "          0   10.000 ms\n");
  EXPECT_EQ(cli::timeline_text({{}, {}}, 10), "");
}

/// Checks the JSON objects that `attend ring` wrote for `num_ranks` ranks. Every mode must be there, and the times must
/// be plausible.
void expect_results(const std::filesystem::path& path, int num_ranks, const std::string& over,
                    const std::string& algorithm, const std::string& sharding) {
  const auto rows = nlohmann::json::parse(read_file(path));
  ASSERT_EQ(rows.size(), 3U);
  const char* const modes[] = {"forward", "backward", "both"};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    EXPECT_EQ(row["mode"], modes[i]);
    EXPECT_EQ(row["ranks"], num_ranks);
    EXPECT_EQ(row["S"], 96);
    EXPECT_EQ(row["over"], over);
    EXPECT_EQ(row["algorithm"], algorithm);
    EXPECT_EQ(row["sharding"], sharding);
    EXPECT_GT(row["ms"], 0.0);
    const auto alone = row["alone_ms_by_rank"].get<std::vector<double>>();
    ASSERT_EQ(alone.size(), static_cast<std::size_t>(num_ranks));
    EXPECT_GT(*std::ranges::min_element(alone), 0.0);
    EXPECT_EQ(row["alone_ms"].get<double>(), *std::ranges::max_element(alone));
    EXPECT_NEAR(row["share_of_ideal"].get<double>(), row["alone_ms"].get<double>() / row["ms"].get<double>(), 1e-9);
    EXPECT_EQ(row.contains("unmasked_ms"), sharding != "striped");
    if (sharding != "striped") {
      EXPECT_NEAR(row["share_of_unmasked"].get<double>() * row["ms"].get<double>(), row["unmasked_ms"], 1e-9);
    }
    if (i == 2) continue;
    EXPECT_EQ(row["computed_ms_by_rank"].size(), static_cast<std::size_t>(num_ranks));
    std::vector<int> computed(static_cast<std::size_t>(num_ranks));
    for (const auto& span : row["timeline"]) {
      EXPECT_LE(span["begin_ms"], span["end_ms"]);
      if (span["activity"] == "compute") ++computed[span["rank"].get<std::size_t>()];
    }
    for (const int spans : computed) EXPECT_GT(spans, 0);
    EXPECT_FALSE(row["steps"].empty());
  }
}

constexpr const char* kLine =
    "ring --problem 1,6,96,16 --causal --device cpu --repeat 1 --threads 1 --sharding {} --algorithm {} --json {}";

TEST(RingCommand, RunsOnThreadsByEveryAlgorithm) {
  const TempFolder folder;
  for (const char* algorithm : {"exchange", "all_gather", "all_to_all", "two_level"}) {
    const auto json = folder / "ring.json";
    const int ranks = std::string_view(algorithm) == "two_level" ? 4 : 3;
    const char* sharding = std::string_view(algorithm) == "all_gather" ? "zigzag" : "striped";
    const ProgramResult done = run_attend_line(
        fmt::format(fmt::runtime(std::string(kLine) + " --ranks {}"), sharding, algorithm, json.string(), ranks));
    ASSERT_EQ(done.status, 0) << done.err;
    EXPECT_THAT(done.out, HasSubstr(fmt::format("over {} ranks, {}, threads", ranks, sharding)));
    EXPECT_THAT(done.out, HasSubstr("% of ideal"));
    EXPECT_EQ(count(done.out, "rank 2   |"), 2) << done.out;
    expect_results(json, ranks, "threads", algorithm, sharding);
  }
}

TEST(RingCommand, RanksWithoutAVisibleKeyDoNotHoldUpOthers) {
  for (const char* sharding : {"contiguous", "zigzag", "striped"}) {
    const ProgramResult done = run_attend_line(fmt::format(
        "ring --problem 1,1,64,8 --seq_len_k 8 --causal --device cpu --repeat 2 --threads 1 --ranks 4 --sharding {}",
        sharding));
    ASSERT_EQ(done.status, 0) << done.err;
    EXPECT_THAT(done.out, HasSubstr("% of ideal"));
  }
}

#ifdef ATTEND_MPIEXEC
TEST(RingCommand, RunsUnderMpirun) {
  const TempFolder folder;
  const auto json = folder / "ring.json";
  const auto line = [](const std::string& path) { return fmt::format(kLine, "zigzag", "exchange", path); };
  const ProgramResult done = on_ranks(2, line(json.string()));
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(count(done.out, "% of ideal"), 3) << done.out;  // only one rank prints
  EXPECT_EQ(count(done.out, "without a mask"), 3) << done.out;
  expect_results(json, 2, "mpi", "exchange", "zigzag");
  const ProgramResult refused = on_ranks(2, line("/nonexistent/a/b.json"));
  EXPECT_EQ(refused.status, 2);
  EXPECT_EQ(count(refused.err, "/nonexistent/a/b.json"), 1) << refused.err;
}
#endif

TEST(RingCommand, ExplainsWithoutRanks) {
  const ProgramResult done =
      run_attend_line("ring --explain --ranks 64 --device cuda --problem 1,32,262144,128 --num_heads_kv 8 --causal");
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(count(done.out, "* "), 2) << done.out;  // marks the chosen algorithm of each pass
  EXPECT_THAT(done.out, HasSubstr("all_to_all  no: q: 32 heads, allowed a multiple of the 64 ranks"));
}

TEST(RingCommand, RefusesInOneLine) {
  const auto refusal = [](const std::string& line) {
    const ProgramResult done = run_attend_line("ring --device cpu " + line);
    EXPECT_EQ(done.status, 2);
    EXPECT_EQ(count(done.err, "\n"), 1) << done.err;
    return done.err;
  };
  EXPECT_EQ(refusal("--ranks 4 --problem 1,6,96,16 --algorithm all_to_all"),
            "attend: q: 6 heads, allowed a multiple of the 4 ranks with algorithm all_to_all\n");
  EXPECT_THAT(refusal("--problem 1,6,96,16 --algorithm ring"),
              HasSubstr("--algorithm: 'ring', allowed automatic, exchange, all_gather, all_to_all, two_level"));
  EXPECT_THAT(refusal("--ranks 0 --problem 1,6,96,16"), HasSubstr("--ranks: '0', allowed"));
  EXPECT_THAT(refusal("--explain --problem 1,6,96,16"), HasSubstr("--ranks: not given with --explain"));
  EXPECT_THAT(refusal("--over nccl --problem 1,6,96,16"),
              HasSubstr("--over: 'nccl' with 2 ranks, allowed one for each"));
}

}  // namespace
}  // namespace attend::test
