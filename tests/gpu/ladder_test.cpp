// Compares every rung of the ladder with float64. The ladder is a list of forward kernels from simple to fast, and each
// kernel is one rung. The sizes exercise tile edges, masks and remainders.
#include "cuda/launch/rung.hpp"

#include <algorithm>

#include "cuda/driver/device.hpp"
#include "cuda/launch/family.hpp"
#include "gpu/gpu.hpp"

namespace attend::test {
namespace {

/// Returns the number of rungs that support float32, or that support half precision.
int num_rungs_of(DType dtype) {
  int count = 0;
  for (const cuda::Rung& rung : cuda::ladder()) {
    const bool has_instructions = cuda::find_family(rung.name)->supports(cuda::device_info(0).arch());
    count += has_instructions && std::ranges::count(rung.dtypes, dtype) > 0 ? 1 : 0;
  }
  return count;
}

/// Runs every rung that supports the case. At head_dim 64 and 128, all rungs of the dtype must support the case, so a
/// rung that wrongly refuses fails the test. The HeadDim tests cover other head_dims.
void check_all_rungs(const AttentionCase& c) {
  const Inputs in = make_inputs(c);
  int checked = 0;
  for (const cuda::Rung& rung : cuda::ladder()) {
    if (!supports(rung.name, in)) continue;
    check_backend(rung.name, in);
    ++checked;
  }
  const bool for_all = (c.head_dim == 64 || c.head_dim == 128) && c.head_dim_v == c.head_dim;
  EXPECT_GE(checked, for_all ? num_rungs_of(c.dtype) : 1) << "rungs that support " << describe(c);
}

class Ladder : public GpuTest, public testing::WithParamInterface<AttentionCase> {};

TEST_P(Ladder, StaysInBudget) {
  check_all_rungs(GetParam());
}

std::vector<AttentionCase> with_masks_and_types(const std::vector<AttentionCase>& shapes) {
  std::vector<AttentionCase> cases;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool causal : {false, true}) {
      for (AttentionCase c : shapes) {
        c.dtype = dtype;
        c.causal = causal;
        c.seed = cases.size() + 1;
        cases.push_back(std::move(c));
      }
    }
  }
  return cases;
}

AttentionCase shape(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_k, std::int64_t seqlen_q,
                    std::int64_t seqlen_k, std::int64_t head_dim) {
  return {.batch = batch,
          .heads_q = heads_q,
          .heads_k = heads_k,
          .seqlen_q = seqlen_q,
          .seqlen_k = seqlen_k,
          .head_dim = head_dim,
          .head_dim_v = head_dim};
}

std::vector<AttentionCase> square_cases() {
  std::vector<AttentionCase> shapes;
  for (const std::int64_t head_dim : {64, 128}) {
    for (const std::int64_t seqlen : {1, 17, 63, 64, 65, 100, 127, 129}) {
      shapes.push_back(shape(2, 2, 2, seqlen, seqlen, head_dim));
    }
  }
  return with_masks_and_types(shapes);
}

std::vector<AttentionCase> unequal_cases() {
  std::vector<AttentionCase> shapes;
  for (const std::int64_t head_dim : {64, 128}) {
    // More keys than query rows; each key head has two query heads.
    shapes.push_back(shape(1, 4, 2, 65, 300, head_dim));
    shapes.push_back(shape(2, 3, 1, 300, 65, head_dim));  // with a causal mask, the first 235 rows see no key
    shapes.push_back(shape(1, 2, 2, 1, 513, head_dim));   // one query row, as in decoding
    shapes.push_back(shape(1, 2, 1, 129, 0, head_dim));   // no keys
    shapes.push_back(shape(1, 1, 1, 0, 33, head_dim));    // no rows
    shapes.push_back(shape(1, 6, 6, 200, 257, head_dim));
  }
  return with_masks_and_types(shapes);
}

std::vector<AttentionCase> long_cases() {
  std::vector<AttentionCase> cases = with_masks_and_types({shape(1, 2, 1, 1000, 1000, 64)});
  for (const AttentionCase& c : with_masks_and_types(
           {shape(1, 1, 1, 1000, 1000, 128), shape(1, 1, 1, 2048, 2048, 128), shape(1, 1, 1, 4097, 4097, 64)})) {
    cases.push_back(c);
  }
  return cases;
}

std::vector<AttentionCase> layout_cases() {
  std::vector<AttentionCase> cases;
  for (AttentionCase c : with_masks_and_types({shape(2, 4, 2, 97, 130, 64), shape(2, 4, 4, 130, 130, 128)})) {
    for (const CaseLayout layout : {CaseLayout::kBSHD, CaseLayout::kFused}) {
      c.layout = layout;
      cases.push_back(c);
    }
    c.layout = CaseLayout::kBHSD;
    c.base_offset = 8;
    c.broadcast_dout = true;
    c.dlse = true;
    cases.push_back(c);
    c.scale = -0.25;
    c.fill = Fill::kOutlier;
    cases.push_back(c);
    c.scale = 0.0;
    c.fill = Fill::kNormal;
    cases.push_back(c);
    c.scale = {};
    c.fill = Fill::kLarge;
    cases.push_back(c);
  }
  return cases;
}

/// Every head_dim, with unaligned strides and addresses. Only the float32 rungs support these cases.
std::vector<AttentionCase> head_dim_cases() {
  std::vector<AttentionCase> cases;
  for (const std::int64_t head_dim :
       {1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 40, 48, 63, 65, 72, 80, 95, 96, 100, 127, 128}) {
    AttentionCase c = shape(1, 2, 1, 70, 90, head_dim);
    c.causal = head_dim % 2 == 0;
    c.seed = static_cast<std::uint64_t>(head_dim);
    c.layout = head_dim % 3 == 0 ? CaseLayout::kPadded : CaseLayout::kBHSD;
    c.base_offset = head_dim % 4;
    cases.push_back(c);
  }
  AttentionCase wide = shape(1, 1, 1, 33, 47, 512);
  cases.push_back(wide);
  wide.head_dim = 96;
  wide.head_dim_v = 40;
  cases.push_back(wide);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Square, Ladder, testing::ValuesIn(square_cases()));
INSTANTIATE_TEST_SUITE_P(Unequal, Ladder, testing::ValuesIn(unequal_cases()));
INSTANTIATE_TEST_SUITE_P(Long, Ladder, testing::ValuesIn(long_cases()));
INSTANTIATE_TEST_SUITE_P(Layout, Ladder, testing::ValuesIn(layout_cases()));
INSTANTIATE_TEST_SUITE_P(HeadDim, Ladder, testing::ValuesIn(head_dim_cases()));

// Returns a few small cases for each kernel. The sanitizers run only these.
std::vector<AttentionCase> slice_cases() {
  std::vector<AttentionCase> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (AttentionCase c : {shape(1, 2, 1, 65, 100, 64), shape(1, 1, 1, 129, 129, 128)}) {
      c.dtype = dtype;
      c.causal = c.head_dim == 128;
      cases.push_back(c);
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Slice, Ladder, testing::ValuesIn(slice_cases()));

class ManyHeads : public GpuTest, public testing::WithParamInterface<DType> {};

/// The number of batch entries or heads exceeds the limit of the grid's y and z dimensions.
TEST_P(ManyHeads, OneDimensionOf65537) {
  for (const bool in_batch : {true, false}) {
    AttentionCase c = shape(in_batch ? 65537 : 1, in_batch ? 1 : 65537, in_batch ? 1 : 65537, 1, 2, 64);
    c.dtype = GetParam();
    check_all_rungs(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ManyHeads, testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

}  // namespace
}  // namespace attend::test
