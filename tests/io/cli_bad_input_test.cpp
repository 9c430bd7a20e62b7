// Tests bad input to the real program. The exit status must be 2. One line must name the file or flag, the value and
// the allowed values. No existing file may change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>

#include "io/attend_program.hpp"
#include "io/npy.hpp"
#include "io/temp_folder.hpp"

namespace attend::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kQBytes = 1 * 2 * 8 * 4 * 4;

/// A folder with a problem and its results. The files in it must never change.
class BadInput : public testing::Test {
 protected:
  BadInput() {
    const ProgramResult made = attend("generate --batch_size 1 --num_heads 2 --seq_len 8 --head_dim 4 --output_dir @");
    const ProgramResult ran = attend("run --data @/B1_H2_S8_D4 --mode both");
    EXPECT_EQ(made.status + ran.status, 0) << made.err << ran.err;
  }

  [[nodiscard]] std::vector<std::string> arguments(std::string line) const {
    for (std::size_t at = line.find('@'); at != std::string::npos; at = line.find('@')) {
      line.replace(at, 1, folder_.path().string());
    }
    std::vector<std::string> words;
    std::istringstream stream(line);
    for (std::string word; stream >> word;) words.push_back(word);
    return words;
  }

  [[nodiscard]] ProgramResult attend(const std::string& line, const std::function<void()>& prepare = {}) const {
    return run_attend(arguments(line), prepare);
  }

  /// Expects that the program refuses the line. The message must contain `found` and `allowed`, and no file may change.
  void refuses(const std::string& line, const std::string& found, const std::string& allowed = "allowed",
               const std::function<void()>& prepare = {}) const {
    const auto before = snapshot(folder_.path());
    const ProgramResult result = attend(line, prepare);
    EXPECT_EQ(result.status, 2) << line << "\n" << result.out << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_THAT(result.err, AllOf(testing::StartsWith("attend: "), HasSubstr(found), HasSubstr(allowed))) << line;
    EXPECT_TRUE(snapshot(folder_.path()) == before) << line << " changed files";
  }

  void write_npy(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape) const {
    std::int64_t bytes = dtype_bytes(dtype);
    for (const std::int64_t size : shape) bytes *= size;
    write_file(folder_ / name, io::npy_header(dtype, shape) + std::string(bytes, '\0'));
  }

  TempFolder folder_;
  const fs::path data_ = folder_ / "B1_H2_S8_D4";
};

TEST_F(BadInput, MissingShortLongFiles) {
  for (const std::string file : {"Q.bin", "K.bin", "V.bin"}) {
    const std::string good = read_file(data_ / file);
    write_file(data_ / file, good.substr(1));
    refuses("run --data @/B1_H2_S8_D4 --mode both", file + ": 255 bytes", "allowed 256");
    write_file(data_ / file, good + "x");
    refuses("run --data @/B1_H2_S8_D4 --mode both", file + ": 257 bytes", "allowed 256");
    write_file(data_ / file, "");
    refuses("run --data @/B1_H2_S8_D4 --mode both", file + ": 0 bytes", "allowed 256");
    fs::remove(data_ / file);
    refuses("run --data @/B1_H2_S8_D4 --mode both", file, "No such file");
    fs::create_directory(data_ / file);
    refuses("run --data @/B1_H2_S8_D4 --mode both", file, "allowed regular files");
    fs::remove(data_ / file);
    write_file(data_ / file, good);
  }
}

TEST_F(BadInput, WrongOutputGradient) {
  write_file(data_ / "dO.bin", std::string(kQBytes / 2, '\0'));
  refuses("run --data @/B1_H2_S8_D4 --mode both", "dO.bin: 128 bytes", "allowed 256");
}

TEST_F(BadInput, FolderNameAndFilesDisagree) {
  fs::rename(data_, folder_ / "B1_H2_S16_D4");
  refuses("run --data @/B1_H2_S16_D4", "Q.bin: 256 bytes", "(1, 2, 16, 4) by the folder's name");
  fs::rename(folder_ / "B1_H2_S16_D4", folder_ / "B1_H2_S8_D4_bf16");
  refuses("run --data @/B1_H2_S8_D4_bf16", "Q.bin: 256 bytes", "allowed 128: bf16");
}

TEST_F(BadInput, FolderNamesThatSayNothing) {
  refuses("run --data @", "attend_test", "allowed a folder such as B2_H8_S512_D64");
  refuses("run --data @/nowhere", "nowhere", "no such folder");
  refuses("run --data @/B1_H2_S8_D4/Q.bin", "Q.bin", "not a folder");
  fs::create_directory(folder_ / "B1_H3_Hkv2_S8_D4");
  refuses("run --data @/B1_H3_Hkv2_S8_D4", "Hkv is 2", "divisor of H 3");
  fs::create_directory(folder_ / "B2147483647_H2147483647_S2147483647_D4");
  refuses("run --data @/B2147483647_H2147483647_S2147483647_D4", "2147483647", "2^62 bytes");
  fs::create_directory(folder_ / "B1_H1_S9999999999_D4");
  refuses("run --data @/B1_H1_S9999999999_D4", "S is 9999999999", "1 to 2147483647");
}

TEST_F(BadInput, MoreThanTheMemory) {
  const fs::path huge = folder_ / "B1_H1024_S1048576_D512";  // 2 TiB per tensor
  fs::create_directory(huge);
  for (const char* file : {"Q.bin", "K.bin", "V.bin"}) {
    write_file(huge / file, "");
    std::error_code error;
    fs::resize_file(huge / file, 1024LL * 1048576 * 512 * 4, error);  // a sparse file, which needs no disk space
    if (error) GTEST_SKIP() << "no sparse files here: " << error.message();
  }
  // refuses() cannot be used here, because it would read the huge files.
  const ProgramResult result = attend("run --data @/B1_H1024_S1048576_D512");
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("Q.bin"), HasSubstr("2048.0 GiB"), HasSubstr("of this machine")));
  EXPECT_FALSE(fs::exists(huge / "O.bin"));
}

TEST_F(BadInput, UnknownCompute) {
  refuses("run --data @/B1_H2_S8_D4 --compute magic", "--compute: 'magic'", "allowed auto, cpu, reference");
  refuses("bench --compute cpu,magic", "--compute: 'magic'", "allowed auto, cpu, reference");
}

TEST_F(BadInput, WhatTheBackendCannotDo) {
  refuses("run --data @/B1_H2_S8_D4 --compute cpu_naive --softcap 3", "softcap: 3", "cpu_naive");
  refuses("bench --device cuda", "--device: 'cuda'", "--compute cpu");
  refuses("run --data @/B1_H2_S8_D4 --compute naive", "--compute: 'naive' runs on a GPU", "install the NVIDIA driver");
  refuses("ladder", "--device: 'cuda'", "install the NVIDIA driver");
  EXPECT_EQ(attend("generate --batch_size 1 --num_heads 1 --seq_len 2 --head_dim 2 --dtype f64 --output_dir @").status,
            0);
  refuses("run --data @/B1_H1_S2_D2_f64 --compute cpu", "f64", "cpu");
}

TEST_F(BadInput, BackwardWithoutForward) {
  for (const std::string file : {"O.bin", "logsumexp.bin"}) {
    const std::string good = read_file(data_ / file);
    fs::remove(data_ / file);
    refuses("run --data @/B1_H2_S8_D4 --mode backward", file + ": missing", "--mode forward");
    write_file(data_ / file, good.substr(4));
    refuses("run --data @/B1_H2_S8_D4 --mode backward", file + ": ", "bytes, allowed");
    write_file(data_ / file, good);
  }
  write_npy("q.npy", DType::kF32, {1, 2, 8, 4});
  refuses("run --q @/q.npy --k @/q.npy --v @/q.npy --mode backward --output_dir @/out", "O.npy: missing",
          "--mode forward");
}

// If O and logsumexp come from a forward with other options, backward would silently compute wrong gradients. The
// program must refuse them.
TEST_F(BadInput, BackwardAfterAForwardWithOtherOptions) {
  for (const char* other : {"--causal", "--scale 0.1", "--softcap 0.5", "--window_left 2", "--dropout_p 0.5"}) {
    refuses(std::string("run --data @/B1_H2_S8_D4 --mode backward ") + other, "O.bin: row ", "--mode forward");
  }
  EXPECT_EQ(attend("run --data @/B1_H2_S8_D4 --mode backward").status, 0);
}

TEST_F(BadInput, UnknownSimdTarget) {
  const auto wish = [](const char* target) { return [target] { ::setenv("ATTEND_SIMD", target, 1); }; };
  refuses("run --data @/B1_H2_S8_D4", "ATTEND_SIMD: 'AVX9'", "allowed on this processor: ", wish("AVX9"));
  refuses("info", "ATTEND_SIMD: 'avx2'", "allowed on this processor: ", wish("avx2"));
}

TEST_F(BadInput, UnknownBf16Unit) {
  const auto wish = [] { ::setenv("ATTEND_CPU_BF16_DOT", "fast", 1); };
  refuses("run --data @/B1_H2_S8_D4", "ATTEND_CPU_BF16_DOT: 'fast'", "allowed on this processor with SIMD target",
          wish);
  refuses("info", "ATTEND_CPU_BF16_DOT: 'fast'", "allowed on this processor with SIMD target", wish);
  EXPECT_EQ(run_attend({"info"}, wish).out, "") << "nothing is said before the refusal";
}

TEST_F(BadInput, UnitsThatTheSimdTargetLacks) {
  for (const char* unit : {"1", "amx", "emulated"}) {
    const auto wish = [unit] {
      ::setenv("ATTEND_SIMD", "SSE4", 1);
      ::setenv("ATTEND_CPU_BF16_DOT", unit, 1);
    };
    refuses("run --data @/B1_H2_S8_D4", "ATTEND_CPU_BF16_DOT: '" + std::string(unit) + "'", "with SIMD target SSE4: 0",
            wish);
  }
}

TEST_F(BadInput, WordsOfTheKernelCachesVariables) {
  const auto wish = [](const char* name, const char* value) { return [=] { ::setenv(name, value, 1); }; };
  refuses("compile", "ATTEND_LOG: 'kernels'", "allowed: compile", wish("ATTEND_LOG", "kernels"));
  refuses("compile", "ATTEND_LOG: ''", "allowed: compile", wish("ATTEND_LOG", "compile,"));
  refuses("compile", "ATTEND_CACHE_LIMIT: 'plenty'", "allowed: 0, unlimited, a number of bytes",
          wish("ATTEND_CACHE_LIMIT", "plenty"));
  for (const char* action : {"show", "clear", "limit"}) {
    refuses(std::string("cache ") + action, "ATTEND_CACHE_LIMIT: '-1'", "allowed: 0", wish("ATTEND_CACHE_LIMIT", "-1"));
  }
}

TEST_F(BadInput, HeadsThatDoNotDivide) {
  refuses("generate --batch_size 1 --num_heads 8 --num_heads_kv 3 --seq_len 8 --head_dim 4 --output_dir @",
          "--num_heads_kv: 3", "allowed a divisor of --num_heads 8");
  write_npy("q.npy", DType::kF32, {1, 8, 4, 4});
  write_npy("k.npy", DType::kF32, {1, 3, 4, 4});
  refuses("run --q @/q.npy --k @/k.npy --v @/k.npy --output_dir @/out", "k.npy: num_heads_k 3",
          "divisor of num_heads_q 8");
}

TEST_F(BadInput, ShapesThatDoNotFit) {
  write_npy("q.npy", DType::kF32, {1, 2, 4, 4});
  write_npy("wide.npy", DType::kF32, {1, 2, 4, 8});
  write_npy("flat.npy", DType::kF32, {2, 4, 4});
  write_npy("double.npy", DType::kF64, {1, 2, 4, 4});
  write_npy("bool.npy", DType::kBool, {1, 2, 4, 4});
  const std::string out = " --output_dir @/out";
  refuses("run --q @/q.npy --k @/wide.npy --v @/q.npy" + out, "wide.npy: shape (1, 2, 4, 8)");
  refuses("run --q @/flat.npy --k @/q.npy --v @/q.npy" + out, "flat.npy: shape (2, 4, 4)", "allowed 4 dimensions");
  refuses("run --q @/bool.npy --k @/q.npy --v @/q.npy" + out, "bool.npy: dtype bool", "f32, f16, bf16");
  refuses("run --q @/q.npy --k @/double.npy --v @/double.npy --compute cpu" + out, "f64");
  refuses("run --q @/q.npy --k @/q.npy --v @/q.npy --mask @/q.npy" + out, "q.npy: dtype f32", "allowed bool");
  refuses("run --q @/q.npy --k @/q.npy --v @/q.npy --bias @/wide.npy" + out, "wide.npy: shape",
          "dimension 3 must be 4");
  refuses("run --q @/q.npy --k @/q.npy --v @/q.npy --dout @/wide.npy --mode both" + out, "wide.npy: shape");
}

TEST_F(BadInput, SizesOutOfRange) {
  const std::string rest = " --num_heads 2 --seq_len 8 --head_dim 4 --output_dir @";
  for (const std::string size :
       {"-1", "0", "1.5", "x", "4294967296", "9223372036854775808", "99999999999999999999999"}) {
    refuses("generate --batch_size " + size + rest, "--batch_size: '" + size + "'", "integers from 1 to 2147483647");
  }
  refuses("generate --batch_size 2147483647 --num_heads 2147483647 --seq_len 2147483647 --head_dim 512 --output_dir @",
          "--batch_size", "allowed at most 2^62 bytes");
  refuses("generate --batch_size 2147483647 --num_heads 65536 --seq_len 8192 --head_dim 1 --output_dir @",
          "B2147483647_H65536_S8192_D1: needs 13835058048839712768 bytes", "which are free there");
}

TEST_F(BadInput, NpyTypesAndOrders) {
  const std::string shape = "'shape': (1, 1, 2, 2), }";
  const auto refuses_header = [&](const std::string& dictionary, const std::string& found) {
    std::string bytes = io::npy_header(DType::kF32, std::vector<std::int64_t>{1, 1, 2, 2});
    const std::size_t begin = 10;
    std::string text = dictionary;
    text.resize(bytes.size() - begin - 1, ' ');
    write_file(folder_ / "x.npy", bytes.substr(0, begin) + text + "\n" + std::string(16, '\0'));
    refuses("run --q @/x.npy --k @/x.npy --v @/x.npy --output_dir @/out", "x.npy: .npy header has " + found);
  };
  refuses_header("{'descr': '>f4', 'fortran_order': False, " + shape, "descr '>f4'");
  refuses_header("{'descr': '<i4', 'fortran_order': False, " + shape, "descr '<i4'");
  refuses_header("{'descr': '|O', 'fortran_order': False, " + shape, "descr '|O'");
  refuses_header("{'descr': '<f4', 'fortran_order': True, " + shape, "fortran_order True");
  refuses_header("{'descr': [('a', '<f4')], 'fortran_order': False, " + shape, "descr of a record type");
  write_file(folder_ / "x.npy", "not a file of numbers");
  refuses("run --q @/x.npy --k @/x.npy --v @/x.npy --output_dir @/out", "x.npy: does not start as a .npy file");
}

TEST_F(BadInput, PlacesThatCannotBeWritten) {
  write_file(folder_ / "file", "kept");
  refuses("generate --batch_size 1 --num_heads 1 --seq_len 8 --head_dim 4 --output_dir @/file", "file/B1_H1_S8_D4",
          "folder");
  refuses("generate --batch_size 1 --num_heads 1 --seq_len 8 --head_dim 4 --output_dir /proc/nowhere", "/proc/nowhere",
          "folder");
  write_npy("q.npy", DType::kF32, {1, 2, 8, 4});
  refuses("run --q @/q.npy --k @/q.npy --v @/q.npy --output_dir @/file/out", "file/out", "folder");
  for (const char* flag : {"--json", "--csv"}) {
    refuses(std::string("run --data @/B1_H2_S8_D4 ") + flag + " @/file/r", "file/r", "Not a directory");
    refuses(std::string("run --data @/B1_H2_S8_D4 ") + flag + " @/none/r", "none/r", "No such file");
    refuses(std::string("run --data @/B1_H2_S8_D4 ") + flag + " @", "attend_test", "allowed a file");
    refuses(std::string("bench ") + flag + " @/file/r", "file/r", "Not a directory");
  }
  refuses("run --data @/B1_H2_S8_D4 --json @/same --csv @/same", "same", "two outputs");
  // A folder has the name of a result file. The program must detect this before it replaces any file.
  fs::remove(data_ / "dV.bin");
  fs::create_directory(data_ / "dV.bin");
  refuses("run --data @/B1_H2_S8_D4 --mode both --causal", "dV.bin", "allowed a file");
}

TEST_F(BadInput, GridFiles) {
  refuses("bench --grid @/none.json", "none.json", "allowed seed, paper, gpt3, masks or a JSON file");
  write_file(folder_ / "g.json", R"([{"B": 1, "H": 2, "S": -8, "D": 4}])");
  refuses("bench --grid @/g.json", "g.json: entry 1: S is -8", "from 1 to 2147483647");
  write_file(folder_ / "g.json", R"([{"B": 2147483647, "H": 2147483647, "S": 2147483647, "D": 512}])");
  refuses("bench --grid @/g.json", "B2147483647", "of this machine");
}

/// Makes writes fail once a file has this many bytes, as on a full disk.
void limit_file_size(rlim_t bytes) {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

TEST_F(BadInput, WritesThatFailMidway) {
  refuses("generate --batch_size 1 --num_heads 2 --seq_len 8 --head_dim 4 --seed 1 --output_dir @", "Q.bin",
          "File too large", [] { limit_file_size(100); });
  refuses("run --data @/B1_H2_S8_D4 --mode both --causal", "O.bin", "File too large", [] { limit_file_size(100); });
#if !defined(__clang__)  // LLVM's OpenMP runtime writes a 1 KiB file to /dev/shm at start, which the limit would forbid
  // O.bin is smaller than the limit. The JSON file, whose length is not known in advance, is larger.
  refuses("run --data @/B1_H2_S8_D4 --mode both --causal --json @/r.json", "r.json", "File too large",
          [] { limit_file_size(kQBytes); });
#endif
}

/// A small memory disk that is mounted on a folder, only for this process. Needs root.
class SmallDisk {
 public:
  SmallDisk(const fs::path& folder, const char* options) : folder_(folder) {
    mounted_ = ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
               ::mount("tmpfs", folder.c_str(), "tmpfs", 0, options) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  [[nodiscard]] bool mounted() const { return mounted_; }
  bool make_read_only() { return ::mount(nullptr, folder_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0; }

 private:
  fs::path folder_;
  bool mounted_ = false;
};

TEST_F(BadInput, FullDisk) {
  fs::create_directory(folder_ / "disk");
  SmallDisk disk(folder_ / "disk", "size=64k");
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a tmpfs here (not root): WritesThatFailMidway covers the rest";
  write_file(folder_ / "disk" / "kept", "kept");
  refuses("generate --batch_size 1 --num_heads 8 --seq_len 512 --head_dim 64 --output_dir @/disk",
          "disk/B1_H8_S512_D64: needs 3145728 bytes", "which are free there");
  // The disk has space for one tensor, but not for all three.
  refuses("generate --batch_size 1 --num_heads 1 --seq_len 160 --head_dim 64 --output_dir @/disk",
          "needs 122880 bytes, allowed 61440", "which are free there");
  write_npy("q.npy", DType::kF32, {1, 2, 64, 64});
  refuses("run --q @/q.npy --k @/q.npy --v @/q.npy --mode both --output_dir @/disk/out", "disk/out/",
          "which are free there");
  EXPECT_EQ(attend("run --q @/q.npy --k @/q.npy --v @/q.npy --output_dir @/disk/out").status, 0);
  EXPECT_TRUE(fs::exists(folder_ / "disk" / "out" / "O.npy"));
}

TEST_F(BadInput, ReadOnlyDisk) {
  fs::create_directory(folder_ / "disk");
  SmallDisk disk(folder_ / "disk", "size=1m");
  if (!disk.mounted()) GTEST_SKIP() << "cannot mount a tmpfs here (not root)";
  fs::copy(data_, folder_ / "disk" / "B1_H2_S8_D4", fs::copy_options::recursive);
  ASSERT_TRUE(disk.make_read_only());
  refuses("generate --batch_size 1 --num_heads 1 --seq_len 8 --head_dim 4 --output_dir @/disk", "disk/B1_H1_S8_D4",
          "Read-only file system");
  refuses("run --data @/disk/B1_H2_S8_D4 --mode both", "O.bin", "Read-only file system");
}

TEST_F(BadInput, FullStdout) {
  const ProgramResult result = attend("info", [] { (void)!::freopen("/dev/full", "w", stdout); });
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("stdout: cannot write"));
}

TEST_F(BadInput, FullStderrIsNoReasonToCrash) {
  EXPECT_EQ(attend("run", [] { (void)!::freopen("/dev/full", "w", stderr); }).status, 2);
}

TEST_F(BadInput, StrangeNamesStayOnOneLine) {
  const ProgramResult result = run_attend({"run", "--data", "a\nb\r\x1b[31mc"});
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
  EXPECT_EQ(result.err.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace attend::test
