// Tests the folder of compiled kernels. The folder must stay below its size limit, keep the most recently used entries,
// and leave other files alone.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <vector>

#include "attend/error.hpp"
#include "attend/version.hpp"
#include "cuda/jit/cache_folder.hpp"
#include "cuda/jit/disk_cache.hpp"
#include "io/temp_folder.hpp"

namespace attend::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::hours;
using std::chrono::minutes;
using testing::HasSubstr;

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kEntryBytes = 10 * kKiB;  // bytes of machine code; an entry also has a header

std::string key_of(int number) {
  return fmt::format("{:032x}", number);
}

std::string name_of(int number) {
  return "made_up-sm_90a-" + key_of(number) + ".bin";
}

cuda::CacheEntry entry_of(int number) {
  return {.log = {}, .cubin = std::vector<std::byte>(kEntryBytes, static_cast<std::byte>(number)), .seconds = 1};
}

/// Sets the access time of a file to `age` ago, and its modification time to one hour earlier. Because the access time
/// is later than the modification time, reading the file changes neither time if the file system is mounted with
/// relatime.
void set_age(const fs::path& path, std::chrono::seconds age) {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  const timespec times[2] = {{.tv_sec = now - age.count(), .tv_nsec = 0},
                             {.tv_sec = now - age.count() - 3600, .tv_nsec = 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

struct stat status_of(const fs::path& path) {
  struct stat status = {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status;
}

class CacheLimit : public testing::Test {
 protected:
  [[nodiscard]] cuda::DiskCache cache(std::uint64_t limit) {
    return {root_, ATTEND_VERSION_STRING, limit, [this](const std::string& line) { warnings_.push_back(line); }};
  }

  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const cuda::CacheFile& file : cuda::cache_files(root_)) sum += file.bytes;
    return sum;
  }

  [[nodiscard]] bool holds(int number) const { return fs::exists(version_ / name_of(number)); }

  TempFolder folder_;
  const fs::path root_ = folder_ / "cache";
  const fs::path version_ = root_ / ATTEND_VERSION_STRING;
  std::vector<std::string> warnings_;
};

TEST_F(CacheLimit, IsKeptAtEveryStoreAndTheNewestEntryIsThere) {
  constexpr std::uint64_t kLimit = 64 * kKiB;
  cuda::DiskCache disk = cache(kLimit);
  for (int number = 0; number < 40; ++number) {
    disk.store(name_of(number), key_of(number), entry_of(number));
    EXPECT_LE(bytes(), kLimit) << number;
    const auto back = disk.load(name_of(number), key_of(number));
    ASSERT_TRUE(back.has_value()) << number;
    EXPECT_EQ(back->cubin, entry_of(number).cubin);
  }
  EXPECT_GE(bytes(), kLimit / 2);
  EXPECT_THAT(warnings_, testing::IsEmpty());
}

TEST_F(CacheLimit, TheLeastRecentlyUsedGoesFirstAndAHitIsAUse) {
  cuda::DiskCache disk = cache(64 * kKiB);
  for (int number = 0; number < 6; ++number) {
    disk.store(name_of(number), key_of(number), entry_of(number));
    set_age(version_ / name_of(number), hours(24 - number));  // entry 0 is the oldest
  }
  EXPECT_TRUE(disk.load(name_of(0), key_of(0)).has_value());
  disk.store(name_of(6), key_of(6), entry_of(6));
  EXPECT_TRUE(holds(0)) << "was used just now";
  EXPECT_FALSE(holds(1));
  EXPECT_TRUE(holds(5));
  EXPECT_TRUE(holds(6));
}

TEST_F(CacheLimit, AHitWithinTheHourWritesNothing) {
  cuda::DiskCache disk = cache(64 * kKiB);
  disk.store(name_of(1), key_of(1), entry_of(1));
  const fs::path path = version_ / name_of(1);
  const auto changed = [&path] { return std::pair(status_of(path).st_ctim.tv_sec, status_of(path).st_ctim.tv_nsec); };
  set_age(path, minutes(50));
  const auto before = changed();
  EXPECT_TRUE(disk.load(name_of(1), key_of(1)).has_value());
  EXPECT_EQ(changed(), before);
  set_age(path, minutes(70));
  const auto last_change = status_of(path).st_mtim.tv_sec;
  EXPECT_TRUE(disk.load(name_of(1), key_of(1)).has_value());
  EXPECT_LT(std::time(nullptr) - status_of(path).st_atim.tv_sec, 60);
  EXPECT_EQ(status_of(path).st_mtim.tv_sec, last_change) << "the time of the compile stays";
}

TEST_F(CacheLimit, CountsOtherVersionsAndTexts) {
  fs::create_directories(root_ / "0.0.7");
  const fs::path old = root_ / "0.0.7" / name_of(1);
  const fs::path text = root_ / "0.0.7" / ("made_up-sm_90a-" + key_of(1) + ".cu");
  for (const fs::path& path : {old, text}) {
    write_file(path, std::string(30 * kKiB, 'x'));
    set_age(path, hours(48));
  }
  cuda::DiskCache disk = cache(64 * kKiB);
  disk.store(name_of(2), key_of(2), entry_of(2));
  EXPECT_LE(bytes(), 64 * kKiB);
  EXPECT_FALSE(fs::exists(old) && fs::exists(text));
  EXPECT_TRUE(holds(2));
}

TEST_F(CacheLimit, ForeignFilesAreNeitherCountedNorRemoved) {
  const std::string named_alike = name_of(1);
  const std::vector<fs::path> foreign = {root_ / "notes.txt",
                                         root_ / named_alike,
                                         root_ / "models" / named_alike,
                                         root_ / "1.0" / named_alike,
                                         version_ / "notes.txt",
                                         version_ / ("made_up-sm_90a-" + key_of(1) + ".json"),
                                         version_ / "made_up-sm_90a-1.bin",
                                         version_ / ("-sm_90a-" + key_of(1) + ".bin"),
                                         version_ / ("made_up-x86-" + key_of(1) + ".bin"),
                                         version_ / ("made_up-sm_90a-" + std::string(32, 'G') + ".bin"),
                                         version_ / "deeper" / named_alike,
                                         version_ / name_of(7) / "inside.txt"};
  for (const fs::path& path : foreign) {
    fs::create_directories(path.parent_path());
    write_file(path, "somebody's");
  }
  const fs::path link = version_ / name_of(8);
  fs::create_symlink(root_ / "notes.txt", link);
  EXPECT_EQ(bytes(), 0U);
  cuda::DiskCache disk = cache(16 * kKiB);
  disk.store(name_of(2), key_of(2), entry_of(2));
  disk.store(name_of(3), key_of(3), entry_of(3));  // storing entry 3 must evict entry 2
  EXPECT_FALSE(holds(2));
  const cuda::CacheCleared cleared = cuda::clear_cache(root_);
  EXPECT_EQ(cleared.removed.files, 1U);
  EXPECT_EQ(cleared.left.files, 0U);
  EXPECT_FALSE(holds(3));
  for (const fs::path& path : foreign) EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_TRUE(fs::is_symlink(link));
}

TEST_F(CacheLimit, AnEntryBeyondItAndALimitOfZeroWriteNothing) {
  cuda::DiskCache small = cache(5 * kKiB);
  small.store(name_of(1), key_of(1), entry_of(1));
  EXPECT_FALSE(holds(1));
  cuda::DiskCache off = cache(0);
  off.store(name_of(2), key_of(2), entry_of(2));
  EXPECT_FALSE(fs::exists(root_));
  cache(64 * kKiB).store(name_of(3), key_of(3), entry_of(3));
  EXPECT_FALSE(off.load(name_of(3), key_of(3)).has_value());
  EXPECT_TRUE(holds(3)) << "what is there stays";
  EXPECT_THAT(warnings_, testing::IsEmpty());
}

// Each process stores and reads entries while other processes store and remove them.
TEST_F(CacheLimit, HoldsAmongSixteenProcesses) {
  constexpr int kProcesses = 16;
  constexpr int kRounds = 48 / ATTEND_TEST_STRIDE;
  constexpr int kKeys = 40;
  constexpr std::uint64_t kLimit = 200 * kKiB;  // the size limit allows only half of the entries
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      bool good = true;
      cuda::DiskCache disk(root_, ATTEND_VERSION_STRING, kLimit,
                           [&good](const std::string& /*line*/) { good = false; });
      for (int round = 0; round < kRounds; ++round) {
        const int number = (process * 7 + round * 11) % kKeys;
        const auto back = disk.load(name_of(number), key_of(number));
        if (back) good = good && back->cubin == entry_of(number).cubin;
        if (!back) disk.store(name_of(number), key_of(number), entry_of(number));
      }
      ::_exit(good ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << "a child met a damaged entry, a wrong one, or a folder that it could not write";
  }
  EXPECT_LE(bytes(), kLimit);
  EXPECT_GE(bytes(), kLimit / 2);
}

TEST_F(CacheLimit, ComesFromTheEnvironment) {
  const auto limit = [](const char* text) {
    ::setenv("ATTEND_CACHE_LIMIT", text, 1);
    const std::uint64_t bytes = cuda::cache_limit_from_environment();
    ::unsetenv("ATTEND_CACHE_LIMIT");
    return bytes;
  };
  EXPECT_EQ(limit(""), cuda::kDefaultCacheLimit);
  EXPECT_EQ(limit("0"), 0U);
  EXPECT_EQ(limit("4096"), 4096U);
  EXPECT_EQ(limit("512MiB"), std::uint64_t{512} << 20);
  EXPECT_EQ(limit("2 gib"), std::uint64_t{2} << 30);
  EXPECT_EQ(limit("1.5GB"), 1'500'000'000U);
  EXPECT_EQ(limit("unlimited"), UINT64_MAX);
  for (const char* bad :
       {"-1", "much", "2 GiB more", "1e3", "5 PiB", "0x10", "MiB", "nan", "inf", "9999999999TiB", "."}) {
    ::setenv("ATTEND_CACHE_LIMIT", bad, 1);
    try {
      FAIL() << bad << " gave " << cuda::cache_limit_from_environment();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(fmt::format("ATTEND_CACHE_LIMIT: '{}', allowed: 0, unlimited", bad)),
                                      testing::Not(HasSubstr("\n"))));
    }
    ::unsetenv("ATTEND_CACHE_LIMIT");
  }
}

TEST_F(CacheLimit, InfoAddsUpByKernelAndArchitecture) {
  cuda::DiskCache disk = cache(1024 * kKiB);
  for (int number = 0; number < 3; ++number) disk.store(name_of(number), key_of(number), entry_of(number));
  disk.store("other_kernel-sm_80-" + key_of(9) + ".bin", key_of(9), entry_of(9));
  ::setenv("ATTEND_CACHE_DIR", root_.c_str(), 1);
  const cuda::CacheInfo info = cuda::cache_info();
  ::unsetenv("ATTEND_CACHE_DIR");
  EXPECT_EQ(info.totals.files, 4U);
  EXPECT_EQ(info.totals.bytes, bytes());
  ASSERT_EQ(info.kernels.size(), 2U);
  EXPECT_EQ(info.kernels[0].name, "made_up");
  EXPECT_EQ(info.kernels[0].arch, "sm_90a");
  EXPECT_EQ(info.kernels[0].totals.files, 3U);
  EXPECT_EQ(info.kernels[1].name, "other_kernel");
  EXPECT_THAT(cuda::describe(info), AllOf(HasSubstr(root_.string()), HasSubstr("1.0 GiB (the default)"),
                                          HasSubstr("in 4 files"), HasSubstr("within the hour")));
}

}  // namespace
}  // namespace attend::test
