// Tests the run-time compiler with damaged, unwritable and missing caches. The compiler must always return the right
// code, and print each warning once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "attend/error.hpp"
#include "cuda/jit_fixture.hpp"

namespace attend::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class JitCache : public NvrtcTest {
 protected:
  /// Compiles the small test kernel with a new Jit instance. Expects the same cubin as the first time.
  std::shared_ptr<const cuda::CompiledKernel> compile_again(const fs::path& root, int value = 1) {
    auto kernel = new_jit(root)->compile(tiny_spec(value));
    EXPECT_THAT(kernel->cubin, testing::Not(IsEmpty()));
    EXPECT_EQ(kernel->resources.spill_store_bytes, 0);
    EXPECT_GT(kernel->resources.registers, 0);
    return kernel;
  }
  std::shared_ptr<const cuda::CompiledKernel> compile_again(int value = 1) { return compile_again(cache_, value); }

  /// Expects that the damaged entry is detected, reported once and repaired.
  void expect_mended(const std::string& what) {
    printed_.clear();
    EXPECT_FALSE(compile_again()->from_disk) << what;
    EXPECT_THAT(printed_, ElementsAre(HasSubstr("damaged cache entry"))) << what;
    EXPECT_TRUE(compile_again()->from_disk) << what;
  }
};

TEST_F(JitCache, FromMemoryThenFromDisk) {
  const auto jit = new_jit();
  const auto first = jit->compile(tiny_spec());
  EXPECT_FALSE(first->from_disk);
  EXPECT_EQ(jit->compile(tiny_spec()), first);
  EXPECT_EQ(entries().size(), 1U);
  const auto second = compile_again();
  EXPECT_TRUE(second->from_disk);
  EXPECT_EQ(second->cubin, first->cubin);
  EXPECT_EQ(second->log, first->log);
  EXPECT_EQ(second->key, first->key);
  EXPECT_THAT(printed_, IsEmpty());
}

TEST_F(JitCache, LinesOfSourcesMakeAnEntryOfTheirOwnWithTheSameResources) {
  const auto plain = compile_again();
  cuda::Jit jit({.cache_root = cache_, .kernel_dir = kernels_, .line_info = true});
  const auto with_lines = jit.compile(tiny_spec());
  EXPECT_FALSE(with_lines->from_disk);
  EXPECT_NE(with_lines->key, plain->key);
  EXPECT_GT(with_lines->cubin.size(), plain->cubin.size());
  EXPECT_EQ(with_lines->resources.registers, plain->resources.registers);
  EXPECT_TRUE(compile_again()->from_disk);
}

TEST_F(JitCache, TruncatedAtEverySixteenthAndFlippedBits) {
  compile_again();
  const fs::path entry = entries().at(0);
  const std::string good = read_file(entry);
  for (std::size_t part = 0; part < 16; part += ATTEND_TEST_STRIDE) {
    write_file(entry, good.substr(0, good.size() * part / 16));  // if part is 0, the file is empty
    expect_mended("truncated to " + std::to_string(part) + "/16");
  }
  for (const std::size_t at : {std::size_t{0}, std::size_t{9}, std::size_t{60}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    write_file(entry, bad);
    expect_mended("bit flipped at " + std::to_string(at));
  }
  write_file(entry,
             "\x7f"
             "ELF" +
                 good.substr(4));
  expect_mended("foreign magic");
}

TEST_F(JitCache, SwappedEntries) {
  compile_again(1);
  compile_again(2);
  const auto files = entries();
  ASSERT_EQ(files.size(), 2U);
  fs::rename(files[0], folder_ / "x");
  fs::rename(files[1], files[0]);
  fs::rename(folder_ / "x", files[1]);
  expect_mended("swapped");
}

TEST_F(JitCache, FolderOrLinkInPlaceOfTheEntry) {
  compile_again();
  const fs::path entry = entries().at(0);
  fs::remove(entry);
  fs::create_directory(entry);
  expect_mended("empty folder");
  const std::string victim = "must not change";
  write_file(folder_ / "victim", victim);
  fs::remove(entry);
  fs::create_symlink(folder_ / "victim", entry);
  expect_mended("symbolic link");
  EXPECT_EQ(read_file(folder_ / "victim"), victim);
  fs::remove(entry);
  fs::create_directory(entry);
  write_file(entry / "precious", "x");
  printed_.clear();
  EXPECT_FALSE(compile_again()->from_disk);
  EXPECT_EQ(printed_.size(), 2U);  // one warning that the entry is damaged, and one that it cannot be replaced
  EXPECT_TRUE(fs::exists(entry / "precious"));
}

/// An entry of another user must not be used, because it could contain any code with a valid checksum. This test needs
/// root, because only root can change a file's owner.
TEST_F(JitCache, AnEntryOfAnotherUserIsNotUsed) {
  if (::geteuid() != 0) GTEST_SKIP() << "not root: no file can be given to another user";
  compile_again();
  const fs::path entry = entries().at(0);
  constexpr uid_t kAnotherUser = 65534;
  ASSERT_EQ(::chown(entry.c_str(), kAnotherUser, static_cast<gid_t>(-1)), 0);
  const std::string theirs = read_file(entry);
  EXPECT_FALSE(compile_again()->from_disk);
  EXPECT_THAT(printed_, ElementsAre(AllOf(HasSubstr("damaged cache entry"), HasSubstr("another user"))));
  struct stat status = {};
  ASSERT_EQ(::stat(entry.c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, 0U) << "its place has an entry of our own";
  EXPECT_TRUE(compile_again()->from_disk);
}

TEST_F(JitCache, UnwritableAndAbsentFoldersMeanMemoryOnlyAndOneWarning) {
  write_file(folder_ / "file", "");
  for (const fs::path& root : {fs::path("/proc/attend"), folder_ / "file" / "below", fs::path()}) {
    printed_.clear();
    const auto jit = new_jit(root);
    EXPECT_FALSE(jit->compile(tiny_spec(1))->from_disk);
    EXPECT_FALSE(jit->compile(tiny_spec(2))->from_disk);
    EXPECT_THAT(printed_, ElementsAre(HasSubstr("in memory only"))) << root;
  }
}

TEST_F(JitCache, PathsWithBlanksAndLettersOfAllKinds) {
  const fs::path root = folder_ / "a b \xC3\xA9\xE6\xB3\xA8 'quoted' \"$HOME\"";
  compile_again(root);
  EXPECT_TRUE(compile_again(root)->from_disk);
  EXPECT_THAT(printed_, IsEmpty());
}

TEST_F(JitCache, RemovedWhileInUse) {
  const auto jit = new_jit();
  (void)jit->compile(tiny_spec(1));
  fs::remove_all(cache_);
  EXPECT_FALSE(jit->compile(tiny_spec(2))->from_disk);
  EXPECT_THAT(printed_, IsEmpty());
  EXPECT_EQ(entries().size(), 1U);
}

TEST_F(JitCache, AFailingCompilePublishesNothingAndCarriesTheLog) {
  const std::string good = read_file(kernels_ / "tiny.cuh");
  write_file(kernels_ / "tiny.cuh", good + "\n#error deliberately broken\n");
  const auto jit = new_jit();
  for (int attempt = 0; attempt < 2; ++attempt) {  // the second attempt must report the same error as the first
    try {
      (void)jit->compile(tiny_spec());
      FAIL() << "compiled";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("tiny<kThreads=32, kValue=1> sm_90a"), HasSubstr("NVRTC_ERROR_COMPILATION"),
                        HasSubstr("nvrtcCompileProgram"), HasSubstr("deliberately broken")));
    }
  }
  EXPECT_THAT(entries(), IsEmpty());
  write_file(kernels_ / "tiny.cuh", good);
  EXPECT_FALSE(jit->compile(tiny_spec())->from_disk);
}

TEST_F(JitCache, EightThreadsManyVariants) {
  const auto jit = new_jit();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&jit, t] {
      for (int i = 0; i < 6; ++i) EXPECT_FALSE(jit->compile(tiny_spec((t + i) % 6))->cubin.empty());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(entries().size(), 6U);
}

}  // namespace
}  // namespace attend::test
