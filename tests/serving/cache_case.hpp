// Random decode calls on caches of every kind. All memory that must not be read is NaN.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "attend/serving.hpp"
#include "support/tensor_array.hpp"
#include "support/tensor_buffer.hpp"

namespace attend::test {

/// Calls decode() as a test does: on a CPU, or on a GPU, for which it then waits.
using Decode = std::function<void(const DecodeCall&)>;

/// Returns decode() with a CPU backend.
[[nodiscard]] Decode decode_with(std::string_view compute);

/// The parts of an 8-bit cache that have separate descale factors. kNone: there are no factors.
enum class Descales : std::uint8_t { kNone, kOne, kHeads, kSequences, kRows };

/// Returns the factors of a cache with `rows` rows per block. All are NaN.
[[nodiscard]] TensorBuffer descales_of(Descales kind, std::int64_t num_sequences, const Shape& cache);

/// Returns the factor of a row of a sequence, or 1 if there are no factors.
[[nodiscard]] double descale_at(const TensorBuffer& descales, Descales kind, std::int64_t s, std::int64_t head,
                                std::int64_t block, std::int64_t row);

/// Properties of a decode call. Everything else about the call is random.
struct CacheFacts {
  DType dtype = DType::kF32;
  std::optional<DType> cache_dtype = {};  ///< absent: same as q
  Descales descales = Descales::kNone;    ///< only for 8-bit caches
  std::int64_t head_dim = 64;
  std::int64_t head_dim_v = 64;
  bool values_in_keys = false;  ///< there is no v_cache
  std::int64_t num_heads_k = 2;
  std::int64_t group = 2;
  std::int64_t page_size = 0;  ///< 0 means contiguous
  Layout layout = Layout::kBHSD;
  bool packed = false;
  std::vector<std::int64_t> rows;     ///< query rows of each sequence; all equal if not packed
  std::vector<std::int64_t> lengths;  ///< keys of each sequence; negative means dead
  std::int64_t capacity = 0;          ///< 0: the longest sequence
  bool batch_idx = false;
  bool leftpad = false;
  bool tree = false;
  bool causal = true;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  double softcap = 0;
  bool alibi = false;
  bool sinks = false;
  bool lse_base2 = false;
  bool missing_pages = false;  ///< some page of a sequence does not exist

  [[nodiscard]] std::string text() const;
  [[nodiscard]] DType type_of_cache() const { return cache_dtype.value_or(dtype); }
};

/// A call that owns all memory it refers to.
class CacheCase {
 public:
  CacheCase(const CacheFacts& facts, std::uint64_t seed);

  [[nodiscard]] DecodeCall call() const;

  /// Runs the call with outputs that start as NaN.
  struct Result {
    std::vector<double> o;
    std::vector<double> lse;
    std::vector<std::byte> o_bytes;
    std::vector<std::byte> lse_bytes;
    bool gaps_intact;
  };
  [[nodiscard]] Result run(const Decode& decode) const;
  [[nodiscard]] Result run(std::string_view compute) const { return run(decode_with(compute)); }

  /// Returns the bytes of o and lse of one sequence of a result.
  [[nodiscard]] std::vector<std::byte> bytes_of_sequence(const Result& result, std::int64_t s) const;

  [[nodiscard]] const CacheFacts& facts() const { return facts_; }
  [[nodiscard]] std::int64_t num_sequences() const { return static_cast<std::int64_t>(facts_.lengths.size()); }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }

  /// Position of key j of sequence s: batch entry and row of the cache. Empty if its page does not exist.
  struct Place {
    std::int64_t block, row;
  };
  [[nodiscard]] std::optional<Place> place(std::int64_t s, std::int64_t j) const;

  /// Return the numbers that the elements of a key and of its value represent.
  [[nodiscard]] double key(std::int64_t s, std::int64_t head, const Place& at, std::int64_t column) const;
  [[nodiscard]] double value(std::int64_t s, std::int64_t head, const Place& at, std::int64_t column) const;

  TensorArray<std::int32_t> seqlens, pages, batch_idx, leftpad, cu_seqlens_q;
  TensorArray<std::uint64_t> tree;
  TensorBuffer q, k, v, k_descale, v_descale, alibi_slopes, sinks;
  std::int64_t pages_per_row = 0;

 private:
  void make_lengths(std::mt19937_64& random);
  void make_tables(std::mt19937_64& random);
  void make_tensors(std::mt19937_64& random);
  void make_descales(std::mt19937_64& random);

  CacheFacts facts_;
  std::int64_t capacity_ = 0;
  std::int64_t num_blocks_ = 0;
};

}  // namespace attend::test
