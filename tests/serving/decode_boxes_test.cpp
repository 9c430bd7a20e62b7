// Tests which decode calls load keys with the copy engine in boxes. A box is a rectangle of a tensor that one TMA copy
// loads. The tests in tests/emulator and tests/gpu check the loaded data.
#include <gtest/gtest.h>

#include "cuda/serving/decode_variant.hpp"
#include "serving/cache_case.hpp"

namespace attend::test {
namespace {

constexpr int kHopperSmem = 232448, kSmallSmem = 101376;

CacheFacts facts_of(DType dtype, std::int64_t head_dim, std::int64_t page_size = 0) {
  CacheFacts f;
  f.dtype = dtype;
  f.head_dim = f.head_dim_v = head_dim;
  f.rows = {1, 1};
  f.lengths = {80, 100};
  f.page_size = page_size;
  return f;
}

cuda::DecodeVariant variant(const CacheFacts& facts, int max_smem = kHopperSmem, bool has_copy_engine = true) {
  const CacheCase problem(facts, 1);
  DecodeCall call = problem.call();
  const Shape& q = problem.q.shape();
  const TensorBuffer o(facts.dtype, {q[0], q[1], q[2], facts.head_dim_v});
  call.o = o.view();
  return cuda::decode_variant(core::make_decode_problem(call),
                              {.max_smem = max_smem, .multiprocessors = 132, .has_copy_engine = has_copy_engine},
                              false);
}

TEST(DecodeBoxes, AreForWholeBoxesAndForRowsThatWouldBePadded) {
  struct Expected {
    DType dtype;
    std::int64_t head_dim;
    int has_boxes;
  };
  for (const auto& [dtype, head_dim, has_boxes] : {Expected{DType::kBF16, 64, 1},
                                                   {DType::kBF16, 128, 1},
                                                   {DType::kF16, 256, 1},
                                                   {DType::kF32, 32, 1},
                                                   {DType::kBF16, 80, 0},
                                                   {DType::kBF16, 96, 0},
                                                   {DType::kBF16, 72, 1},
                                                   {DType::kBF16, 100, 0}}) {
    EXPECT_EQ(variant(facts_of(dtype, head_dim)).has_boxes, has_boxes) << dtype_name(dtype) << " " << head_dim;
    EXPECT_EQ(variant(facts_of(dtype, head_dim), kHopperSmem, false).has_boxes, 0) << head_dim;
  }
}

TEST(DecodeBoxes, LieInOnePage) {
  for (const auto& [page_size, has_boxes] :
       {std::pair{1, 0}, {3, 0}, {4, 0}, {8, 1}, {12, 0}, {16, 1}, {24, 1}, {64, 1}}) {
    EXPECT_EQ(variant(facts_of(DType::kBF16, 128, page_size)).has_boxes, has_boxes) << page_size;
  }
}

TEST(DecodeBoxes, WantStridesThatTheCopyEngineTakes) {
  CacheFacts facts = facts_of(DType::kBF16, 64);
  facts.layout = Layout::kPadded;
  EXPECT_EQ(variant(facts).has_boxes, 0);
}

/// Rows that are rounded up to complete boxes need more shared memory. Boxes must not be used if tiles would get
/// smaller.
TEST(DecodeBoxes, AreNotTakenWhereTilesWouldGetSmaller) {
  EXPECT_EQ(variant(facts_of(DType::kF32, 300), kSmallSmem).has_boxes, 0);
  for (const auto& [smem, head_dim] :
       {std::pair{kSmallSmem, 136}, {kSmallSmem, 292}, {kSmallSmem, 300}, {kHopperSmem, 356}, {kHopperSmem, 364}}) {
    const CacheFacts facts = facts_of(DType::kF32, head_dim);
    const cuda::DecodeVariant with = variant(facts, smem), without = variant(facts, smem, false);
    EXPECT_EQ(with.rows * with.row_parts, without.rows * without.row_parts) << head_dim;
  }
}

}  // namespace
}  // namespace attend::test
