// Tests signals to the real program. The program must end soon, report the signal, and leave only the files that
// existed before.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "io/attend_program.hpp"
#include "io/temp_folder.hpp"

namespace attend::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;
using testing::HasSubstr;

class Interrupted : public testing::Test {
 protected:
  [[nodiscard]] std::vector<std::string> words(std::string line) const {
    for (std::size_t at = line.find('@'); at != std::string::npos; at = line.find('@')) {
      line.replace(at, 1, folder_.path().string());
    }
    std::istringstream stream(line);
    return {std::istream_iterator<std::string>(stream), {}};
  }

  /// Runs the line, sends the signal after `milliseconds`, waits until the program ends and checks its exit status and
  /// output.
  ProgramResult interrupt(const std::string& line, int signal_number, int milliseconds) const {
    steady_clock::time_point sent;
    const ProgramResult result = run_attend_meanwhile(words(line), [&](int process, int) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      sent = steady_clock::now();
      ::kill(process, signal_number);
    });
    const double seconds = std::chrono::duration<double>(steady_clock::now() - sent).count();
    EXPECT_EQ(result.status, 128 + signal_number) << line << ": " << result.out << result.err;
    EXPECT_LT(seconds, 2.5) << line;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result;
  }

  TempFolder folder_;
};

TEST_F(Interrupted, GenerateLeavesNothing) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    const ProgramResult result = interrupt(
        "generate --batch_size 8 --num_heads 16 --seq_len 16384 --head_dim 64 --output_dir @/new", number, 300);
    EXPECT_THAT(result.err, testing::StartsWith("attend: interrupted by SIG"));
    EXPECT_THAT(result.err, HasSubstr("nothing was written"));
    EXPECT_TRUE(fs::is_empty(folder_.path()));
  }
}

// Inputs in float64 or with NaN use the reference, which computes for many seconds without a break between tasks.
TEST_F(Interrupted, EveryBackendOfTheCpuEndsARunWithinASecond) {
  ASSERT_EQ(
      run_attend(words("generate --batch_size 1 --num_heads 1 --seq_len 12288 --head_dim 64 --output_dir @")).status,
      0);
  const auto before = snapshot(folder_.path());
  for (const char* compute : {"reference", "cpu_naive", "cpu"}) {
    for (const char* mode : {"forward", "both"}) {
      interrupt(std::string("run --data @/B1_H1_S12288_D64 --repeat 1000 --mode ") + mode + " --compute " + compute,
                SIGINT, 600);
    }
  }
  interrupt("run --data @/B1_H1_S12288_D64 --compute cpu --check", SIGTERM, 1500);
  EXPECT_TRUE(snapshot(folder_.path()) == before);
}

TEST_F(Interrupted, BenchKeepsWhatItHadMeasured) {
  write_file(folder_ / "grid.json", R"([{"B":1,"H":1,"S":16,"D":8},{"B":1,"H":4,"S":16384,"D":64}])");
  std::string printed;
  const auto until_the_first_row = [&](int process, int out) {
    char c = 0;
    while (printed.find("reference ") == std::string::npos && ::read(out, &c, 1) == 1) printed += c;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ::kill(process, SIGINT);
  };
  const ProgramResult result = run_attend_meanwhile(
      words("bench --grid @/grid.json --compute cpu,reference --mode forward --repeat 2 --json @/b.json --csv @/b.csv"),
      until_the_first_row);
  EXPECT_THAT(printed, HasSubstr("cpu ")) << "rows reach a pipe as they are measured";
  EXPECT_EQ(result.status, 130);
  EXPECT_THAT(result.err, HasSubstr("interrupted by SIGINT: the results so far are in"));
  const auto rows = nlohmann::json::parse(read_file(folder_ / "b.json"));
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[1]["compute"], "reference");
  const std::string csv = read_file(folder_ / "b.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  EXPECT_EQ(snapshot(folder_.path()).size(), 3U);
}

TEST_F(Interrupted, AnIgnoredSignalStaysIgnored) {
  const ProgramResult result =
      run_attend(words("generate --batch_size 1 --num_heads 8 --seq_len 8192 --head_dim 64 --output_dir @"), [] {
        ::signal(SIGHUP, SIG_IGN);
        ::raise(SIGHUP);
        (void)!::system("sh -c 'sleep 0.1; kill -HUP $PPID' &");
      });
  EXPECT_EQ(result.status, 0) << result.err;
}

}  // namespace
}  // namespace attend::test
