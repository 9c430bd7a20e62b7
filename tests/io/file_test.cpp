// Files that appear all together or not at all, and tensors that cannot be had.
#include "io/file.hpp"

#include <gtest/gtest.h>

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
  EXPECT_THROW(io::HostTensor(DType::kF32, {kHuge, kHuge, 1, 1}), Error);    // 2^64 bytes
  EXPECT_THROW(io::HostTensor(DType::kF32, {kHuge, 1 << 20, 1, 1}), Error);  // more than any machine has
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
