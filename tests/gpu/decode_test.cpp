// Compares decode() on a GPU with float64. The cases cover every cache layout, option and length. All memory that must
// not be read is NaN. The tests are divided into eight parts that can run in parallel processes. Each part has
// different head_dims and dtypes, so no two parts compile the same kernels.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "gpu/serving.hpp"
#include "serving/decode_cases.hpp"
#include "serving/invariance_checks.hpp"
#include "serving/quantized_checks.hpp"

namespace attend::test {
namespace {

constexpr int kParts = 8;
constexpr int kLeastCases = 800;

/// Precision of p in the kernels for f16 and bf16.
constexpr Products kHalfProducts = Products::kHalf;

const DecodeValues& values() {
  using enum DType;
  using enum DecodeValues::Rows::Kind;
  static const DecodeValues all = {
      .columns = {{128, 128, kBF16},
                  {64, 64, kF16},
                  {576, 512, kBF16},
                  {64, 64, kF32},
                  {128, 128, kBF16, kF8E4M3},
                  {72, 72, kBF16},
                  {256, 256, kBF16},
                  {40, 40, kF16},
                  {100, 100, kF32},
                  {80, 80, kBF16},
                  {192, 128, kBF16},
                  {512, 512, kBF16},
                  {64, 64, kBF16, kI8},
                  {96, 96, kBF16},
                  {64, 64, kBF16},
                  {128, 128, kF16},
                  {100, 100, kBF16},
                  {128, 128, kF32},
                  {576, 512, kF16},
                  {64, 64, kF16, kF8E4M3},
                  {80, 80, kBF16, kF8E4M3},
                  {64, 64, kF32, kF8E4M3},
                  {576, 512, kBF16, kF8E4M3},
                  {128, 128, kF16, kI8},
                  {256, 256, kBF16, kI8},
                  {40, 40, kF32, kI8},
                  {64, 64, kBF16, kF8E4M3}},
      .groups = {1, 4, 5, 6, 7, 8, 16, 32},
      .page_sizes = {0, 0, 16, 64, 1, 256, 3, 128},
      .layouts = {Layout::kBHSD, Layout::kBSHD, Layout::kPadded, Layout::kSliced},
      .rows = {{1},
               {2},
               {3},
               {4},
               {5},
               {6},
               {8},
               {11},
               {16},
               {40},
               {130},
               {7, kTree},
               {20, kTree},
               {64, kTree},
               {6, kPacked},
               {40, kPacked}},
      .long_capacity = 6000,
  };
  return all;
}

class GpuDecodeCases : public GpuTest, public testing::WithParamInterface<int> {};

TEST_P(GpuDecodeCases, CoveringArrayAgainstFloat64) {
  const Decode decode = gpu_decode_by("decode");
  const std::vector<DecodeCase> cases = decode_cases(values(), kLeastCases);
  DecodeErrors of_f32, of_half;
  for (std::size_t n = 0; n < cases.size(); n += ATTEND_TEST_STRIDE) {
    if (cases[n].columns % kParts != GetParam()) continue;
    const bool is_f32 = cases[n].facts.dtype == DType::kF32;
    check_decode(cases[n], decode, is_f32 ? of_f32 : of_half, is_f32 ? Products::kF32 : kHalfProducts);
  }
  fmt::print("f32: {}f16 and bf16: {}", of_f32.text(), of_half.text());
}

INSTANTIATE_TEST_SUITE_P(Parts, GpuDecodeCases, testing::Range(0, kParts), kIndexName);

/// A subset of the cases for the sanitizers. Each head_dim and dtype has two small cases, one with a single query row
/// and one with several rows. There is also a case with a tree mask.
class SliceDecode : public GpuTest {};

TEST_F(SliceDecode, StaysInBudget) {
  const Decode decode = gpu_decode_by("decode");
  const std::vector<DecodeCase> cases = decode_cases(values(), kLeastCases);
  std::set<std::pair<int, bool>> seen;
  bool has_tree = false;
  DecodeErrors errors;
  for (const DecodeCase& c : cases) {
    const CacheFacts& f = c.facts;
    const std::int64_t most = *std::max_element(f.rows.begin(), f.rows.end());
    const bool is_small = f.lengths.front() > 0 && f.capacity <= 400 && most <= 16 && f.num_heads_k * f.group <= 16;
    const bool is_first_tree = f.tree && !has_tree;
    if (!is_small || (!seen.emplace(c.columns, most > 1).second && !is_first_tree)) continue;
    has_tree = has_tree || f.tree;
    check_decode(c, decode, errors, f.dtype == DType::kF32 ? Products::kF32 : kHalfProducts);
  }
  EXPECT_GT(errors.cases, static_cast<int>(values().columns.size()));
  fmt::print("{}", errors.text());
}

/// Two warpgroups each compute half of the columns. Keys are loaded in boxes (rectangles of one TMA copy) or row by
/// row. Two blocks exchange their partial results.
TEST_F(SliceDecode, HalvesOfColumns) {
  DecodeErrors errors;
  for (const std::int64_t page_size : {64, 1}) {
    CacheFacts f = {.dtype = DType::kBF16, .num_heads_k = 1, .group = 20, .page_size = page_size};
    f.head_dim = 576, f.head_dim_v = 512, f.values_in_keys = true;
    f.rows = {2, 2}, f.lengths = {2200, 70};
    check_decode({f, 3, 0}, gpu_decode_by("decode"), errors, kHalfProducts);
  }
  fmt::print("{}", errors.text());
}

class GpuEightBits : public GpuTest, public testing::WithParamInterface<DType> {};

TEST_P(GpuEightBits, DecodeReadsEveryElementExactly) {
  check_every_element(GetParam(), {GetParam() == DType::kI8 ? 40 : 64}, gpu_decode_by("decode"));
}

TEST_P(GpuEightBits, ShapesOfFactorsChangeNoBits) {
  check_shapes_of_factors(GetParam(), false, gpu_decode_by("decode"));
}

TEST_P(GpuEightBits, AFactorThatIsNotFiniteReachesTheRowsThatSeeItsKey) {
  check_factors_of_some_rows(GetParam(), gpu_decode_by("decode"));
}

TEST_P(GpuEightBits, AppendAndDecodeInOneCall) {
  check_eight_bits_in_one_call(GetParam(), gpu_calls());
}

const auto kNameOfDType = [](const testing::TestParamInfo<DType>& of) { return std::string(dtype_name(of.param)); };

INSTANTIATE_TEST_SUITE_P(DTypes, GpuEightBits, testing::Values(DType::kF8E4M3, DType::kI8), kNameOfDType);

class GpuDecodeNaN : public GpuTest, public testing::WithParamInterface<DType> {};
class GpuDecodeInfinity : public GpuTest, public testing::WithParamInterface<DType> {};

TEST_P(GpuDecodeNaN, NonFiniteKeysReachTheirRowsOnly) {
  check_nonfinite_keys(GetParam(), gpu_decode_by("decode"));
}

TEST_P(GpuDecodeNaN, NaNInAnyColumnOfAnUnseenValue) {
  std::vector<std::int64_t> head_dims = {64};
  if (GetParam() == DType::kF16) head_dims.push_back(40);
  if (GetParam() == DType::kF32) head_dims.push_back(100);
  if (GetParam() == DType::kBF16) head_dims.insert(head_dims.end(), {72, 100});
  check_nan_in_any_column(GetParam(), head_dims, gpu_decode_by("decode"));
}

TEST_P(GpuDecodeInfinity, InfinityTimesNoWeightIsNaNInAnyChunk) {
  check_infinity_times_no_weight(GetParam(), 64, gpu_decode_by("decode"));
}

INSTANTIATE_TEST_SUITE_P(DTypes, GpuDecodeNaN, testing::Values(DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3),
                         kNameOfDType);
INSTANTIATE_TEST_SUITE_P(DTypes, GpuDecodeInfinity, testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         kNameOfDType);

/// The batch entries of the cache are more than 2^31 elements apart. The third entry begins beyond element 2^32.
class GpuDecodeFar : public GpuTest, public testing::WithParamInterface<DType> {};

TEST_P(GpuDecodeFar, OffsetsOf64Bits) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 31) + 64, kOfValues = 1 << 20;
  CacheFacts facts = invariance_facts(GetParam());
  facts.descales = facts.cache_dtype ? Descales::kHeads : Descales::kNone;
  facts.rows = {2, 2, 2};
  facts.lengths = {40, 16, 33};
  const CacheCase near(facts, 21);
  const CacheCase::Result wanted = near.run(gpu_decode_by("decode"));
  const std::int64_t bytes = dtype_bytes(facts.type_of_cache());
  const std::int64_t block = near.k.view().stride[0] * bytes;
  // The operating system commits only the pages that are accessed.
  const auto memory = allocate_tensor_memory(static_cast<std::size_t>((2 * kStride + 2 * kOfValues) * bytes));
  DecodeCall call = near.call();
  const auto spread = [&](ConstTensor& view, const TensorBuffer& from, std::int64_t first) {
    view.data = memory.get() + first * bytes;
    view.shape[0] = 3;
    view.stride[0] = kStride;
    for (std::int64_t n = 0; n < 3; ++n) {
      std::memcpy(memory.get() + (first + n * kStride) * bytes,
                  static_cast<const std::byte*>(from.view().data) + n * block, static_cast<std::size_t>(block));
    }
  };
  spread(call.k_cache, near.k, 0);
  spread(*call.v_cache, near.v, kOfValues);
  const TensorArray<std::int32_t> pages = {0, 1, 2};
  for (const bool is_paged : {false, true}) {  // in the paged run, each cache row is one page
    if (is_paged) call.cache.page_table = PageTable{pages.data(), 3, 1, 1};
    const TensorBuffer o(facts.dtype, {3, near.q.shape()[1], 2, facts.head_dim_v});
    call.o = o.view();
    gpu_decode_by("decode")(call);
    EXPECT_EQ(o.bytes(), wanted.o_bytes) << (is_paged ? "paged" : "contiguous");
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, GpuDecodeFar, testing::Values(DType::kF32, DType::kBF16, DType::kI8), kNameOfDType);

}  // namespace
}  // namespace attend::test
