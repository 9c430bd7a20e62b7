// Tests the program as its users see it: input files, output files, tables, JSON, CSV and exit status.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/attend_program.hpp"
#include "io/npy.hpp"
#include "io/random_normal.hpp"
#include "io/temp_folder.hpp"

namespace attend::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class Cli : public testing::Test {
 protected:
  /// Runs the program with the words of `line`, in which "@" is replaced by the test's folder.
  ProgramResult attend(std::string line) const {
    for (std::size_t at = line.find('@'); at != std::string::npos; at = line.find('@')) {
      line.replace(at, 1, folder_.path().string());
    }
    return run_attend_line(line);
  }

  ProgramResult succeed(const std::string& line) const {
    const ProgramResult result = attend(line);
    EXPECT_EQ(result.status, 0) << line << "\n" << result.out << result.err;
    EXPECT_EQ(result.err, "");
    return result;
  }

  void generate(const std::string& more = "") const {
    succeed("generate --batch_size 2 --num_heads 4 --seq_len 48 --head_dim 16 --output_dir @ " + more);
  }

  [[nodiscard]] json json_file(const std::string& name) const { return json::parse(read_file(folder_ / name)); }

  [[nodiscard]] std::vector<float> floats(const fs::path& path) const {
    const std::string bytes = read_file(path);
    std::vector<float> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), values.size() * 4);
    return values;
  }

  TempFolder folder_;
  const fs::path plain_ = folder_ / "B2_H4_S48_D16";
};

TEST_F(Cli, GenerateWritesTheDocumentedBytes) {
  generate("--seed 5");
  std::vector<float> expected(2 * 4 * 48 * 16);
  for (const auto& [file, stream] :
       {std::pair{"Q.bin", io::NormalStream::kQ}, {"K.bin", io::NormalStream::kK}, {"V.bin", io::NormalStream::kV}}) {
    io::fill_normal(expected, 5, stream, 0);
    EXPECT_EQ(floats(plain_ / file), expected) << file;
  }
  EXPECT_EQ(snapshot(folder_.path()).size(), 4U);  // number of entries: the folder and its three files
}

TEST_F(Cli, GenerateTwiceGivesTheSameBytes) {
  generate();
  const auto first = snapshot(folder_.path());
  generate();
  EXPECT_EQ(snapshot(folder_.path()), first);
  generate("--seed 43");
  EXPECT_NE(snapshot(folder_.path()), first);
}

TEST_F(Cli, HalfTypesAreRoundingsOfTheSameValues) {
  generate();
  generate("--dtype bf16");
  const std::string narrow = read_file(folder_ / "B2_H4_S48_D16_bf16" / "Q.bin");
  const std::vector<float> wide = floats(plain_ / "Q.bin");
  ASSERT_EQ(narrow.size(), wide.size() * 2);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(reinterpret_cast<char*>(&bits) + 2, narrow.data() + 2 * i, 2);
    float value = 0;
    std::memcpy(&value, &bits, 4);
    ASSERT_NEAR(value, wide[i], std::abs(wide[i]) * 0x1p-8);
  }
}

TEST_F(Cli, RunBothWithCheck) {
  generate();
  const ProgramResult result =
      succeed("run --data @/B2_H4_S48_D16 --mode both --causal --check --json @/r.json --csv @/r.csv");
  EXPECT_THAT(result.out, HasSubstr("backend  cpu (chosen by auto; no GPU: none is visible)"));
  EXPECT_THAT(result.out, HasSubstr("PASS"));
  EXPECT_EQ(fs::file_size(plain_ / "O.bin"), fs::file_size(plain_ / "Q.bin"));
  EXPECT_EQ(fs::file_size(plain_ / "logsumexp.bin"), 2U * 4 * 48 * 4);
  for (const char* file : {"dQ.bin", "dK.bin", "dV.bin"})
    EXPECT_EQ(fs::file_size(plain_ / file), fs::file_size(plain_ / "Q.bin"));

  const json rows = json_file("r.json");
  ASSERT_EQ(rows.size(), 2U);
  for (const json& row : rows) {
    for (const char* key : {"compute", "mode", "device", "dtype", "B", "H", "Hkv", "Sq", "Sk", "D", "causal", "ms",
                            "tflops", "gbps", "max_abs_err", "mean_abs_err", "mse", "max_rel_err", "passed"}) {
      EXPECT_TRUE(row.contains(key)) << key;
    }
    EXPECT_EQ(row["B"], 2);
    EXPECT_EQ(row["Sk"], 48);
    EXPECT_EQ(row["causal"], true);
    EXPECT_EQ(row["passed"], true);
    EXPECT_GT(row["ms"], 0);
    EXPECT_GT(row["max_abs_err"], 0);
    EXPECT_LT(row["max_abs_err"], 1e-5);
  }
  EXPECT_EQ(rows[0]["mode"], "forward");
  EXPECT_EQ(rows[1]["mode"], "backward");
  EXPECT_EQ(rows[1]["tensors"].size(), 3U);
  const std::string csv = read_file(folder_ / "r.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  EXPECT_THAT(csv, testing::StartsWith("compute,mode,device,dtype,B,H,Hkv,Sq,Sk,D,"));
}

TEST_F(Cli, BackwardAloneContinuesAForward) {
  generate("--with_dout");
  succeed("run --data @/B2_H4_S48_D16 --mode both");
  const auto both = snapshot(plain_);
  for (const char* file : {"dQ.bin", "dK.bin", "dV.bin"}) fs::remove(plain_ / file);
  succeed("run --data @/B2_H4_S48_D16 --mode backward --check");
  EXPECT_EQ(snapshot(plain_), both);
}

TEST_F(Cli, MissingOutputGradientIsOnes) {
  generate();
  succeed("run --data @/B2_H4_S48_D16 --mode both");
  const auto without = snapshot(plain_);
  std::string ones;
  for (int i = 0; i < 2 * 4 * 48 * 16; ++i) ones += std::string("\0\0\x80\x3f", 4);
  write_file(plain_ / "dO.bin", ones);
  succeed("run --data @/B2_H4_S48_D16 --mode both");
  auto with = snapshot(plain_);
  with.erase((plain_ / "dO.bin").string());
  EXPECT_EQ(with, without);
}

TEST_F(Cli, EveryBackendPassesEveryOption) {
  generate("--num_heads_kv 2 --seq_len_k 61 --head_dim_v 24 --with_dout");
  const std::string data = "run --data @/B2_H4_Hkv2_Sq48_Sk61_D16_Dv24 --mode both --check --compute ";
  for (const char* compute : {"cpu", "reference"}) {
    for (const char* options : {"", " --causal", " --window_left 5 --window_right 3", " --softcap 2 --scale -0.3",
                                " --dropout_p 0.3 --seed 9 --offset 4"}) {
      succeed(data + compute + options);
    }
  }
  succeed(data + "cpu_naive --causal");
}

// Each result is checked with the tolerance of its dtype. Here dK and dV are float32 in a float64 problem.
TEST_F(Cli, MixedTypesPassTheirCheck) {
  generate();
  const std::vector<std::int64_t> shape = {2, 4, 48, 16};
  std::vector<double> q;
  for (const float x : floats(plain_ / "Q.bin")) q.push_back(x);
  write_file(folder_ / "Q.npy", io::npy_header(DType::kF64, shape) +
                                    std::string(reinterpret_cast<const char*>(q.data()), q.size() * sizeof(double)));
  for (const char* name : {"K", "V"}) {
    write_file(folder_ / (std::string(name) + ".npy"),
               io::npy_header(DType::kF32, shape) + read_file(plain_ / (std::string(name) + ".bin")));
  }
  succeed("run --q @/Q.npy --k @/K.npy --v @/V.npy --mode both --check --output_dir @/out");
}

TEST_F(Cli, HalfTypesPassTheirCheck) {
  for (const char* dtype : {"f16", "bf16"}) {
    generate(std::string("--with_dout --dtype ") + dtype);
    succeed(std::string("run --data @/B2_H4_S48_D16_") + dtype + " --mode both --causal --check");
  }
}

TEST_F(Cli, WrongResultsFailTheCheck) {
  generate();
  succeed("run --data @/B2_H4_S48_D16");
  std::string o = read_file(plain_ / "O.bin");
  // Bytes of one head; the damage is in head 2, because `run` recomputes rows of head 1.
  const std::size_t head = 48 * 16 * 4;
  // The loop flips the sign of each element.
  for (std::size_t i = head + 3; i < 2 * head; i += 4) o[i] = static_cast<char>(o[i] ^ 0x80);
  write_file(plain_ / "O.bin", o);
  const ProgramResult result = attend("run --data @/B2_H4_S48_D16 --mode backward --check --json @/r.json");
  EXPECT_EQ(result.status, 1);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("FAIL"));
  EXPECT_EQ(json_file("r.json")[0]["passed"], false);
}

TEST_F(Cli, NanInTheDataIsData) {
  generate();
  std::string v = read_file(plain_ / "V.bin");
  v.replace(0, 4, std::string("\0\0\xc0\x7f", 4));
  write_file(plain_ / "V.bin", v);
  const ProgramResult result = succeed("run --data @/B2_H4_S48_D16 --mode both --causal --check");
  EXPECT_THAT(result.out, HasSubstr("PASS (note: V has 1 NaN)"));
  const std::vector<float> o = floats(plain_ / "O.bin");
  ASSERT_FALSE(o.empty());
  EXPECT_TRUE(std::isnan(o[0]));
}

TEST_F(Cli, NpyGivesTheSameBitsAsFolders) {
  generate("--with_dout");
  const std::vector<std::int64_t> shape = {2, 4, 48, 16};
  for (const char* name : {"Q", "K", "V", "dO"}) {
    write_file(folder_ / (std::string(name) + ".npy"),
               io::npy_header(DType::kF32, shape) + read_file(plain_ / (std::string(name) + ".bin")));
  }
  succeed("run --data @/B2_H4_S48_D16 --mode both");
  succeed("run --q @/Q.npy --k @/K.npy --v @/V.npy --dout @/dO.npy --mode both --check --output_dir @/new/out");
  for (const char* name : {"O", "logsumexp", "dQ", "dK", "dV"}) {
    const std::string npy = read_file(folder_ / "new" / "out" / (std::string(name) + ".npy"));
    const auto dims = std::string(name) == "logsumexp" ? std::vector<std::int64_t>{2, 4, 48} : shape;
    EXPECT_EQ(npy, io::npy_header(DType::kF32, dims) + read_file(plain_ / (std::string(name) + ".bin"))) << name;
  }
  const auto before = snapshot(folder_ / "new");
  succeed("run --q @/Q.npy --k @/K.npy --v @/V.npy --dout @/dO.npy --mode backward --check --output_dir @/new/out");
  EXPECT_EQ(snapshot(folder_ / "new"), before);
}

TEST_F(Cli, BiasMaskAndSlopes) {
  generate("--with_dout");
  std::string bias(48 * 48 * 4, '\0');
  std::vector<float> values(48 * 48);
  io::fill_normal(values, 1, io::NormalStream::kQ, 0);
  std::memcpy(bias.data(), values.data(), bias.size());
  write_file(folder_ / "bias.npy", io::npy_header(DType::kF32, std::vector<std::int64_t>{48, 48}) + bias);
  std::string mask(48 * 48, '\1');
  for (std::size_t i = 0; i < mask.size(); i += 3) mask[i] = '\0';
  write_file(folder_ / "mask.npy", io::npy_header(DType::kBool, std::vector<std::int64_t>{1, 1, 48, 48}) + mask);
  write_file(folder_ / "slopes.npy", io::npy_header(DType::kF32, std::vector<std::int64_t>{4}) + bias.substr(0, 16));
  succeed(
      "run --data @/B2_H4_S48_D16 --mode both --check --bias @/bias.npy --mask @/mask.npy --alibi_slopes @/slopes.npy");
  EXPECT_EQ(io::read_npy(plain_ / "dbias.npy", io::NpyRank::kExact).shape(), (Shape{1, 1, 48, 48}));
}

TEST_F(Cli, Sinks) {
  generate("--with_dout");
  const std::array<float, 8> values = {-1.5F, 0, 2, -std::numeric_limits<float>::infinity(), 1, 3, -0.5F, 0.25F};
  const auto write = [&](const char* name, const std::vector<std::int64_t>& shape) {
    const std::size_t count = shape.size() == 1 ? 4 : 8;
    write_file(folder_ / name, io::npy_header(DType::kF32, shape) +
                                   std::string(reinterpret_cast<const char*>(values.data()), count * sizeof(float)));
  };
  write("sinks.npy", {4});
  write("of_each.npy", {2, 4});
  const std::string data = "run --data @/B2_H4_S48_D16 --check --causal --sinks @/";
  succeed(data + "sinks.npy");
  EXPECT_FALSE(fs::exists(plain_ / "dsinks.npy"));
  succeed(data + "sinks.npy --mode backward");
  const auto shape = [&] { return io::read_npy(plain_ / "dsinks.npy", io::NpyRank::kExact).shape(); };
  EXPECT_EQ(shape(), (Shape{1, 4, 1, 1}));
  succeed(data + "of_each.npy --mode both --compute reference");
  EXPECT_EQ(shape(), (Shape{2, 4, 1, 1}));
  for (const float x : floats(plain_ / "O.bin")) ASSERT_TRUE(std::isfinite(x));
  const ProgramResult refused = attend(data + "sinks.npy --compute cpu_naive");
  EXPECT_NE(refused.status, 0);
  EXPECT_THAT(refused.err, HasSubstr("sinks.npy: given, compute 'cpu_naive' allows none"));
  const ProgramResult explained = succeed("info --explain 2,4,48,16 --device cpu --sinks");
  EXPECT_THAT(explained.out, HasSubstr("no: sinks: given"));
}

TEST_F(Cli, Bench) {
  write_file(folder_ / "grid.json", R"([{"B":1,"H":2,"S":16,"D":8},{"B":1,"H":4,"Hkv":2,"Sq":3,"Sk":9,"D":8}])");
  succeed(
      "bench --grid @/grid.json --compute auto,reference --repeat 2 --json @/b.json --csv @/b.csv --causal --dtype "
      "bf16");
  const json rows = json_file("b.json");
  ASSERT_EQ(rows.size(), 8U);
  for (const json& row : rows) {
    EXPECT_GT(row["ms"], 0);
    EXPECT_FALSE(row.contains("passed"));
    EXPECT_EQ(row["dtype"], "bf16");
  }
  EXPECT_EQ(rows[1]["compute"], "reference");  // the rows of the two backends alternate
  EXPECT_EQ(rows[7]["Hkv"], 2);
}

TEST_F(Cli, BenchOfOneProblem) {
  succeed("bench --problem 1,4,24,8 --num_heads_kv 2 --compute cpu,reference --repeat 2 --causal --json @/b.json");
  const json rows = json_file("b.json");
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0]["Hkv"], 2);
  EXPECT_EQ(rows[0]["dtype"], "f32");
}

TEST_F(Cli, CacheShowsClearsAndLimits) {
  const auto cache = [this](const std::vector<std::string>& arguments, const char* limit) {
    return run_attend(arguments, [this, limit] {
      ::setenv("ATTEND_CACHE_DIR", (folder_ / "cache").c_str(), 1);
      ::setenv("ATTEND_CACHE_LIMIT", limit, 1);
    });
  };
  const fs::path version = folder_ / "cache" / "0.1.0";
  const std::string key(32, 'a');
  fs::create_directories(version);
  write_file(version / ("sm90_forward-sm_90a-" + key + ".bin"), std::string(2048, 'x'));
  write_file(version / "notes.txt", "somebody's");
  const ProgramResult shown = cache({"cache"}, "2GiB");
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out,
              testing::AllOf(HasSubstr((folder_ / "cache").string()), HasSubstr("limit     2.0 GiB\n"),
                             HasSubstr("2.0 KiB in 1 file\n"), HasSubstr("sm90_forward"), HasSubstr("sm_90a")));
  const json object = json::parse(cache({"cache", "--json"}, "unlimited").out);
  EXPECT_EQ(object["bytes"], 2048);
  EXPECT_TRUE(object["limit_bytes"].is_null());
  EXPECT_EQ(object["kernels"][0]["name"], "sm90_forward");
  EXPECT_THAT(cache({"cache", "limit"}, "512MiB").out, testing::StartsWith("512.0 MiB (ATTEND_CACHE_LIMIT)\n"));
  EXPECT_THAT(cache({"cache", "limit"}, "").out, testing::StartsWith("1.0 GiB (the default)\n"));
  EXPECT_THAT(cache({"cache", "clear"}, "").out, HasSubstr("removed 2.0 KiB in 1 file from"));
  EXPECT_THAT(cache({"cache"}, "").out, HasSubstr("0 bytes in 0 files"));
  EXPECT_TRUE(fs::exists(version / "notes.txt"));
}

TEST_F(Cli, Info) {
  EXPECT_THAT(succeed("info").out, HasSubstr("backends"));
  const json object = json::parse(succeed("info --json").out);
  for (const char* key : {"version", "cpu", "simd", "bf16", "threads", "devices", "backends"})
    EXPECT_TRUE(object.contains(key)) << key;
  EXPECT_GE(object["threads"], 1);
  EXPECT_EQ(object["devices"][0]["type"], "cpu");
}

TEST_F(Cli, HelpHasExamples) {
  for (const char* command : {"", "generate ", "run ", "bench "}) {
    EXPECT_THAT(succeed(std::string(command) + "--help").out, HasSubstr("Examples:"));
  }
  succeed("info --help");
  EXPECT_THAT(succeed("--version").out, testing::StartsWith("attend "));
}

TEST_F(Cli, NoProgressBarWithoutATerminal) {
  const ProgramResult result =
      succeed("generate --batch_size 8 --num_heads 16 --seq_len 512 --head_dim 64 --output_dir @");
  EXPECT_EQ(result.out.find('\r'), std::string::npos);
}

}  // namespace
}  // namespace attend::test
