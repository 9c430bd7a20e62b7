// Describes an append call as data: shapes, options and random inputs. A test can print a case and repeat it. Also
// computes the expected contents of the cache in float64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "attend/serving.hpp"
#include "serving/cache_case.hpp"
#include "support/tensor_array.hpp"
#include "support/tensor_buffer.hpp"

namespace attend::test {

enum class PoolLayout : std::uint8_t {
  kHeadsFirst,   // (pages, heads, page_size, head_dim)
  kTokensFirst,  // (pages, page_size, heads, head_dim)
  kOnePool,      // one allocation in which pages of k and v alternate, so their extents overlap
};
enum class RotaryKind : std::uint8_t { kNone, kHalves, kNeighbours, kSomeHalves, kLastNeighbours };
enum class QueryKind : std::uint8_t { kNone, kLikeKeys, kInPlace, kFewerLast, kMoreLast, kMoreFirst, kOne };
enum class PositionSource : std::uint8_t { kLengths, kRotarySeqlens, kPositions };

struct AppendCase {
  DType dtype = DType::kF32;
  DType cache_dtype = DType::kF32;
  Descales descales = Descales::kNone;  // must be kNone unless the cache has 8-bit elements
  DType table_dtype = DType::kF32;
  std::int64_t page_size = 0;  // keys per page; 0 means that the cache is contiguous
  PoolLayout pool = PoolLayout::kHeadsFirst;
  bool batch_idx = false;  // the cache rows are permuted; the last sequence maps to a row that does not exist
  bool packed = false;
  bool packed_q = false;
  bool slots = false;
  // Adds dead sequences, lengths at the capacity, missing pages, and positions beyond the rotary tables.
  bool hostile = false;
  RotaryKind rotary = RotaryKind::kNone;
  bool norm = false;
  bool keys_only = false;
  QueryKind queries = QueryKind::kNone;
  PositionSource positions = PositionSource::kLengths;
  Layout layout = Layout::kBHSD;
  bool fused = false;  // q, k and v are views of one buffer
  std::int64_t heads = 2;
  std::int64_t heads_q = 6;
  std::int64_t head_dim = 40;
  std::int64_t head_dim_v = 24;
  std::int64_t num_sequences = 6;
  std::int64_t most_new = 5;
  std::uint64_t seed = 1;
};

[[nodiscard]] std::string describe(const AppendCase& c);

inline void PrintTo(const AppendCase& c, std::ostream* out) {
  *out << describe(c);
}

/// Owns all memory that a call of the case points to. Do not move this object while call() is in use.
struct AppendInputs {
  AppendCase options;
  TensorBuffer k, v, q, q_out;  // only the tensors that the case uses are set
  TensorBuffer cos, sin, q_norm, k_norm, k_descale, v_descale;
  TensorArray<std::byte> pool;  // every byte starts as 0xFF
  Tensor k_cache, v_cache;
  TensorArray<std::int32_t> seqlens_k, pages, batch_idx, cu_seqlens_new, cu_seqlens_q, positions, rotary_seqlens;
  TensorArray<std::int64_t> slots;
  std::int64_t pages_per_row = 0, num_rows = 0;

  AppendInputs() = default;
  AppendInputs(const AppendInputs&) = delete;
  AppendInputs& operator=(const AppendInputs&) = delete;
  AppendInputs(AppendInputs&&) = default;
  AppendInputs& operator=(AppendInputs&&) = default;

  [[nodiscard]] AppendCall call() const;
};

[[nodiscard]] AppendInputs make_append_inputs(const AppendCase& c);

/// A row that the call must write.
struct ExpectedRow {
  void* data;  // address of the row's first element in the cache or in q_out
  DType dtype;
  bool is_copy;  // the row is a copy, so its values are exact before they are rounded to the dtype
  std::vector<double> values;
  double descale = 1;  // value = element * descale
};

/// Returns every row that the call writes, computed in float64 from the current inputs.
[[nodiscard]] std::vector<ExpectedRow> expected_rows(const AppendInputs& in);

}  // namespace attend::test
