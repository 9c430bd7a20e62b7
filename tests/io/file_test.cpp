// Tests files that appear all together or not at all, and tensors that cannot be allocated.
#include "io/file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "attend/error.hpp"
#include "io/host_tensor.hpp"
#include "io/temp_folder.hpp"

namespace attend::test {
namespace {

namespace fs = std::filesystem;
using io::FileTransaction;

TEST(FileTransaction, NothingChangesWithoutCommit) {
  const TempFolder folder;
  write_file(folder / "a", "old");
  const auto before = snapshot(folder.path());
  {
    FileTransaction files;
    files.make_folders(folder / "x" / "y");
    files.append(files.create(folder / "a", 1000), "new");
    files.append(files.create(folder / "x" / "y" / "b"), "new");
    EXPECT_EQ(read_file(folder / "a"), "old");
  }
  EXPECT_EQ(snapshot(folder.path()), before);
}

TEST(FileTransaction, CommitReplacesAll) {
  const TempFolder folder;
  write_file(folder / "a", "a longer old text");
  {
    FileTransaction files;
    files.make_folders((folder / "x").string() + "/");
    const auto a = files.create(folder / "a", 3);
    const auto b = files.create(folder / "x" / "b", 6);
    files.append(b, "bbb");
    files.append(a, "aaa");
    files.append(b, "BBB");
    files.commit();
  }
  const std::map<std::string, std::string> expected = {
      {(folder / "a").string(), "aaa"}, {(folder / "x").string(), ""}, {(folder / "x" / "b").string(), "bbbBBB"}};
  EXPECT_EQ(snapshot(folder.path()), expected);
}

TEST(FileTransaction, LinksStayLinks) {
  const TempFolder folder;
  write_file(folder / "real", "old");
  fs::create_symlink(folder / "real", folder / "link");
  FileTransaction files;
  files.append(files.create(folder / "link"), "new");
  files.commit();
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "real"), "new");
}

std::string refusal(FileTransaction& files, const fs::path& target) {
  try {
    (void)files.create(target);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(FileTransaction, NoLinkLeadsToAnInputOrAnotherOutput) {
  const TempFolder folder;
  for (const char* name : {"Q.bin", "O.bin", "dK.bin", "elsewhere"}) write_file(folder / name, name);
  fs::create_symlink("Q.bin", folder / "to_input");
  fs::create_symlink("O.bin", folder / "to_output");
  fs::create_symlink("dK.bin", folder / "to_kept");
  fs::create_symlink("elsewhere", folder / "to_free");
  const auto before = snapshot(folder.path());
  {
    FileTransaction files;
    files.keep_input(folder / "Q.bin");
    files.keep_from_links(folder / "O.bin");
    files.keep_from_links(folder / "dK.bin");
    (void)files.create(folder / "O.bin");
    EXPECT_THAT(refusal(files, folder / "to_input"), testing::HasSubstr("Q.bin: an input of this run, allowed"));
    EXPECT_THAT(refusal(files, folder / "Q.bin"), testing::HasSubstr("Q.bin: an input of this run, allowed"));
    EXPECT_THAT(refusal(files, folder / "to_output"), testing::HasSubstr("O.bin: named for two outputs"));
    EXPECT_THAT(refusal(files, folder / "." / "O.bin"), testing::HasSubstr("named for two outputs"));
    EXPECT_THAT(refusal(files, folder / "to_kept"), testing::HasSubstr("dK.bin: another tensor of this folder"));
    EXPECT_EQ(refusal(files, folder / "to_free"), "");
    EXPECT_EQ(refusal(files, folder / "dK.bin"), "") << "by its own name it is an output as any other";
  }
  EXPECT_EQ(snapshot(folder.path()), before);
}

TEST(FileTransaction, NoNameIsSeenBeforeTheCommit) {
  const TempFolder folder;
  FileTransaction files;
  files.append(files.create(folder / "a", 1000), "new");
  EXPECT_TRUE(fs::is_empty(folder.path())) << "a temporary with a name stays behind where the process is killed";
}

TEST(FileTransaction, TemporariesWithNamesGoWhenTheProcessIsEnded) {
  const TempFolder folder;
  write_file(folder / "a", "old");
  const auto before = snapshot(folder.path());
  const pid_t child = ::fork();
  if (child == 0) {
    FileTransaction files(FileTransaction::Temporaries::kNamed);
    files.make_folders(folder / "x" / "y");
    files.append(files.create(folder / "a", 1000), "new");
    files.append(files.create(folder / "x" / "y" / "b"), "new");
    const bool has_names = snapshot(folder.path()).size() == before.size() + 4;
    io::abandon_unfinished_files();
    ::_exit(has_names ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(snapshot(folder.path()), before);
}

TEST(FileTransaction, TemporariesWithNamesReplaceTheirTargets) {
  const TempFolder folder;
  write_file(folder / "a", "old");
  FileTransaction files(FileTransaction::Temporaries::kNamed);
  files.append(files.create(folder / "a"), "new a");
  files.append(files.create(folder / "b", 5), "new b");
  files.commit();
  const std::map<std::string, std::string> expected = {{(folder / "a").string(), "new a"},
                                                       {(folder / "b").string(), "new b"}};
  EXPECT_EQ(snapshot(folder.path()), expected);
}

TEST(FileTransaction, AsksForSpaceBeforeItTakesAny) {
  const TempFolder folder;
  const auto huge = std::int64_t{1} << 60;
  const std::string wanted = "needs 1152921504606846976 bytes, allowed ";
  FileTransaction files;
  try {
    (void)files.create(folder / "a", huge);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(wanted));
  }
  try {
    io::require_space(folder / "not" / "there" / "yet", huge);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(wanted));
  }
  io::require_space(folder / "not" / "there" / "yet", 1);
}

TEST(FileTransaction, DevicesAreWrittenNotReplaced) {
  FileTransaction files;
  files.append(files.create("/dev/null"), "new");
  files.commit();
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(FileTransaction, RefusesWhatCannotBe) {
  const TempFolder folder;
  write_file(folder / "file", "");
  const auto before = snapshot(folder.path());
  {
    FileTransaction files;
    EXPECT_THROW((void)files.create(folder / "missing" / "a"), Error);
    EXPECT_THROW((void)files.create(folder / "file" / "a"), Error);
    EXPECT_THROW((void)files.create(folder.path()), Error);
    EXPECT_THROW(files.make_folders(folder / "file" / "a"), Error);
    EXPECT_THROW(files.make_folders(folder / "file"), Error);
    EXPECT_THROW((void)files.create(folder / "huge", std::int64_t{1} << 60), Error);
    (void)files.create(folder / "twice");
    EXPECT_THROW((void)files.create(folder / "twice"), Error);
  }
  EXPECT_EQ(snapshot(folder.path()), before);
}

TEST(FileTransaction, FullDeviceIsReported) {
  FileTransaction files;
  files.append(files.create("/dev/full"), "text");
  EXPECT_THROW(files.commit(), Error);
}

TEST(InputFile, ReadsPieces) {
  const TempFolder folder;
  write_file(folder / "a", "0123456789");
  const io::InputFile file(folder / "a");
  EXPECT_EQ(file.size(), 10);
  std::string text(4, ' ');
  file.read(3, std::as_writable_bytes(std::span(text)));
  EXPECT_EQ(text, "3456");
  EXPECT_THROW(file.read(7, std::as_writable_bytes(std::span(text))), Error);
}

TEST(InputFile, RefusesWhatIsNoFile) {
  EXPECT_THROW(io::InputFile("/nowhere/a"), Error);
  EXPECT_THROW(io::InputFile("/tmp"), Error);
  EXPECT_THROW(io::InputFile("/dev/null"), Error);
}

TEST(TensorBytes, FindsOverflow) {
  constexpr std::int64_t kHuge = (std::int64_t{1} << 31) - 1;
  EXPECT_EQ(io::tensor_bytes(DType::kBF16, {2, 3, 4, 5}), 240);
  EXPECT_EQ(io::tensor_bytes(DType::kF64, {0, kHuge, kHuge, kHuge}), 0);
  EXPECT_EQ(io::tensor_bytes(DType::kF32, {kHuge, kHuge, kHuge, kHuge}), std::nullopt);
  EXPECT_EQ(io::tensor_bytes(DType::kF32, {kHuge, kHuge, kHuge, 0}), 0);
  EXPECT_EQ(io::tensor_bytes(DType::kF32, {-1, 0, 1, 1}), std::nullopt);
  // 2^64 bytes, which overflows the size
  EXPECT_THROW(io::HostTensor(DType::kF32, {kHuge, kHuge, 1, 1}), Error);
  EXPECT_THROW(io::HostTensor(DType::kF32, {kHuge, 1 << 20, 1, 1}), Error);  // more memory than any machine has
}

TEST(HostTensor, PoisonIsNan) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    io::HostTensor tensor(dtype, {1, 1, 2, 3});
    tensor.poison();
    const io::HostTensor wide = tensor.converted(DType::kF64);
    for (std::int64_t i = 0; i < 6; ++i) EXPECT_TRUE(std::isnan(static_cast<double*>(wide.view().data)[i]));
  }
}

}  // namespace
}  // namespace attend::test
