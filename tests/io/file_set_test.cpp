// Tests that several files change at the same moment. A process is killed before each of its system calls. Every reader
// must find either all old files or all new files.
#include "io/file_set.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "io/file.hpp"
#include "io/temp_folder.hpp"

namespace attend::test {
namespace {

namespace fs = std::filesystem;
using io::FileTransaction;

constexpr std::size_t kFiles = 4;
using Contents = std::array<std::string, kFiles>;  // contents of each file; "" means that the file does not exist

/// Returns a folder in memory if the machine has one, because the test creates thousands of files.
fs::path fast_folder() {
  return ::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path();
}

struct KilledCommit : testing::Test {
  TempFolder folder{fast_folder()};
  std::array<fs::path, kFiles> paths = {folder / "O.bin", folder / "dQ.bin", folder / "dV.bin", folder / "more" / "r"};

  KilledCommit() { fs::create_directory(folder / "more"); }

  void put(const Contents& contents) const {
    for (std::size_t i = 0; i < kFiles; ++i) {
      fs::remove(paths[i]);
      if (!contents[i].empty()) write_file(paths[i], contents[i]);
    }
  }

  [[nodiscard]] Contents found() const {
    Contents contents;
    for (std::size_t i = 0; i < kFiles; ++i) {
      if (fs::exists(paths[i])) contents[i] = read_file(paths[i]);
    }
    return contents;
  }

  [[nodiscard]] std::size_t names_in_the_folders() const {
    std::size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path())) count += entry.path() != folder / "more";
    return count;
  }

  void commit(const Contents& contents) const {
    FileTransaction files;
    for (std::size_t i = 0; i < kFiles; ++i) files.append(files.create(paths[i]), contents[i]);
    files.commit();
  }

  /// Runs commit() in a process that is killed after `calls` stops. The process stops at the entry and the exit of each
  /// system call. Returns true if commit() finished before.
  [[nodiscard]] bool commit_and_kill(const Contents& contents, int calls) const {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(3);
      ::raise(SIGSTOP);
      commit(contents);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    for (int i = 0; i < calls && WIFSTOPPED(status); ++i) {
      ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
      ::waitpid(child, &status, 0);
    }
    const bool ended = WIFEXITED(status);
    if (ended) {
      EXPECT_EQ(WEXITSTATUS(status), 0);
      return true;
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return false;
  }

  /// Kills the process at each system call. Checks the files that are then left, and the files after the next commit.
  void kill_everywhere(const Contents& old_files) const {
    const Contents new_files = {"new O", "new dQ", "new dV", "new r"};
    const Contents next_files = {"next O", "next dQ", "next dV", "next r"};
    int old_ones = 0;
    int new_ones = 0;
    // Stops only at entries, because an exit leaves the same state as the next entry.
    for (int calls = 0;; calls += 2) {
      put(old_files);
      const bool ended = commit_and_kill(new_files, calls);
      const Contents left = found();
      ASSERT_TRUE(left == old_files || left == new_files) << "killed after " << calls << " stops: a mixture";
      (left == old_files ? old_ones : new_ones) += 1;
      // Opening a new transaction must not change what readers find. The new transaction must remove everything that
      // the killed process left behind.
      (void)FileTransaction().create(paths[0]);
      EXPECT_EQ(found(), left) << calls;
      std::size_t wanted = 0;
      for (const std::string& content : left) wanted += content.empty() ? 0 : 1;
      EXPECT_EQ(names_in_the_folders(), wanted) << "left by a process killed after " << calls << " stops";
      for (const fs::path& path : paths) EXPECT_FALSE(fs::is_symlink(path)) << calls;
      if (!ended) continue;
      EXPECT_EQ(left, new_files);
      break;
    }
    EXPECT_GT(old_ones, 20) << "the child was not stopped before";
    EXPECT_GT(new_ones, 5) << "nor after the moment of the change";
    commit(next_files);
    EXPECT_EQ(found(), next_files);
  }

  [[nodiscard]] static bool can_trace() {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1);
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
};

TEST_F(KilledCommit, LeavesAllOldFilesOrAllNewOnes) {
  if (!can_trace()) GTEST_SKIP() << "no ptrace here";
  kill_everywhere({"old O", "old dQ", "old dV", "old r"});
}

TEST_F(KilledCommit, LeavesNoFileOrAllWhereThereWasNone) {
  if (!can_trace()) GTEST_SKIP() << "no ptrace here";
  kill_everywhere({"", "", "", ""});
}

TEST_F(KilledCommit, IsFinishedThroughAnyOfItsTargets) {
  if (!can_trace()) GTEST_SKIP() << "no ptrace here";
  const Contents old_files = {"old O", "", "old dV", "old r"};
  const Contents new_files = {"new O", "new dQ", "new dV", "new r"};
  for (int calls = 0;; calls += 2) {  // stops only at entries, because an exit leaves the same state as the next entry
    put(old_files);
    if (commit_and_kill(new_files, calls)) break;
    const Contents left = found();
    // The cleanup starts in the other folder, by a path that the killed process did not use.
    const fs::path detour = folder / "more" / ".." / "more" / "r";
    {
      FileTransaction files;
      files.append(files.create(detour), "mine");
      files.commit();
    }
    Contents wanted = left;
    wanted[3] = "mine";
    ASSERT_EQ(found(), wanted) << calls;
    (void)FileTransaction().create(paths[0]);
    ASSERT_EQ(found(), wanted) << calls;
  }
}

TEST(FileSet, AFolderThatIsMovedAfterAKillStaysWhole) {
  const TempFolder folder;
  fs::create_directory(folder / "a");
  const std::vector<fs::path> targets = {folder / "a" / "x", folder / "a" / "y"};
  for (const fs::path& target : targets) write_file(target, "old");
  const pid_t child = ::fork();
  if (child == 0) {
    auto* set = new io::FileSet(targets);  // never deleted, so its destructor does not run, as in a killed process
    for (std::size_t i = 0; i < targets.size(); ++i) write_file(set->fresh(i), "new");
    set->switch_over();
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  fs::rename(folder / "a", folder / "b");
  EXPECT_TRUE(fs::is_symlink(folder / "b" / "x"));
  EXPECT_EQ(read_file(folder / "b" / "x") + read_file(folder / "b" / "y"), "newnew");
  io::finish_left_sets(folder / "b");
  const std::map<std::string, std::string> expected = {
      {(folder / "b").string(), ""}, {(folder / "b" / "x").string(), "new"}, {(folder / "b" / "y").string(), "new"}};
  EXPECT_EQ(snapshot(folder.path()), expected);
}

TEST(FileSet, WithoutASwitchNothingHasChanged) {
  const TempFolder folder;
  write_file(folder / "x", "old");
  const auto before = snapshot(folder.path());
  {
    const io::FileSet set({folder / "x", folder / "y"});
    write_file(set.fresh(0), "new");
    EXPECT_EQ(read_file(folder / "x"), "old");
  }
  EXPECT_EQ(snapshot(folder.path()), before);
}

}  // namespace
}  // namespace attend::test
