// Prints score functions of users as C++ for kernels and compiles them with NVRTC.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "cuda/driver/nvrtc.hpp"
#include "cuda/jit/sources.hpp"
#include "expr/derivative.hpp"
#include "expr/parse.hpp"
#include "expr/print.hpp"
#include "jit_fixture.hpp"

namespace attend::test {
namespace {

using expr::Type;

class PrintedScores : public NvrtcTest {};

/// Compiles operations of every kind and their derivatives for GPUs in float32. Expects no warnings.
TEST_F(PrintedScores, CompileForDevices) {
  const std::vector<expr::Capture> captures = {{"table", Type::kFloat, {4, 16}}, {"doc", Type::kInt, {32}}};
  std::string structs, calls;
  int count = 0;
  for (const char* text :
       {"score + table[h][clamp(q - k, -7, 8) + 7]", "tanh(score / 50) * 50 + exp(-abs(score)) * sigmoid(score)",
        "exp2(score) + log2(score) + log1p(score) + sqrt(score) + rsqrt(score) + erf(score)",
        "sin(score) + cos(score) + tan(score) + pow(score, 1.5) + score // 2 + score % 3.0",
        "floor(score) + ceil(score) + round(score) + trunc(score) + sign(score) + float(int(score))",
        "score * 1e300 + score * 1e-300 + float(~q + -q + abs(k) + sign(k) - (q != k))",
        "doc[q] == doc[k] && q - k < 100 ? min(score, 1) : max(score, -inf)",
        "float((q * 3 // 2 - k % 5 << 1 >> 1) ^ (q & k | 7)) + (true ? 1.0 : inf - inf) * score"}) {
    expr::Function f = expr::parse("text", text, captures, Type::kFloat);
    const expr::Id slope = expr::differentiate(f.graph, f.result).by_score;
    structs += expr::print_struct(f.graph, fmt::format("F{}", count), std::array{f.result, slope});
    calls += fmt::format("  F{0}::evaluate(at, captures, out[{1}], out[{2}]);\n", count, 2 * count, 2 * count + 1);
    ++count;
  }
  const std::string program =
      "#include \"attention/score_math.cuh\"\n"
      "struct Captures {\n  const float* data;\n"
      "  template <int n, int load_of> __device__ float load(int i) const { return data[i]; }\n"
      "  template <int n, int load_of> __device__ float load(int i, int j) const { return data[16 * i + j]; }\n"
      "  template <int n, int d> __device__ int extent() const { return d == 0 ? 4 : 16; }\n};\n" +
      structs + "extern \"C\" __global__ void scores(attend::ScorePoint<float> at, Captures captures, float* out) {\n" +
      calls + "}\n";
  const std::vector<cuda::NamedSource> headers = cuda::collect_sources("attention/score_math.cuh", {});
  for (const char* arch : {"sm_80", "sm_90a"}) {
    const cuda::CompileOutput output = cuda::Nvrtc::instance().compile(
        "scores.cu", program, headers, {fmt::format("--gpu-architecture={}", arch), "--std=c++20", "--device-int128"});
    EXPECT_FALSE(output.cubin.empty());
    EXPECT_EQ(output.log.find("warning"), std::string::npos) << output.log;
  }
}

}  // namespace
}  // namespace attend::test
