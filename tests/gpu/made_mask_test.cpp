// Block masks that the GPU builds must equal those that the host builds, bit for bit. Attention must accept them.
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "attend/block_mask.hpp"
#include "attend/error.hpp"
#include "core/block_tiles.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/stream.hpp"
#include "expr/random_text.hpp"
#include "gpu/gpu.hpp"
#include "gpu/output_checks.hpp"
#include "gpu/own_functions.hpp"
#include "mask/mask_cookbook.hpp"

namespace attend::test {
namespace {

using Index = std::int64_t;

constexpr Device kGpu = {DeviceType::kCUDA, 0};

void expect_same(const core::BlockTiles& got, const core::BlockTiles& wanted) {
  EXPECT_EQ(got.batch, wanted.batch);
  EXPECT_EQ(got.num_heads, wanted.num_heads);
  EXPECT_EQ(got.asks_for_batch, wanted.asks_for_batch);
  EXPECT_EQ(got.asks_for_head, wanted.asks_for_head);
  EXPECT_EQ(got.row_begin, wanted.row_begin);
  ASSERT_EQ(got.seen.size(), wanted.seen.size());
  for (std::size_t n = 0; n < got.seen.size(); ++n) {
    ASSERT_EQ(got.seen[n].begin, wanted.seen[n].begin) << n;
    ASSERT_EQ(got.seen[n].end, wanted.seen[n].end) << n;
    ASSERT_EQ(got.seen[n].pattern, wanted.seen[n].pattern) << n;
  }
  EXPECT_EQ(got.patterns, wanted.patterns);
  EXPECT_EQ(got.rows_seen, wanted.rows_seen);
  EXPECT_EQ(got.num_pairs, wanted.num_pairs);
  ASSERT_EQ(got.band.has_value(), wanted.band.has_value());
  if (got.band) {
    EXPECT_EQ(got.band->left, wanted.band->left);
    EXPECT_EQ(got.band->right, wanted.band->right);
  }
}

/// Checks the mask twice: once with captures in host memory, and once with captures in memory that the GPU can access.
void check(const std::string& text, const std::vector<CaptureBuffer>& captures, const BlockMaskShape& shape) {
  SCOPED_TRACE(text + " " + std::to_string(shape.batch) + " " + std::to_string(shape.num_heads) + " " +
               std::to_string(shape.seqlen_q) + " " + std::to_string(shape.seqlen_k));
  std::vector<ScoreCapture> on_host, on_gpu;
  for (const CaptureBuffer& capture : captures) {
    on_host.push_back(capture.capture());
    on_gpu.push_back(capture.capture(kGpu));
  }
  const BlockMask wanted = make_block_mask(MaskFunction(text, on_host), shape);
  const cuda::ContextGuard guard(0);
  const cuda::OwnStream stream;
  expect_same(*make_block_mask(MaskFunction(text, on_host), shape, {kGpu, stream.get()}).state(), *wanted.state());
  if (captures.empty()) return;
  expect_same(*make_block_mask(MaskFunction(text, on_gpu), shape, {kGpu, stream.get()}).state(), *wanted.state());
}

class MadeMasks : public GpuTest, public testing::WithParamInterface<std::size_t> {};

INSTANTIATE_TEST_SUITE_P(Cookbook, MadeMasks, testing::Range<std::size_t>(0, mask_cookbook().size()), kIndexName);

TEST_P(MadeMasks, AreThoseOfTheHost) {
  const MaskRecipe& recipe = mask_cookbook()[GetParam()];
  constexpr BlockMaskShape kShapes[] = {{2, 3, 150, 277}, {1, 1, 1, 1},  {1, 2, 63, 65},     {3, 1, 65, 63},
                                        {1, 1, 0, 70},    {1, 1, 70, 0}, {2, 2, 1000, 1000}, {1, 1, 64, 1280},
                                        {1, 1, 20, 18000}};  // the row has more tiles than a block has threads
  for (const BlockMaskShape& shape : kShapes) {
    // The tree mask would need 300 MB
    if (shape.seqlen_k > 10000 && recipe.text.find("tree") != std::string::npos) continue;
    const MaskSizes sizes = mask_sizes(shape);
    check(recipe.text, recipe.captures(sizes), shape);
  }
}

/// Captures of every rank and dtype, with subscripts that are known to be in range and subscripts that are not.
TEST_F(GpuTest, MadeMasksReadEveryKindOfCapture) {
  const auto numbers = [](Index count, int modulus) {
    std::vector<double> all;
    for (Index n = 0; n < count; ++n) all.push_back(static_cast<double>(n * 7 % modulus - modulus / 3));
    return all;
  };
  const BlockMaskShape shape = {2, 2, 200, 333};
  constexpr DType kTypes[] = {DType::kI32, DType::kI64, DType::kF32, DType::kF16, DType::kBF16, DType::kF64};
  constexpr CaptureStrides kStrides[] = {CaptureStrides::kDense, CaptureStrides::kSpread, CaptureStrides::kTransposed,
                                         CaptureStrides::kNegative};
  for (std::size_t n = 0; n < std::size(kTypes); ++n) {
    const DType dtype = kTypes[n];
    const CaptureStrides strides = kStrides[n % std::size(kStrides)];
    const std::vector<CaptureBuffer> captures = {{"one", dtype, {}, {100}},
                                                 {"row", dtype, {500}, numbers(500, 40), strides},
                                                 {"of_batch", dtype, {2, 400}, numbers(800, 90), strides},
                                                 {"three", dtype, {2, 2, 333}, numbers(1332, 50), strides}};
    check(
        "(k <= q + one || row[q] < row[k]) && of_batch[b][k] >= of_batch[b][q // 3 + 7] && three[b][h][k] > -9 && "
        "row[2 * q - k] != row[abs(q - k) * 9]",
        captures, shape);
  }
  std::vector<double> bools = numbers(500, 3);
  for (double& x : bools) x = x > 0;
  check("keep[k] || keep[q + 64] && !keep[h]", {{"keep", DType::kBool, {500}, bools}}, shape);
}

/// The captures contain NaN, infinities, and int64 values that overflow.
TEST_F(GpuTest, MadeMasksReadEveryValue) {
  std::vector<double> floats(300, 1), wide(300, 5);
  for (Index n = 0; n < 300; ++n) {
    if (n % 70 == 3) floats[static_cast<std::size_t>(n)] = NAN;
    if (n % 90 == 5) floats[static_cast<std::size_t>(n)] = n % 180 < 90 ? INFINITY : -INFINITY;
    if (n > 200) wide[static_cast<std::size_t>(n)] = 0x1p33 + 5 + static_cast<double>(n % 2);
  }
  const std::vector<CaptureBuffer> captures = {{"x", DType::kF32, {300}, floats}, {"w", DType::kI64, {300}, wide}};
  for (const char* text : {"x[q] <= x[k]", "!(x[q] < 2 * x[k])", "x[q] != x[k]", "x[q] - x[k] == 0", "int(x[q]) >= k",
                           "w[q] == w[k]", "x[q] * 0.1 + x[k] * 0.7 < sqrt(x[k] + 3)",
                           "min(x[q], x[k]) / 3 > floor(x[q]) // 2", "round(x[q] * k) % 3 == 0"}) {
    check(text, captures, {1, 1, 300, 300});
  }
}

/// The mask texts use integers that overflow, quotients and remainders of every sign, shifts and bit operations.
TEST_F(GpuTest, MadeMasksCountAsTheHostDoes) {
  for (const char* text : {"(q - 100) // (k - 50) > 1", "(q - 100) % (k - 50) < 0", "(q * 40000) * (k * 30000) > 5",
                           "q * q * q * 1000 - k < 7", "(q << (k % 40)) > (k << 3)", "(q ^ k) < 40 || (q & k) == 64",
                           "((q | 7) >> 3) == (k >> 3)", "~q + k > -5", "-q // 7 == -k // 7", "sign(q - k) * 3 == 3",
                           "q // 0 == 0 && k % 0 == 0", "abs(q - k) % 64 < 3", "max(q, k) - min(q, k) < 70",
                           "(k < q) != (q % 2 == 0)", "float(q) / 3.0 < float(k) * 0.37", "q_len - q > k_len - k"}) {
    check(text, {}, {1, 1, 300, 333});
  }
}

/// The first mask has more distinct pattern tiles than the initial allocation can hold, and the second has more runs
/// per row.
TEST_F(GpuTest, MadeMasksHaveRoomForMorePatterns) {
  check("(q * q * 7919 + k * k * 104729 + q * k * k) % 1009 < 400", {}, {1, 1, 6400, 6400});
  check("(q // 64 + k // 64) % 2 == 0", {}, {1, 1, 19200, 38400});
}

/// In some of these cases, the bounds of the condition decide entire tiles. In others, single pairs must be evaluated.
/// Every mask must be correct.
TEST_F(GpuTest, MadeMasksOfManyLengths) {
  for (const Index rows : {1, 63, 64, 65, 1000}) {
    for (const Index keys : {1, 63, 64, 65, 1000}) {
      check("k <= q && q - k < 200", {}, {1, 1, rows, keys});
      check("(q + k + h + b) % 5 != 0", {}, {2, 2, rows, keys});
    }
  }
}

/// Builds masks from random texts that GPUs support.
TEST_F(GpuTest, MadeMasksOfRandomTexts) {
  std::vector<CaptureBuffer> captures;
  const std::vector<expr::Capture> named = some_captures();
  for (std::size_t n = 0; n < named.size(); ++n) {
    Index count = 1;
    for (const Index extent : named[n].shape) count *= extent;
    std::vector<double> values;
    for (Index at = 0; at < count; ++at) {
      std::vector<Index> subscripts(named[n].shape.size());
      Index rest = at;
      for (std::size_t d = subscripts.size(); d-- > 0; rest /= named[n].shape[d])
        subscripts[d] = rest % named[n].shape[d];
      values.push_back(element_of_capture(static_cast<std::int32_t>(n), subscripts));
    }
    const DType dtype = named[n].type == expr::Type::kBool  ? DType::kBool
                        : named[n].type == expr::Type::kInt ? DType::kI32
                                                            : DType::kF32;
    captures.emplace_back(named[n].name, dtype, named[n].shape, values);
  }
  int count = 0;
  for (std::uint64_t seed = 0; count < 10 && seed < 1000; ++seed) {
    const std::string text = RandomText(seed, true).of_bool(4);
    const auto calls = [&](const char* name) { return text.find(name) != std::string::npos; };
    if (calls("exp") || calls("log") || calls("sin") || calls("cos") || calls("tan") || calls("sigmoid") ||
        calls("erf") || calls("rsqrt") || calls("pow") || calls("**") || (!calls("q") && !calls("k"))) {
      continue;
    }
    check(text, captures, {2, 2, 90, 200});
    ++count;
  }
  EXPECT_EQ(count, 10);
}

void expect_refused(ErrorCode code, const std::string& what, const MaskFunction& mask, const BlockMaskShape& shape,
                    const BlockMaskPlace& place) {
  try {
    (void)make_block_mask(mask, shape, place);
    ADD_FAILURE() << "taken, but " << what;
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), code) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST_F(GpuTest, MadeMasksAreRefusedInALine) {
  const BlockMaskShape shape = {1, 1, 100, 100};
  expect_refused(ErrorCode::kUnsupported, "mask: exp, allowed if the mask is made on a CPU",
                 MaskFunction("exp(float(q)) < 3"), shape, {kGpu});
  const CaptureBuffer doc("doc", DType::kI32, {100}, std::vector<double>(100, 1));
  const MaskFunction elsewhere("doc[q] == 1", {doc.capture({DeviceType::kCUDA, 7})});
  expect_refused(ErrorCode::kInvalidArgument, "mask: capture 'doc': on CUDA device 7", elsewhere, shape, {kGpu});
  expect_refused(ErrorCode::kInvalidArgument, "mask: capture 'doc': on CUDA device 7", elsewhere, shape, {});
  expect_refused(ErrorCode::kInvalidArgument, "65536 rows of 65536 tiles", MaskFunction("k <= q"),
                 {1, 1, 1 << 22, 1 << 22}, {kGpu});
  expect_refused(ErrorCode::kInvalidArgument, "device: on CUDA device 99", MaskFunction("k <= q"), shape,
                 {{DeviceType::kCUDA, 99}});
}

/// Runs attention with masks that were never copied to the host, and compares the results with the reference.
TEST_F(GpuTest, MadeMasksInAttention) {
  const AttentionCase c = base_case(DType::kBF16);
  const BlockMask mask = make_block_mask(MaskFunction("(q // 50 + k // 70 + h) % 3 != 0 && (q + 3 * k) % 5 < 3"),
                                         {1, c.heads_q, c.seqlen_q, c.seqlen_k}, {kGpu});
  const Inputs in = make_inputs(c);
  expect_outputs_near(run_with_block_mask(in, mask, "simt", "simt"),
                      run_with_block_mask(as_f64(in), mask, "reference", "reference"), 0x1p-7, 5e-6);
}

}  // namespace
}  // namespace attend::test
