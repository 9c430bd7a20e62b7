#include "serving/append_checks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/dtype_traits.hpp"
#include "core/elements.hpp"
#include "serving/worst.hpp"
#include "support/covering_array.hpp"

namespace attend::test {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI8};

/// Number of values of each factor. case_of() maps one value of each factor to a case.
const std::vector<int> kFactors = {3, 5, 4, 5, 3, 2, 2, 2, 2, 2, 5, 2, 2, 7, 3, 4, 5, 5};

AppendCase case_of(const Choice& choice, std::uint64_t seed) {
  constexpr DType kTables[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};
  constexpr std::int64_t kPageSizes[] = {0, 1, 3, 16, 64};
  constexpr Layout kLayouts[] = {Layout::kBHSD, Layout::kBSHD, Layout::kPadded};
  constexpr std::int64_t kHeadDims[] = {8, 37, 64, 128, 576};
  AppendCase c = {.dtype = kDTypes[choice[0]],
                  .cache_dtype = kDTypes[choice[1]],
                  .descales = static_cast<Descales>(choice[17]),
                  .table_dtype = kTables[choice[2]],
                  .page_size = kPageSizes[choice[3]],
                  .pool = static_cast<PoolLayout>(choice[4]),
                  .batch_idx = choice[5] == 1,
                  .packed = choice[6] == 1,
                  .packed_q = choice[7] == 1,
                  .slots = choice[8] == 1,
                  .hostile = choice[9] == 1,
                  .rotary = static_cast<RotaryKind>(choice[10]),
                  .norm = choice[11] == 1,
                  .keys_only = choice[12] == 1,
                  .queries = static_cast<QueryKind>(choice[13]),
                  .positions = static_cast<PositionSource>(choice[14]),
                  .head_dim = kHeadDims[choice[16]],
                  .seed = seed};
  c.fused = choice[15] == 3;
  if (!c.fused) c.layout = kLayouts[choice[15]];
  if (c.head_dim == 576) c.heads = 1;
  // Adjusts combinations that are valid only if other options match them: q and k in one buffer, and positions that are
  // given for the new rows but used for all query rows.
  if (c.fused) {
    c.packed_q = c.packed;
    c.head_dim_v = c.head_dim = std::min<std::int64_t>(c.head_dim, 128);
    if (c.queries != QueryKind::kNone) c.queries = QueryKind::kInPlace;
  }
  if (c.positions == PositionSource::kPositions) {
    c.packed_q = c.packed;
    if (c.queries == QueryKind::kMoreLast || c.queries == QueryKind::kMoreFirst) c.queries = QueryKind::kLikeKeys;
  }
  return c;
}

/// Returns the allowed error of a value. The allowed error covers the rounding to the row's dtype, and the float32
/// rounding errors of a computation with numbers of the row's magnitude.
double budget(const ExpectedRow& row, std::size_t c) {
  const core::DTypeTraits traits = core::dtype_traits(row.dtype);
  double largest = 0;
  for (const double value : row.values) largest = std::max(largest, std::abs(value));
  const double computed = (row.is_copy && row.descale == 1 ? 0 : 8 * 0x1p-24 * largest) / row.descale;
  const double spacing = row.dtype == DType::kI8 ? 0.5 : traits.smallest_normal * traits.unit_roundoff;
  return computed + traits.unit_roundoff * (std::abs(row.values[c]) / row.descale + computed) + spacing;
}

/// Returns the exact number that the stored element must approximate: the value divided by its descale factor.
double wanted_element(const ExpectedRow& row, std::size_t c) {
  const double element = row.values[c] / row.descale;
  if (row.dtype == DType::kF8E4M3) return std::clamp(element, -448.0, 448.0);
  if (row.dtype == DType::kI8) return std::clamp(element, -128.0, 127.0);
  return element;
}

/// For a copied row with an 8-bit dtype, returns whether its bytes are exactly the rounded quotients. Returns true for
/// all other rows.
bool has_exact_bytes(const ExpectedRow& row) {
  if (!row.is_copy || !core::is_quantized(row.dtype)) return true;
  std::vector<std::uint8_t> bytes(row.values.size());
  for (std::size_t c = 0; c < bytes.size(); ++c) {
    const float quotient = static_cast<float>(row.values[c]) / static_cast<float>(row.descale);
    core::store(bytes.data(), row.dtype, static_cast<std::int64_t>(c), quotient);
  }
  return std::memcmp(bytes.data(), row.data, bytes.size()) == 0;
}

std::size_t bytes_of(const ExpectedRow& row) {
  return row.values.size() * static_cast<std::size_t>(dtype_bytes(row.dtype));
}

/// Returns copies of all memory that the call can access.
std::vector<std::vector<std::byte>> memory_of(const AppendInputs& in) {
  return {{in.pool.begin(), in.pool.end()}, in.k.memory(), in.v.memory(), in.q.memory(), in.q_out.memory()};
}

}  // namespace

std::vector<AppendCase> append_cases() {
  std::vector<AppendCase> all;
  const auto any = [](int, int, int, int) { return true; };
  for (const std::uint64_t seed : {1, 2, 3}) {
    for (const Choice& choice : covering_array(kFactors, any, seed)) all.push_back(case_of(choice, all.size() + 1));
  }
  return all;
}

void check_append(const AppendInputs& in, const std::function<void(const AppendInputs&)>& run) {
  const std::vector<ExpectedRow> rows = expected_rows(in);
  const auto before = memory_of(in);
  std::vector<std::vector<std::byte>> rows_before;
  for (const ExpectedRow& row : rows) {
    const auto* data = static_cast<const std::byte*>(row.data);
    rows_before.emplace_back(data, data + bytes_of(row));
  }
  run(in);
  Worst worst;
  std::vector<std::vector<std::byte>> written;
  for (const ExpectedRow& row : rows) {
    for (std::size_t n = 0; n < row.values.size(); ++n) {
      const double got = core::load(row.data, row.dtype, static_cast<std::int64_t>(n));
      worst.see(got, wanted_element(row, n), budget(row, n));
    }
    EXPECT_TRUE(has_exact_bytes(row));
    const auto* data = static_cast<const std::byte*>(row.data);
    written.emplace_back(data, data + bytes_of(row));
  }
  std::printf("%s\n  %zu rows, error/budget %.3g/%.3g\n", describe(in.options).c_str(), rows.size(), worst.error,
              worst.budget);
  EXPECT_TRUE(worst.in_budget());
  for (std::size_t n = 0; n < rows.size(); ++n) std::memcpy(rows[n].data, rows_before[n].data(), bytes_of(rows[n]));
  EXPECT_TRUE(memory_of(in) == before) << "bytes changed that belong to no row";
  for (std::size_t n = 0; n < rows.size(); ++n) std::memcpy(rows[n].data, written[n].data(), bytes_of(rows[n]));
}

}  // namespace attend::test
