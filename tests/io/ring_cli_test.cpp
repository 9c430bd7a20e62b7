// Tests `attend run --ring`. Ranks that are threads, or processes under mpirun, must write the same results as one
// rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "io/attend_program.hpp"
#include "io/on_ranks.hpp"
#include "io/temp_folder.hpp"

namespace attend::test {
namespace {

using testing::HasSubstr;

std::vector<float> floats(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

class RingCli : public testing::Test {
 protected:
  RingCli() {
    for (const char* folder : {"one", "ring"}) {
      const ProgramResult done = run_attend_line(
          "generate --batch_size 2 --num_heads 4 --num_heads_kv 2 --seq_len 45 --seq_len_k 61 --head_dim 16 "
          "--with_dout "
          "--output_dir " +
          (folder_ / folder).string());
      EXPECT_EQ(done.status, 0) << done.err;
    }
  }

  [[nodiscard]] std::string data(const std::string& folder) const { return (folder_ / folder / kName).string(); }

  void expect_same_files(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      const std::vector<float> want = floats(data("one") + "/" + name), got = floats(data("ring") + "/" + name);
      ASSERT_EQ(want.size(), got.size()) << name;
      double error = 0, largest = 0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        if (want[i] == got[i]) continue;  // for example, both are -inf
        const double e = std::abs(want[i] - got[i]);
        if (std::isnan(e)) FAIL() << name << " has NaN at " << i;
        error = std::max(error, e);
        largest = std::max(largest, static_cast<double>(std::abs(want[i])));
      }
      EXPECT_LE(error, 1e-5 * std::max(1.0, largest)) << name;
    }
  }

  static constexpr const char* kName = "B2_H4_Hkv2_Sq45_Sk61_D16";
  TempFolder folder_;
};

TEST_F(RingCli, ThreadsWriteTheFilesOfOneRank) {
  const struct {
    int num_ranks;
    const char* ring;
    const char* options;
  } cases[] = {{4, "zigzag", "--causal"},
               {3, "striped --algorithm all_gather", ""},
               {2, "contiguous", "--dropout_p 0.3"},
               {1, "zigzag", ""}};
  for (const auto& [num_ranks, ring, options] : cases) {
    const std::string line = " --mode both --check " + std::string(options) + " --data ";
    ASSERT_EQ(run_attend_line("run" + line + data("one")).status, 0);
    const auto json = folder_ / "result.json";
    const ProgramResult result = run_attend_line("run --json " + json.string() + " --ring " + ring + " --ranks " +
                                                 std::to_string(num_ranks) + line + data("ring"));
    ASSERT_EQ(result.status, 0) << result.out << result.err;
    EXPECT_EQ(count(result.out, "wrote O.bin, logsumexp.bin, dQ.bin, dK.bin, dV.bin"), 1) << result.out;
    expect_same_files({"O.bin", "logsumexp.bin", "dQ.bin", "dK.bin", "dV.bin"});
    EXPECT_EQ(nlohmann::json::parse(read_file(json))[1]["ranks"], num_ranks);
  }
}

TEST_F(RingCli, ARefusalOfThreadsIsOneLine) {
  const ProgramResult missing =
      run_attend_line("run --ring zigzag --ranks 3 --data " + (folder_ / "B1_H1_S8_D8").string());
  EXPECT_EQ(missing.status, 2);
  EXPECT_EQ(count(missing.err, "\n"), 1) << missing.err;
  const ProgramResult blocked =
      run_attend_line("run --ring zigzag --ranks 2 --json /nonexistent/a/b.json --data " + data("ring"));
  EXPECT_EQ(blocked.status, 2);
  EXPECT_EQ(count(blocked.err, "/nonexistent/a/b.json"), 1) << blocked.err;
  EXPECT_EQ(blocked.out, "");
}

#ifdef ATTEND_MPIEXEC

TEST_F(RingCli, WritesTheFilesOfOneProcess) {
  const struct {
    int num_ranks;
    const char* sharding;
    const char* options;
  } cases[] = {{4, "zigzag", "--causal"},
               {2, "zigzag", "--causal --algorithm all_to_all"},
               {3, "striped", "--algorithm all_gather --window_left 9 --window_right 0 --softcap 20"},
               {2, "contiguous", "--dropout_p 0.3 --seed 7"},
               {1, "zigzag", "--causal"}};
  for (const auto& [num_ranks, sharding, options] : cases) {
    const std::string line = " --mode both --check --threads 1 " + std::string(options) + " --data ";
    std::string of_one = line;
    if (const std::size_t at = of_one.find("--algorithm"); at != std::string::npos) {
      of_one.erase(at, of_one.find(' ', at + 12) - at);
    }
    const ProgramResult one = run_attend_line("run" + of_one + data("one"));
    ASSERT_EQ(one.status, 0) << one.out << one.err;
    const auto json = folder_ / "result.json";
    const ProgramResult ring =
        on_ranks(num_ranks, "run --json " + json.string() + " --ring " + sharding + line + data("ring"));
    ASSERT_EQ(ring.status, 0) << ring.out << ring.err;
    // Only one rank prints.
    EXPECT_EQ(count(ring.out, "wrote O.bin, logsumexp.bin, dQ.bin, dK.bin, dV.bin"), 1) << ring.out;
    EXPECT_THAT(ring.out, HasSubstr(std::string(", ") + sharding));
    expect_same_files({"O.bin", "logsumexp.bin", "dQ.bin", "dK.bin", "dV.bin"});
    const auto rows = nlohmann::json::parse(read_file(json));
    ASSERT_EQ(rows.size(), 2);
    EXPECT_EQ(rows[1]["ranks"], num_ranks);
    EXPECT_EQ(rows[1]["sharding"], sharding);
    EXPECT_EQ(rows[1]["passed"], true);
  }
}

TEST_F(RingCli, BackwardAloneReadsAnEarlierForward) {
  for (const char* folder : {"one", "ring"}) {
    ASSERT_EQ(run_attend_line("run --causal --data " + data(folder)).status, 0);
  }
  ASSERT_EQ(run_attend_line("run --causal --mode backward --data " + data("one")).status, 0);
  const ProgramResult ring =
      on_ranks(3, "run --ring zigzag --causal --mode backward --threads 1 --data " + data("ring"));
  ASSERT_EQ(ring.status, 0) << ring.out << ring.err;
  expect_same_files({"dQ.bin", "dK.bin", "dV.bin"});
}

TEST_F(RingCli, OneRankSaysWhatAllRefuse) {
  const ProgramResult missing = on_ranks(3, "run --ring zigzag --data " + (folder_ / "B1_H1_S8_D8").string());
  EXPECT_EQ(missing.status, 2);
  EXPECT_EQ(count(missing.err, "no such folder, allowed a folder such as"), 1) << missing.err;
  // Only rank 0 opens the output files. If it cannot open them, the other ranks must not wait for it.
  const ProgramResult blocked = on_ranks(2, "run --ring zigzag --json /nonexistent/a/b.json --data " + data("ring"));
  EXPECT_EQ(blocked.status, 2);
  EXPECT_EQ(count(blocked.err, "/nonexistent/a/b.json"), 1) << blocked.err;
  const ProgramResult twice = on_ranks(2, "run --ring zigzag --ranks 2 --data " + data("ring"));
  EXPECT_THAT(twice.err, HasSubstr("--ranks: given under mpirun, whose -n sets the number"));
}

#else

TEST_F(RingCli, NeedsMpi) {
  const ProgramResult result = run_attend_line("run --ring zigzag --data B1_H1_S8_D8");
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("--ring: this program is built without MPI, allowed with --ranks N"));
}

#endif

TEST(RingOptions, WhatARingDoesNotHaveIsRefused) {
  const ProgramResult compute = run_attend_line("run --ring zigzag --compute simt --data B1_H1_S8_D8");
  EXPECT_EQ(compute.err, "attend: --compute: 'simt' with --ring, allowed auto, cpu, reference\n");
  const ProgramResult bias = run_attend_line("run --ring zigzag --mode both --bias b.npy --data B1_H1_S8_D8");
  EXPECT_THAT(bias.err, HasSubstr("--bias: given with --ring and a backward pass"));
  for (const char* mode : {"forward", "backward", "both"}) {
    const ProgramResult sinks =
        run_attend_line(std::string("run --ring zigzag --sinks s.npy --data B1_H1_S8_D8 --mode ") + mode);
    EXPECT_EQ(sinks.err, "attend: --sinks: given with --ring, allowed without it\n");
    EXPECT_EQ(sinks.status, 2);
  }
  const ProgramResult algorithm = run_attend_line("run --algorithm exchange --data B1_H1_S8_D8");
  EXPECT_EQ(algorithm.err, "attend: --algorithm: given without --ring, allowed with it\n");
  const ProgramResult sharding = run_attend_line("run --ring ziczac --data B1_H1_S8_D8");
  EXPECT_THAT(sharding.err, HasSubstr("--ring: 'ziczac', allowed off, contiguous, zigzag, striped"));
}

}  // namespace
}  // namespace attend::test
