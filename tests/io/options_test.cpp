// Tests which options the parser accepts. Every refusal must name the flag, the value and the allowed values.
#include "parser/parse.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/score_options.hpp"
#include "workload/grid.hpp"

namespace attend::test {
namespace {

using cli::Mode;
using testing::AllOf;
using testing::HasSubstr;

/// Splits a line at blanks.
std::vector<std::string> words(const std::string& line) {
  std::vector<std::string> out;
  std::istringstream stream(line);
  for (std::string word; stream >> word;) out.push_back(word);
  return out;
}

template <class Options>
Options parsed(const std::string& line) {
  return std::get<Options>(cli::parse(words(line)));
}

std::string refusal(const std::string& line) {
  try {
    (void)cli::parse(words(line));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "nothing was refused";
}

TEST(Options, Generate) {
  const auto plain = parsed<cli::GenerateOptions>("generate --batch_size 2 --num_heads 8 --seq_len 512 --head_dim 64");
  EXPECT_EQ(io::folder_name(plain.spec), "B2_H8_S512_D64");
  EXPECT_EQ(plain.seed, 42U);
  EXPECT_EQ(plain.output_dir, "./data");
  const auto full = parsed<cli::GenerateOptions>(
      "generate --batch_size 2 --num_heads 8 --num_heads_kv 2 --seq_len 5 --seq_len_k 7 --head_dim 64 --head_dim_v=32 "
      "--dtype bf16 --seed 18446744073709551615 --with_dout --output_dir x");
  EXPECT_EQ(io::folder_name(full.spec), "B2_H8_Hkv2_Sq5_Sk7_D64_Dv32_bf16");
  EXPECT_EQ(full.seed, ~0ULL);
  EXPECT_TRUE(full.with_dout);
}

TEST(Options, GenerateWithoutArgumentsIsTheExample) {
  EXPECT_EQ(io::folder_name(parsed<cli::GenerateOptions>("generate").spec), "B2_H8_S512_D64");
  EXPECT_EQ(io::folder_name(parsed<cli::GenerateOptions>("generate --num_heads 6").spec), "B2_H6_S512_D64");
}

TEST(Options, HyphensAndUnderscoresAreOne) {
  const auto generate =
      parsed<cli::GenerateOptions>("generate --batch-size 3 --head-dim=32 --output-dir a-b --with-dout");
  EXPECT_EQ(io::folder_name(generate.spec), "B3_H8_S512_D32");
  EXPECT_EQ(generate.output_dir, "a-b");
  EXPECT_TRUE(generate.with_dout);
  EXPECT_EQ(parsed<cli::RunOptions>("run --data d --window-left -1 --json=a-b --compute cpu-naive").compute,
            "cpu_naive");
  EXPECT_EQ(parsed<cli::RunOptions>("run --data d --json=a-b").json, "a-b");
}

TEST(Options, NamesOfOtherProjects) {
  const std::pair<const char*, const char*> aliases[] = {{"vanilla", "standard"},
                                                         {"naive-attn", "naive"},
                                                         {"flash_naive", "fa1"},
                                                         {"kernel_mma", "mma"},
                                                         {"kernel_mma_swizzle", "mma_swizzle"},
                                                         {"kernel-mma-qreg", "mma_qreg"},
                                                         {"kernel_mma_qreg_async", "mma_qreg_async"}};
  for (const auto& [alias, name] : aliases) {
    EXPECT_EQ(parsed<cli::RunOptions>(std::string("run --data d --compute ") + alias).compute, name);
    EXPECT_EQ(parsed<cli::BenchOptions>(std::string("bench --compute cpu,") + alias).computes.back(), name);
    EXPECT_EQ(parsed<cli::LadderOptions>(std::string("ladder --compute ") + alias).computes.front(), name);
  }
}

TEST(Options, UnknownNamesAreAnsweredWithTheNearest) {
  const std::pair<const char*, const char*> cases[] = {
      {"run --data d --compute referense", "did you mean reference?"},
      {"run --data d --compute ref", "did you mean reference?"},
      {"bench --compute cpu,mma_swizle", "did you mean mma_swizzle?"},
      {"generate --batch 3", "--batch: no flag of attend generate; did you mean --batch_size?"},
      {"generate --heads 3", "--heads: no flag of attend generate"},
      {"run --data d --casual", "did you mean --causal?"},
      {"benhc", "did you mean bench?"}};
  for (const auto& [line, answer] : cases) EXPECT_THAT(refusal(line), HasSubstr(answer)) << line;
  EXPECT_THAT(refusal("run --data d --compute zzzzzz"), testing::Not(HasSubstr("did you mean")));
}

TEST(Options, Run) {
  const auto plain = parsed<cli::RunOptions>("run --data d");
  EXPECT_EQ(plain.compute, "auto");
  EXPECT_EQ(plain.mode, Mode::kForward);
  EXPECT_FALSE(plain.attention.scale.has_value());
  const auto full = parsed<cli::RunOptions>(
      "run --compute reference --mode both --data d --causal --window_left 3 --window_right -1 --scale -0.5 --softcap "
      "30 "
      "--dropout_p 0.1 --seed 7 --offset 9 --check --repeat 3 --threads 2 --json j --csv c --bias b --mask m "
      "--alibi_slopes s --sinks t");
  EXPECT_EQ(full.compute, "reference");
  EXPECT_EQ(full.mode, Mode::kBoth);
  EXPECT_TRUE(full.attention.causal && full.check);
  EXPECT_EQ(full.attention.scale, -0.5);
  EXPECT_EQ(full.attention.params("").softcap, 30);
  EXPECT_EQ(full.attention.params("").dropout_p, 0.1);
  EXPECT_EQ(full.attention.window_left, 3);
  EXPECT_EQ(full.score_tensors.at(core::tensor_index(ScoreMod::kSinks)), "t");
  EXPECT_EQ(full.attention.seed, 7U);
  EXPECT_EQ(full.attention.offset, 9U);
  EXPECT_EQ(full.repeat, 3);
  EXPECT_EQ(full.threads, 2);
}

TEST(Options, Explain) {
  const auto plain = parsed<cli::ExplainOptions>("info --explain 2,16,128,64");
  for (const bool given : plain.score_tensors) EXPECT_FALSE(given);
  const auto full = parsed<cli::ExplainOptions>("info --explain 2,16,128,64 --sinks");
  for (std::size_t i = 0; i < full.score_tensors.size(); ++i) {
    EXPECT_EQ(full.score_tensors.at(i), i == core::tensor_index(ScoreMod::kSinks)) << i;
  }
}

TEST(Options, Bench) {
  const auto plain = parsed<cli::BenchOptions>("bench");
  EXPECT_EQ(plain.grid, "seed");
  EXPECT_EQ(plain.mode, Mode::kBoth);
  EXPECT_EQ(plain.computes, std::vector<std::string>{"auto"});
  const auto full =
      parsed<cli::BenchOptions>("bench --device cpu --grid f --compute cpu,reference --mode backward --dtype f16");
  EXPECT_EQ(full.computes, (std::vector<std::string>{"cpu", "reference"}));
  EXPECT_EQ(full.mode, Mode::kBackward);
  EXPECT_EQ(full.dtype, DType::kF16);
}

TEST(Options, BenchTakesOneProblemInsteadOfAGrid) {
  const auto plain = parsed<cli::BenchOptions>("bench --problem 2,16,128,64");
  ASSERT_TRUE(plain.problem.has_value());
  EXPECT_EQ(io::folder_name(*plain.problem), "B2_H16_S128_D64");  // the default dtype is f32, as with a grid
  EXPECT_EQ(plain.dtype, DType::kF32);
  const auto full = parsed<cli::BenchOptions>(
      "bench --problem 1,8,3,64 --num_heads_kv 2 --seq_len_k 9 --head_dim_v 32 --dtype bf16 --causal --softcap 5");
  EXPECT_EQ(io::folder_name(*full.problem), "B1_H8_Hkv2_Sq3_Sk9_D64_Dv32_bf16");
  EXPECT_TRUE(full.attention.causal);
  EXPECT_EQ(full.attention.params("").softcap, 5);
  EXPECT_FALSE(parsed<cli::BenchOptions>("bench --softcap 5").problem.has_value());
  const auto masks = parsed<cli::BenchOptions>("bench --grid masks --problem 2,16,128,64 --dtype f16");
  EXPECT_EQ(masks.grid, "masks");
  EXPECT_EQ(io::folder_name(masks.problem.value()), "B2_H16_S128_D64_f16");
  EXPECT_TRUE(masks.dtype_given);
  EXPECT_FALSE(plain.dtype_given);
  EXPECT_EQ(parsed<cli::BenchOptions>("bench --softcap 5").attention.params("").softcap, 5);
}

TEST(Options, CacheShowsUnlessToldOtherwise) {
  using Action = cli::CacheOptions::Action;
  EXPECT_EQ(parsed<cli::CacheOptions>("cache").action, Action::kShow);
  EXPECT_EQ(parsed<cli::CacheOptions>("cache show").action, Action::kShow);
  EXPECT_EQ(parsed<cli::CacheOptions>("cache clear").action, Action::kClear);
  EXPECT_EQ(parsed<cli::CacheOptions>("cache limit").action, Action::kLimit);
  EXPECT_TRUE(parsed<cli::CacheOptions>("cache --json").json);
}

TEST(Options, HelpAndVersion) {
  for (const char* line :
       {"--help", "-h", "--version", "run --help", "generate -h", "bench --help", "compile --help", "info --help"}) {
    EXPECT_FALSE(parsed<cli::Message>(line).text.empty()) << line;
  }
  for (const char* command : {"generate", "run", "bench", "compile", "ring", "cache"}) {
    EXPECT_THAT(parsed<cli::Message>(std::string(command) + " --help").text, HasSubstr("Examples:"));
  }
}

TEST(Options, RefusalsNameFlagValueAndWhatIsAllowed) {
  const std::string generate = "generate --num_heads 8 --seq_len 4 --head_dim 8 ";
  const std::vector<std::array<std::string, 3>> cases = {
      {generate + "--batch_size -1", "--batch_size: '-1'", "from 1 to 2147483647"},
      {generate + "--batch_size 0", "--batch_size: '0'", "from 1"},
      {generate + "--batch_size 2147483648", "'2147483648'", "to 2147483647"},
      {generate + "--batch_size 99999999999999999999", "'99999999999999999999'", "to 2147483647"},
      {generate + "--batch_size 1e3", "'1e3'", "integers"},
      {generate + "--batch_size 2.5", "'2.5'", "integers"},
      {generate + "--batch_size 0x10", "'0x10'", "integers"},
      {generate + "--batch_size 1 --num_heads_kv 3", "--num_heads_kv: 3", "divisor of --num_heads 8"},
      {generate + "--batch_size 1 --dtype int8", "--dtype: 'int8'", "f32, f16, bf16"},
      {generate + "--batch_size 1 --seed -1", "--seed: '-1'", "0 to 2^64 - 1"},
      {"generate --num_heads 2147483647 --seq_len 2147483647 --head_dim 512 --batch_size 2147483647", "--batch_size",
       "2^62 bytes"},
      {"generate --num_heads 1 --seq_len 1 --head_dim 513 --batch_size 1", "--head_dim: '513'", "1 to 512"},
      {"run --data d --compute nope", "--compute: 'nope'", "auto, cpu, reference"},
      {"run --data d --mode sideways", "--mode: 'sideways'", "forward, backward, both"},
      {"run --data d --window_left -2", "--window_left: '-2'", "from -1"},
      {"run --data d --scale inf", "--scale: 'inf'", "finite"},
      {"run --data d --softcap -1", "--softcap: '-1'", ">= 0"},
      {"run --data d --dropout_p 1", "--dropout_p: '1'", "< 1"},
      {"run --data d --dropout_p nan", "--dropout_p: 'nan'", "< 1"},
      {"run --data d --repeat 0", "--repeat: '0'", "from 1"},
      {"run --data d --threads 0", "--threads: '0'", "from 1"},
      {"run --data d --q q.npy", "--q", "without it"},
      {"run", "--data", "--output_dir"},
      {"run --q q --k k --output_dir x", "--v", "--data DIR"},
      {"run --data d --nonsense", "--nonsense", "attend run --help"},
      {"run --data d --seed 1 --seed 2", "--seed", "attend run --help"},
      {"bench --compute cpu,nope", "--compute: 'nope'", "auto, cpu, reference"},
      {"bench --compute cpu,", "--compute: ''", "auto, cpu, reference"},
      {"bench --device tpu", "--device: 'tpu'", "auto, cpu, cuda"},
      {"bench --device tpu", "--device: 'tpu'", "cpu, cuda"},
      {"transmogrify", "command: 'transmogrify'", "generate, run, bench, compile, ladder, sweep, ring, cache, info"},
      {"", "no command", "generate, run, bench, compile, ladder, sweep, ring, cache, info"},
      {"bench --problem 1,2,3", "--problem: '1,2,3'", "B,H,S,D, four integers"},
      {"bench --problem 1,2,3,4 --grid seed", "--grid: 'seed' with --problem", "allowed masks, or none"},
      {"bench --num_heads_kv 2", "--num_heads_kv: given without --problem", "allowed with it"},
      {"bench --seq_len_k 2", "--seq_len_k: given without --problem", "allowed with it"},
      {"run --data d --ranks 2", "--ranks: given without --ring", "allowed with it"},
      {"run --data d --ring zigzag --ranks 0", "--ranks: '0'", "from 1 to 4096"},
      {"cache clera", "action: 'clera'", "show, clear, limit"},
      {"cache clear --json", "--json: given with clear", "show, limit"},
      {"compile --arch sm_91", "--arch: 'sm_91'", "sm_90a"},
      {"compile --arch sm_80,", "--arch: ''", "sm_90a"},
      {"compile --compute nope", "--compute: 'nope'", "all, standard, naive, tiled"},
  };
  for (const auto& [line, found, allowed] : cases)
    EXPECT_THAT(refusal(line), AllOf(HasSubstr(found), HasSubstr(allowed))) << line;
}

TEST(Grid, Built) {
  EXPECT_EQ(cli::load_grid("seed", DType::kF32).size(), 10U);
  EXPECT_EQ(io::folder_name(cli::load_grid("seed", DType::kF32).back().spec), "B8_H16_S2048_D64");
  EXPECT_EQ(io::folder_name(cli::load_grid("paper", DType::kBF16).front().spec), "B32_H32_S512_D64_bf16");
  EXPECT_TRUE(cli::load_grid("paper", DType::kBF16).back().causal);
  EXPECT_EQ(cli::load_grid("paper", DType::kBF16).size(), 2U * 3 * 6);
  EXPECT_EQ(io::folder_name(cli::load_grid("gpt3", DType::kBF16).back().spec), "B4_H96_S16384_D128_bf16");
}

TEST(Grid, File) {
  const auto specs = cli::parse_grid(
      R"([{"B":2,"H":8,"S":512,"D":64},{"B":1,"H":4,"Hkv":2,"Sq":1,"Sk":9,"D":8,"Dv":4,"causal":true}])", "g.json",
      DType::kF32);
  EXPECT_EQ(io::folder_name(specs.at(0).spec), "B2_H8_S512_D64");
  EXPECT_EQ(io::folder_name(specs.at(1).spec), "B1_H4_Hkv2_Sq1_Sk9_D8_Dv4");
  EXPECT_FALSE(specs.at(0).causal);
  EXPECT_TRUE(specs.at(1).causal);
}

TEST(Grid, RefusesBadFiles) {
  for (const char* text : {"", "{}", "[]", "[1]", "[{}]", R"([{"B":2,"H":8,"S":512}])",
                           R"([{"B":2,"H":8,"S":512,"D":64,"X":1}])", R"([{"B":-2,"H":8,"S":512,"D":64}])",
                           R"([{"B":2.5,"H":8,"S":512,"D":64}])", R"([{"B":"2","H":8,"S":512,"D":64}])",
                           R"([{"B":2,"H":8,"Hkv":3,"S":512,"D":64}])", R"([{"B":2,"H":8,"S":512,"D":64,"causal":1}])",
                           R"([{"B":2,"H":8,"Sq":512,"D":64}])", R"([{"B":99999999999999999999,"H":8,"S":512,"D":64}])",
                           R"([{"B":18446744073709551615,"H":8,"S":512,"D":64}])"}) {
    try {
      (void)cli::parse_grid(text, "g.json", DType::kF32);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("g.json"), HasSubstr("allowed"))) << text;
    }
  }
}

}  // namespace
}  // namespace attend::test
