// Tests that the outputs of one run form a set. No link may make one output overwrite another or an input. A killed run
// must leave either all earlier files or all new files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <random>
#include <thread>

#include "io/attend_program.hpp"
#include "io/temp_folder.hpp"

namespace attend::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;
using testing::HasSubstr;

class Outputs : public testing::Test {
 protected:
  Outputs() {
    EXPECT_EQ(attend("generate --batch_size 1 --num_heads 4 --seq_len 96 --head_dim 32 --output_dir @").status, 0);
  }

  [[nodiscard]] std::vector<std::string> words(std::string line) const {
    for (std::size_t at = line.find('@'); at != std::string::npos; at = line.find('@')) {
      line.replace(at, 1, folder_.path().string());
    }
    std::istringstream stream(line);
    return {std::istream_iterator<std::string>(stream), {}};
  }
  [[nodiscard]] ProgramResult attend(const std::string& line) const { return run_attend(words(line)); }

  [[nodiscard]] std::map<std::string, std::string> results() const {
    std::map<std::string, std::string> files;
    for (const char* name : {"O.bin", "logsumexp.bin", "dQ.bin", "dK.bin", "dV.bin"}) {
      files[name] = fs::exists(data_ / name) ? read_file(data_ / name) : "";
    }
    return files;
  }

  void refuses(const std::string& line, const std::string& why) const {
    const auto before = snapshot(folder_.path());
    const ProgramResult result = attend(line);
    EXPECT_EQ(result.status, 2) << line << result.out;
    EXPECT_THAT(result.err, HasSubstr(why));
    EXPECT_TRUE(snapshot(folder_.path()) == before) << line;
  }

  TempFolder folder_;
  const fs::path data_ = folder_ / "B1_H4_S96_D32";
};

TEST_F(Outputs, ALinkToAnInputOrToAnotherOutputIsRefused) {
  const std::string run = "run --data @/B1_H4_S96_D32 --mode ";
  ASSERT_EQ(attend(run + "both").status, 0);
  for (const auto& [from, to, mode] : {std::array{"dV.bin", "O.bin", "backward"},
                                       {"dV.bin", "O.bin", "both"},
                                       {"dV.bin", "Q.bin", "both"},
                                       {"dQ.bin", "dK.bin", "backward"},
                                       {"O.bin", "dV.bin", "forward"},
                                       {"O.bin", "V.bin", "forward"}}) {
    const std::string content = read_file(data_ / from);
    fs::remove(data_ / from);
    fs::create_symlink(to, data_ / from);
    refuses(run + mode, std::string(from) + ": a link to ");
    fs::remove(data_ / from);
    write_file(data_ / from, content);
  }
  refuses(run + "forward --json @/B1_H4_S96_D32/../B1_H4_S96_D32/V.bin", "V.bin: an input of this run");
  fs::remove(data_ / "Q.bin");
  fs::create_symlink("O.bin", data_ / "Q.bin");
  refuses("generate --batch_size 1 --num_heads 4 --seq_len 96 --head_dim 32 --output_dir @", "another tensor");
}

TEST_F(Outputs, AnOutputOnAnotherDiskStaysALink) {
  write_file(folder_ / "far", "");
  fs::create_symlink(folder_ / "far", data_ / "dV.bin");
  ASSERT_EQ(attend("run --data @/B1_H4_S96_D32 --mode both").status, 0);
  EXPECT_TRUE(fs::is_symlink(data_ / "dV.bin"));
  EXPECT_EQ(fs::file_size(folder_ / "far"), fs::file_size(data_ / "dK.bin"));
}

TEST_F(Outputs, AKilledRunLeavesOneSet) {
  const std::vector<std::string> runs[] = {words("run --data @/B1_H4_S96_D32 --mode both"),
                                           words("run --data @/B1_H4_S96_D32 --mode both --causal")};
  std::map<std::string, std::string> sets[2];
  double seconds = 0;
  for (int i : {0, 1}) {
    const auto begin = steady_clock::now();
    ASSERT_EQ(run_attend(runs[i]).status, 0);
    seconds = std::chrono::duration<double>(steady_clock::now() - begin).count();
    sets[i] = results();
  }
  std::mt19937 random(std::random_device{}());
  int killed = 0;
  for (int round = 0; round < 60; ++round) {
    const double wait = std::uniform_real_distribution(0.3 * seconds, 1.1 * seconds)(random);
    const ProgramResult result = run_attend_meanwhile(runs[round % 2], [&](int process, int) {
      std::this_thread::sleep_for(std::chrono::duration<double>(wait));
      ::kill(process, SIGKILL);
    });
    const bool was_killed = result.status == 128 + SIGKILL;
    killed += was_killed ? 1 : 0;
    // The next process is killed later or earlier, because the duration of a run varies with the machine's load.
    seconds *= was_killed ? 1.03 : 0.9;
    const auto found = results();
    ASSERT_TRUE(found == sets[0] || found == sets[1]) << "a mixture after " << wait << " s";
    // The program must accept the files that are left: O and logsumexp must belong to the same forward.
    if (round % 10 == 9) {
      const bool is_causal = found == sets[1];
      const std::string again =
          "run --data @/B1_H4_S96_D32 --mode backward" + std::string(is_causal ? " --causal" : "");
      EXPECT_EQ(attend(again).status, 0);
      EXPECT_TRUE(results() == found);
    }
  }
  EXPECT_GT(killed, 5) << "every run was over before";
  ASSERT_EQ(run_attend(runs[0]).status, 0);
  EXPECT_EQ(snapshot(data_).size(), 8U) << "what killed runs left is gone";
}

}  // namespace
}  // namespace attend::test
