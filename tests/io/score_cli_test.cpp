// Tests `attend run --score TEXT --tensor NAME=FILE`. The user's score function is checked against float64, and its
// gradients are written to files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "io/attend_program.hpp"
#include "io/npy.hpp"
#include "io/temp_folder.hpp"

namespace attend::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// Writes numbers to a .npy file.
template <class T>
void write_npy(const fs::path& path, DType dtype, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  std::string bytes = io::npy_header(dtype, shape);
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  write_file(path, bytes);
}

class Score : public testing::Test {
 protected:
  Score() {
    for (const char* dtype : {"", "--dtype bf16", "--dtype f64"}) {
      EXPECT_EQ(attend("generate --batch_size 2 --num_heads 4 --num_heads_kv 2 --seq_len 70 --head_dim 32 " +
                           std::string(dtype) + " --output_dir @",
                       {})
                    .status,
                0);
    }
    std::vector<float> table;
    for (int n = 0; n < 4 * 16; ++n) table.push_back(static_cast<float>(n % 7) / 4 - 1);
    write_npy(folder_ / "table.npy", DType::kF32, {4, 16}, table);
    std::vector<std::int64_t> doc;
    for (int n = 0; n < 70; ++n) doc.push_back(n / 20);
    write_npy(folder_ / "doc.npy", DType::kI64, {70}, doc);
    write_npy(folder_ / "rate.npy", DType::kF32, {}, std::vector<float>{0.25F});
  }

  /// Runs the program with the words of `line`, followed by --score and `text`. In `line`, '@' is replaced by the
  /// test's folder.
  [[nodiscard]] ProgramResult attend(std::string line, const std::string& text) const {
    for (std::size_t at = line.find('@'); at != std::string::npos; at = line.find('@')) {
      line.replace(at, 1, folder_.path().string());
    }
    std::istringstream stream(line);
    std::vector<std::string> words = {std::istream_iterator<std::string>(stream), {}};
    if (!text.empty()) words.insert(words.end(), {"--score", text});
    return run_attend(words);
  }

  void refuses(const std::string& line, const std::string& text, const std::string& why) const {
    const auto before = snapshot(folder_.path());
    const ProgramResult result = attend(line, text);
    EXPECT_EQ(result.status, 2) << line << result.out;
    EXPECT_THAT(result.err, HasSubstr(why));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_TRUE(snapshot(folder_.path()) == before) << line;
  }

  TempFolder folder_;
};

constexpr const char* kAll =
    "doc[q] == doc[k] ? 2 * tanh(score / 2) + table[h][clamp(q - k, -8, 7) + 8] - rate * abs(q - k) : -inf";
constexpr const char* kTensors = " --tensor table=@/table.npy --tensor doc=@/doc.npy --tensor rate=@/rate.npy";

TEST_F(Score, IsCheckedAgainstFloat64) {
  for (const char* data : {"@/B2_H4_Hkv2_S70_D32", "@/B2_H4_Hkv2_S70_D32_bf16", "@/B2_H4_Hkv2_S70_D32_f64"}) {
    const ProgramResult result = attend("run --mode both --check --data " + std::string(data) + kTensors, kAll);
    EXPECT_EQ(result.status, 0) << result.out << result.err;
    for (const char* part : {"PASS", "d_table", "d_rate", "dQ"}) EXPECT_THAT(result.out, HasSubstr(part));
    EXPECT_THAT(result.out, testing::Not(HasSubstr("d_doc")));
  }
  const ProgramResult naive =
      attend("run --mode forward --compute cpu_naive --check --data @/B2_H4_Hkv2_S70_D32", "score - 0.1 * abs(q - k)");
  EXPECT_EQ(naive.status, 0) << naive.out << naive.err;
}

/// The function adds a bias per head, whose gradient is 0 because its terms cancel.
TEST_F(Score, AGradientOfWhichNothingIsLeftPasses) {
  for (const char* data : {"@/B2_H4_Hkv2_S70_D32", "@/B2_H4_Hkv2_S70_D32_bf16", "@/B2_H4_Hkv2_S70_D32_f64"}) {
    const ProgramResult result =
        attend("run --mode both --check --tensor table=@/table.npy --data " + std::string(data), "score + table[h][2]");
    EXPECT_EQ(result.status, 0) << result.out << result.err;
  }
}

TEST_F(Score, ItsGradientsAreFilesLikeItsTensors) {
  const std::string run = "run --mode both --data @/B2_H4_Hkv2_S70_D32" + std::string(kTensors);
  ASSERT_EQ(attend(run, kAll).status, 0);
  const io::NpyArray table = io::read_npy_array(folder_ / "B2_H4_Hkv2_S70_D32" / "d_table.npy");
  EXPECT_EQ(table.shape, (std::vector<std::int64_t>{4, 16}));
  EXPECT_EQ(table.tensor.dtype(), DType::kF32);
  const io::NpyArray rate = io::read_npy_array(folder_ / "B2_H4_Hkv2_S70_D32" / "d_rate.npy");
  EXPECT_EQ(rate.shape, std::vector<std::int64_t>{});
  ASSERT_EQ(attend("run --mode backward --check --data @/B2_H4_Hkv2_S70_D32" + std::string(kTensors), kAll).status, 0);
}

#if defined(ATTEND_EMULATED_GPU)
/// Runs on the emulated GPU.
TEST_F(Score, OnAGpuItsGradientsAreFilesToo) {
  ASSERT_EQ(attend("generate --batch_size 1 --num_heads 4 --seq_len 40 --head_dim 16 --output_dir @", {}).status, 0);
  const std::string folder = (folder_ / "B1_H4_S40_D16").string();
  const ProgramResult result =
      run_attend({"run", "--compute", "simt", "--mode", "both", "--check", "--data", folder, "--tensor",
                  "table=" + (folder_ / "table.npy").string(), "--score", "score + table[h][clamp(q - k, -8, 7) + 8]"},
                 [] {
                   for (const char* name : {"ATTEND_LIBCUDA_PATH", "ATTEND_NVRTC_PATH"})
                     ::setenv(name, ATTEND_EMULATED_GPU, 1);
                   ::setenv("ATTEND_CACHE_LIMIT", "0", 1);
                   ::setenv("OMP_NUM_THREADS", "1", 1);
                 });
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  for (const char* part : {"d_table", "dQ", "d_table.npy"}) EXPECT_THAT(result.out, HasSubstr(part));
  const io::NpyArray gradient = io::read_npy_array(folder_ / "B1_H4_S40_D16" / "d_table.npy");
  EXPECT_EQ(gradient.shape, (std::vector<std::int64_t>{4, 16}));
}
#endif

TEST_F(Score, ABlockMaskIsCheckedWithAndWithoutAFunction) {
  const std::string tensors = " --tensor doc=@/doc.npy --tensor rate=@/rate.npy";
  const std::string mask = " --block_mask k<=q&&doc[q]==doc[k]";
  for (const char* data : {"@/B2_H4_Hkv2_S70_D32", "@/B2_H4_Hkv2_S70_D32_bf16", "@/B2_H4_Hkv2_S70_D32_f64"}) {
    for (const char* text : {"", "score - rate * abs(q - k)"}) {
      const ProgramResult result = attend("run --mode both --check --data " + std::string(data) + mask + tensors, text);
      EXPECT_EQ(result.status, 0) << result.out << result.err;
      EXPECT_THAT(result.out, HasSubstr("PASS"));
    }
  }
  const auto bytes = [&] { return read_file(folder_ / "B2_H4_Hkv2_S70_D32" / "O.bin"); };
  ASSERT_EQ(attend("run --data @/B2_H4_Hkv2_S70_D32 --block_mask k<=q", "").status, 0);
  const std::string of_mask = bytes();
  ASSERT_EQ(attend("run --data @/B2_H4_Hkv2_S70_D32", "").status, 0);
  EXPECT_NE(bytes(), of_mask);
}

TEST_F(Score, IsRefusedInOneLine) {
  const std::string run = "run --data @/B2_H4_Hkv2_S70_D32";
  refuses(run, "score + tabel[h]", "--score: column 9: 'tabel' is not a name here");
  refuses(run + " --tensor table=@/table.npy", "",
          "--tensor: given without --score and --block_mask, allowed with one of them");
  const ProgramResult empty = run_attend({"run", "--data", (folder_ / "B2_H4_Hkv2_S70_D32").string(), "--score", ""});
  EXPECT_EQ(empty.status, 2);
  EXPECT_THAT(empty.err, HasSubstr("--score: an empty text, allowed a function"));
  refuses(run + " --block_mask k<=tabel", "", "--block_mask: column 4: 'tabel' is not a name here");
  refuses(run + " --block_mask k<=q --ring zigzag --ranks 2", "",
          "--block_mask: given with --ring, allowed without it");
  refuses(run + " --block_mask k<=q||k<5 --compute cpu_naive", "",
          "block_mask: given, compute 'cpu_naive' allows none");
  refuses(run + " --tensor table.npy", "score", "--tensor: 'table.npy', allowed NAME=FILE");
  refuses(run + " --tensor table=@/none.npy", "score", "none.npy");
  refuses(run + " --tensor table=@/table.npy", "score + table[h]", "'table' with 1 subscripts, allowed: 2");
  refuses(run + " --ring zigzag --ranks 2", "score", "--score: given with --ring, allowed without it");
  refuses("run --mode both --compute cpu_naive --data @/B2_H4_Hkv2_S70_D32 --tensor rate=@/rate.npy", "score * rate",
          "captures: given, compute 'cpu_naive' allows none");
  write_file(folder_ / "small.npy", [] {
    std::string header = io::npy_header(DType::kI32, std::vector<std::int64_t>{1});
    header.replace(header.find("<i4"), 3, "<i2");
    return header + std::string(2, '\0');
  }());
  refuses(run + " --tensor t=@/small.npy", "score", "descr '<i2', allowed '<i4' (i32), '<i8' (i64), '<f4'");
}

}  // namespace
}  // namespace attend::test
