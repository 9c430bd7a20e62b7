// Compares the traits of each element type with the behaviour of its conversions. Every new element type must be added
// here.
#include "core/dtype_traits.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/elements.hpp"

namespace attend::test {
namespace {

/// Returns x after it was stored as `dtype` and loaded again.
double stored(DType dtype, double x) {
  double memory = 0;
  core::store(&memory, dtype, 0, x);
  return core::load(&memory, dtype, 0);
}

TEST(DTypeTraits, NamesTellTypesApart) {
  std::set<std::string> names, npy;
  for (const DType dtype : core::kDTypes) {
    EXPECT_TRUE(names.insert(dtype_name(dtype)).second);
    EXPECT_TRUE(npy.insert(core::dtype_traits(dtype).npy).second);
    EXPECT_EQ(core::find_dtype(dtype_name(dtype)), dtype);
    EXPECT_GT(dtype_bytes(dtype), 0);
  }
  EXPECT_EQ(core::find_dtype("f8"), std::nullopt);
  EXPECT_EQ(core::kDTypes.size(), 9U);
}

TEST(DTypeTraits, RoundoffIsHalfTheDistanceOfNeighbours) {
  for (const DType dtype : core::kDTypes) {
    if (!core::is_float(dtype)) continue;
    SCOPED_TRACE(dtype_name(dtype));
    const double unit = core::dtype_traits(dtype).unit_roundoff;
    EXPECT_EQ(stored(dtype, 1 + 2 * unit), 1 + 2 * unit);
    EXPECT_EQ(stored(dtype, 1 + unit), 1) << "a tie goes to the even neighbour";
    EXPECT_EQ(core::is_narrow(dtype), unit > 0x1p-24);
  }
}

TEST(DTypeTraits, BelowTheSmallestNormalDigitsAreLost) {
  for (const DType dtype : core::kDTypes) {
    // This test computes in double, so it cannot test float64.
    if (!core::is_float(dtype) || dtype == DType::kF64) continue;
    SCOPED_TRACE(dtype_name(dtype));
    const auto [npy, is_float, is_quantized, is_integer, unit, least, element] = core::dtype_traits(dtype);
    EXPECT_EQ(stored(dtype, least * (1 + 2 * unit)), least * (1 + 2 * unit));
    EXPECT_NE(stored(dtype, least / 2 * (1 + 2 * unit)), least / 2 * (1 + 2 * unit));
  }
}

TEST(DTypeTraits, ElementsOfKernelsAreDescribedAlike) {
  for (const DType dtype : core::kDTypes) {
    const auto traits = core::dtype_traits(dtype);
    if (!traits.element) continue;
    const ElementInfo info = element_info(*traits.element);
    EXPECT_EQ(info.bytes, dtype_bytes(dtype));
    EXPECT_EQ(info.panel_columns() * info.bytes, kPanelBytes);
    EXPECT_EQ(traits.unit_roundoff, info.unit_roundoff);
  }
}

}  // namespace
}  // namespace attend::test
