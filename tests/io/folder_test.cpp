// Tests the raw folder format. The folder's name describes the problem, and each file must have exactly the length that
// follows from the name.
#include "io/folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temp_folder.hpp"

namespace attend::test {
namespace {

using io::FolderSpec;
using testing::AllOf;
using testing::HasSubstr;

std::string refusal(std::string_view name) {
  try {
    (void)io::parse_folder_name(name);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    return error.what();
  }
  return "nothing was refused";
}

TEST(FolderName, PlainCase) {
  const FolderSpec spec = {2, 8, 8, 512, 512, 64, 64, DType::kF32};
  EXPECT_EQ(io::folder_name(spec), "B2_H8_S512_D64");
  EXPECT_EQ(io::parse_folder_name("B2_H8_S512_D64"), spec);
}

TEST(FolderName, EveryPartOnItsOwnAndAllTogether) {
  for (const char* name : {"B1_H4_Hkv2_S8_D16", "B1_H4_Sq8_Sk9_D16", "B1_H4_S8_D16_Dv32", "B1_H4_S8_D16_bf16",
                           "B1_H4_S8_D16_f16", "B1_H4_S8_D16_f64", "B3_H8_Hkv1_Sq128_Sk512_D64_Dv32_bf16"}) {
    EXPECT_EQ(io::folder_name(io::parse_folder_name(name)), name);
  }
  EXPECT_EQ(io::parse_folder_name("B3_H8_Hkv1_Sq128_Sk512_D64_Dv32_bf16"),
            (FolderSpec{3, 8, 1, 128, 512, 64, 32, DType::kBF16}));
}

TEST(FolderName, RefusesEverythingElse) {
  for (const char* name : {"",
                           "B",
                           "data",
                           "B2",
                           "B2_H8",
                           "B2_H8_S512",
                           "B2_H8_S512_D",
                           "b2_H8_S512_D64",
                           "B2_H8_S512_D64_",
                           "_B2_H8_S512_D64",
                           "B2_H8_S512_D64_f32",
                           "B2_H8_S512_D64_int8",
                           "B2_H8_S512_D64_D64",
                           "B2_H8_Sk512_Sq512_D64",
                           "B2_H8_Sq512_D64",
                           "B2 H8 S512 D64",
                           "B2_H8_S512_D64 ",
                           "B-2_H8_S512_D64",
                           "B+2_H8_S512_D64",
                           "B2_H8_S512_D6x4"}) {
    EXPECT_THAT(refusal(name), HasSubstr("allowed")) << name;
  }
}

TEST(FolderName, OneNameForEachProblem) {
  EXPECT_THAT(refusal("B02_H8_S512_D64"), HasSubstr("allowed B2_H8_S512_D64"));
  EXPECT_THAT(refusal("B2_H8_Hkv8_S512_D64"), HasSubstr("allowed B2_H8_S512_D64"));
  EXPECT_THAT(refusal("B2_H8_Sq512_Sk512_D64"), HasSubstr("allowed B2_H8_S512_D64"));
  EXPECT_THAT(refusal("B2_H8_S512_D64_Dv64"), HasSubstr("allowed B2_H8_S512_D64"));
}

TEST(FolderName, RefusesSizesOutOfRange) {
  EXPECT_THAT(refusal("B0_H8_S512_D64"), AllOf(HasSubstr("B is 0"), HasSubstr("1 to")));
  EXPECT_THAT(refusal("B2_H8_S512_D513"), AllOf(HasSubstr("D is 513"), HasSubstr("1 to 512")));
  EXPECT_THAT(refusal("B2147483648_H8_S512_D64"), HasSubstr("B is 2147483648"));
  EXPECT_THAT(refusal("B99999999999999999999_H8_S512_D64"), HasSubstr("B is 99999999999999999999"));
  EXPECT_THAT(refusal("B2_H8_Hkv3_S512_D64"), AllOf(HasSubstr("Hkv is 3"), HasSubstr("divisor of H 8")));
  EXPECT_THAT(refusal("B2147483647_H2147483647_S2147483647_D512"), HasSubstr("2^62 bytes"));
  // Every bf16 tensor is just below the size limit, but the f32 logsumexp exceeds the limit.
  EXPECT_THAT(refusal("B1073741824_H1073741824_S2_D1_bf16"), HasSubstr("logsumexp of shape"));
}

TEST(FolderPath, TheLastPartCounts) {
  const TempFolder folder;
  const auto problem = folder / "B1_H1_S2_D4";
  std::filesystem::create_directory(problem);
  const FolderSpec spec = {1, 1, 1, 2, 2, 4, 4, DType::kF32};
  EXPECT_EQ(io::parse_folder_path(problem), spec);
  EXPECT_EQ(io::parse_folder_path(problem.string() + "/"), spec);
  EXPECT_EQ(io::parse_folder_path(problem / "."), spec);
  // The folder does not exist.
  EXPECT_THROW((void)io::parse_folder_path(folder / "B1_H1_S2_D8"), Error);
  write_file(folder / "B1_H1_S2_D16", "");
  // This path is a file, not a folder.
  EXPECT_THROW((void)io::parse_folder_path(folder / "B1_H1_S2_D16"), Error);
}

TEST(ReadBin, WantsTheExactSize) {
  const TempFolder folder;
  const Shape shape = {1, 1, 2, 4};
  write_file(folder / "Q.bin", std::string(32, 'x'));
  EXPECT_EQ(io::read_bin(folder.path(), "Q.bin", DType::kF32, shape).bytes().size(), 32U);
  for (const int bytes : {0, 31, 33}) {
    write_file(folder / "Q.bin", std::string(bytes, 'x'));
    try {
      (void)io::read_bin(folder.path(), "Q.bin", DType::kF32, shape);
      ADD_FAILURE() << bytes;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("Q.bin"), HasSubstr(std::to_string(bytes) + " bytes"), HasSubstr("32")));
    }
  }
  EXPECT_THROW((void)io::read_bin(folder.path(), "K.bin", DType::kF32, shape), Error);
  std::filesystem::create_directory(folder / "V.bin");
  EXPECT_THROW((void)io::read_bin(folder.path(), "V.bin", DType::kF32, shape), Error);
}

}  // namespace
}  // namespace attend::test
