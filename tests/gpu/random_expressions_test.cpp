// Compares random score functions, computed on the GPU in float32, with the float64 evaluator. Covers values and all
// derivatives. The allowed difference is derived for each function at each point (expr/float32_bounds.hpp).
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/kernel.hpp"
#include "cuda/driver/nvrtc.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/jit/sources.hpp"
#include "expr/derivative.hpp"
#include "expr/dual_numbers.hpp"
#include "expr/float32_bounds.hpp"
#include "expr/parse.hpp"
#include "expr/print.hpp"
#include "expr/random_text.hpp"
#include "gpu/gpu.hpp"

namespace attend::test {
namespace {

constexpr int kParts = 16, kFunctionsOfPart = 64, kPoints = 96, kDepth = 3;
// Points with an error bound wider than this fraction of 1 + |value| are not counted as compared, because the bound
// would accept anything.
constexpr double kWidest = 0x1p-8;

struct RandomFunction {
  std::string text;
  expr::Function function;
  std::vector<expr::Id> nodes;  ///< the value, then its derivatives by the score and by each loaded capture element
  std::vector<expr::Id> by;     ///< the node with respect to which each derivative is taken
};

std::vector<RandomFunction> random_functions(int part) {
  std::vector<RandomFunction> functions;
  for (int n = 0; n < kFunctionsOfPart; ++n) {
    RandomText random(static_cast<std::uint64_t>(part * kFunctionsOfPart + n), false);
    RandomFunction f;
    f.text = random.of_float(kDepth);
    f.function = expr::parse("text", f.text, some_captures(), expr::Type::kFloat);
    const expr::Derivatives by = expr::differentiate(f.function.graph, f.function.result);
    f.nodes = {f.function.result, by.by_score};
    f.by = {f.function.graph.variable(expr::Variable::kScore)};
    for (const auto& [load, derivative] : by.by_loads) f.nodes.push_back(derivative), f.by.push_back(load);
    functions.push_back(std::move(f));
  }
  return functions;
}

/// Returns random points. float32 can represent their scores exactly.
std::vector<expr::Point> random_points(int part) {
  std::mt19937_64 generator(static_cast<std::uint64_t>(part) + 1000);
  std::vector<expr::Point> points;
  for (int n = 0; n < kPoints; ++n) {
    points.push_back(random_point(generator));
    points.back()[0] = static_cast<float>(points.back()[0]);
  }
  return points;
}

// Start of the generated kernel. Capture elements are computed from their positions, like in element_of_capture(). Each
// thread evaluates one point.
constexpr const char* kHead = R"(#include "attention/score_math.cuh"
namespace attend {
struct ExpressionArgs {
  const double* points;
  double* results;
};
struct Captures {
  template <int n, int load_of> static __device__ float load(auto... at) {
    const int64 subscripts[] = {static_cast<int64>(at)..., 0};
    uint64 hash = static_cast<uint64>(n) + 17;
    for (int d = 0; d < static_cast<int>(sizeof...(at)); ++d) {
      hash = (hash ^ static_cast<uint64>(subscripts[d])) * 0x9e3779b97f4a7c15ull;
    }
    hash ^= hash >> 31;
    if (n == 3) return static_cast<float>(subscripts[0] / 7);
    if (n == 4) return static_cast<float>(hash & 1);
    return static_cast<float>(hash % 2049) / 512 - 2;
  }
  template <int n, int d> static __device__ int extent() {
    constexpr int extents[][4] = {{4, 16, 1, 1}, {8, 1, 1, 1}, {1, 1, 1, 1}, {32, 1, 1, 1}, {5, 3, 2, 2}};
    return extents[n][d];
  }
};
)";

struct Program {
  std::string text;
  std::size_t results = 0;  ///< number of results per point
};

Program program_of(const std::vector<RandomFunction>& functions, ScoreMath math) {
  Program program = {math == ScoreMath::kFast ? "#define ATTEND_FAST_SCORE_MATH\n" : ""};
  program.text += kHead;
  std::string body;
  for (std::size_t f = 0; f < functions.size(); ++f) {
    const RandomFunction& p = functions[f];
    program.text += expr::print_struct(p.function.graph, fmt::format("F{}", f), p.nodes);
    std::string locals, arguments, stores;
    for (std::size_t n = 0; n < p.nodes.size(); ++n) {
      locals += fmt::format("float r{}; ", n);
      arguments += fmt::format(", r{}", n);
      stores += fmt::format(" results[{}] = r{};", program.results++, n);
    }
    body += fmt::format("  {{ {1}F{0}::evaluate(at, captures{2});{3} }}\n", f, locals, arguments, stores);
  }
  program.text += fmt::format(
      "}}  // namespace attend\n"
      "extern \"C\" __global__ void attend_expressions(const __grid_constant__ attend::ExpressionArgs args) {{\n"
      "  using namespace attend;\n"
      "  const double* x = args.points + 7 * threadIdx.x;\n"
      "  double* results = args.results + {0} * threadIdx.x;\n"
      "  const int row = int(x[3]), key = int(x[4]);\n"
      "  const ScorePoint<float> at = {{float(x[0]), int(x[1]), int(x[2]), row, key, int(x[5]), int(x[6]), "
      "float(row),\n"
      "                                float(key), float(row - key - 3), 3.0f}};\n"
      "  const Captures captures;\n{1}}}\n",
      program.results, body);
  return program;
}

/// Runs the program. Returns the values of all functions' nodes, ordered by point.
std::vector<double> run(const Program& program, const std::vector<expr::Point>& points) {
  const cuda::ContextGuard guard(0);
  const cuda::CompileOutput code = cuda::Nvrtc::instance().compile(
      "expressions.cu", program.text, cuda::collect_sources("attention/score_math.cuh", {}),
      {"--gpu-architecture=" + std::string(cuda::device_info(0).arch().target), "--std=c++20"});
  const cuda::Kernel kernel(0, code.cubin, "attend_expressions", "random functions", 0);
  std::vector<double> results(program.results * points.size(), -7);
  cuda::Scratch x(points.size() * sizeof(expr::Point), nullptr), y(results.size() * sizeof(double), nullptr);
  x.copy_from_host(points.data(), points.size() * sizeof(expr::Point));
  y.copy_from_host(results.data(), results.size() * sizeof(double));
  struct {
    cuda::DevicePointer points, results;
  } arguments = {x.data(), y.data()};
  void* parameters[] = {&arguments};
  kernel.launch({.grid = {1}, .block = {static_cast<unsigned>(points.size())}}, parameters, nullptr);
  y.copy_to_host(results.data(), results.size() * sizeof(double));
  cuda::synchronize(nullptr);
  return results;
}

/// Returns the expected value of a node, computed in a second, independent way. Uses dual numbers if the node is a
/// derivative and they are finite.
double by_dual_numbers(const RandomFunction& f, std::size_t node, const expr::Point& point, double exact) {
  if (node == 0) return exact;
  const DualNumber dual = dual_of(f.function.graph, f.function.result, point, f.by[node - 1], element_of_capture);
  return std::isfinite(dual.value) && std::isfinite(dual.slope) ? dual.slope : exact;
}

bool agree(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || a == b || std::abs(a - b) <= 1e-8 * (1 + std::abs(a));
}

struct Tally {
  int compared = 0, rounded = 0, undecided = 0, wide = 0, wrong = 0;

  void add(const RandomFunction& f, std::size_t node, const expr::Point& point, double got, double exact,
           const Bounds& bounds) {
    if (!bounds.is_decided) {
      ++undecided;
    } else if (bounds.high - bounds.low > kWidest * (1 + std::abs(exact))) {
      ++wide;
    } else {
      ++compared;
      rounded += bounds.low < bounds.high ? 1 : 0;
      const double dual = by_dual_numbers(f, node, point, exact);
      if (bounds.contains(got) && bounds.contains(exact) && agree(exact, dual)) return;
      if (++wrong > 3) return;
      ADD_FAILURE() << f.text << "\nnode " << node << ": "
                    << fmt::format("{:.9g}, exact {:.17g}, by dual numbers {:.17g}, allowed {:.9g} to {:.9g}", got,
                                   exact, dual, bounds.low, bounds.high);
    }
  }
};

class GpuRandomExpressions : public GpuTest, public testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(All, GpuRandomExpressions, testing::Range(0, kParts));

/// Even parts use the exact math of float32 kernels. Odd parts use the fast math of 16-bit kernels.
TEST_P(GpuRandomExpressions, AreWithinTheirRounding) {
  const ScoreMath math = GetParam() % 2 == 0 ? ScoreMath::kExact : ScoreMath::kFast;
  const std::vector<RandomFunction> functions = random_functions(GetParam());
  const std::vector<expr::Point> points = random_points(GetParam());
  const Program program = program_of(functions, math);
  const std::vector<double> results = run(program, points);
  Tally tally;
  std::size_t first = 0;
  for (const RandomFunction& f : functions) {
    expr::Evaluator evaluator(f.function.graph, f.nodes, element_of_capture);
    Float32Bounds allowed(f.function.graph, f.nodes, element_of_capture, math);
    for (std::size_t at = 0; at < points.size(); ++at) {
      const std::span<const double> exact = evaluator.at(points[at]);
      const std::span<const Bounds> bounds = allowed.at(points[at]);
      for (std::size_t n = 0; n < f.nodes.size(); ++n) {
        tally.add(f, n, points[at], results[at * program.results + first + n], exact[n], bounds[n]);
      }
    }
    first += f.nodes.size();
  }
  const int all = tally.compared + tally.undecided + tally.wide;
  std::printf("%d values compared, %d of them rounded, %d not: %d undecided, %d with wide bounds\n", tally.compared,
              tally.rounded, tally.undecided + tally.wide, tally.undecided, tally.wide);
  EXPECT_EQ(tally.wrong, 0);
  EXPECT_GE(all, 2 * kFunctionsOfPart * kPoints);
  EXPECT_GT(tally.rounded, all / 6);
  EXPECT_LT(tally.undecided + tally.wide, all / 20);
}

}  // namespace
}  // namespace attend::test
