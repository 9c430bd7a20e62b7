// Random decode calls that cover every cache layout. All memory that must not be read is NaN.
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

/// Runs decode() on the tested device and returns when the device has finished.
using Decode = std::function<void(const DecodeCall&)>;

/// Returns a function that runs decode() with the named CPU backend.
[[nodiscard]] Decode decode_with(std::string_view compute);

/// Selects which parts of an 8-bit cache have separate descale factors. With kNone the cache has no descale factors.
enum class Descales : std::uint8_t { kNone, kOne, kHeads, kSequences, kRows };

/// Returns a tensor for the descale factors of `cache`. All factors are NaN.
[[nodiscard]] TensorBuffer descales_of(Descales kind, std::int64_t num_sequences, const Shape& cache);

/// Returns the descale factor of one cache row of a sequence, or 1 if there are no descale factors.
[[nodiscard]] double descale_at(const TensorBuffer& descales, Descales kind, std::int64_t s, std::int64_t head,
                                std::int64_t block, std::int64_t row);

/// Properties of a decode call that a test chooses. Everything else about the call is random.
struct CacheFacts {
  DType dtype = DType::kF32;
  std::optional<DType> cache_dtype = {};  ///< unset means the dtype of q
  Descales descales = Descales::kNone;    ///< must be kNone unless the cache has 8-bit elements
  std::int64_t head_dim = 64;
  std::int64_t head_dim_v = 64;
  bool values_in_keys = false;  ///< the values are the first columns of the keys, so there is no v_cache
  std::int64_t num_heads_k = 2;
  std::int64_t group = 2;
  std::int64_t page_size = 0;  ///< keys per page; 0 means that the cache is contiguous
  Layout layout = Layout::kBHSD;
  bool packed = false;
  std::vector<std::int64_t> rows;     ///< number of query rows of each sequence; must be equal for all sequences unless
                                      ///< `packed` is set
  std::vector<std::int64_t> lengths;  ///< number of keys of each sequence; a negative number makes the sequence dead
  std::int64_t capacity = 0;          ///< keys for which each cache row has space; 0 means the length of the longest
                                      ///< sequence
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
  bool missing_pages = false;  ///< if set, some page in the table of a sequence does not exist

  [[nodiscard]] std::string text() const;
  [[nodiscard]] DType type_of_cache() const { return cache_dtype.value_or(dtype); }
};

/// A decode call that owns all memory it refers to.
class CacheCase {
 public:
  CacheCase(const CacheFacts& facts, std::uint64_t seed);

  [[nodiscard]] DecodeCall call() const;

  /// Runs the call. Both outputs are NaN before the call.
  struct Result {
    std::vector<double> o;
    std::vector<double> lse;
    std::vector<std::byte> o_bytes;
    std::vector<std::byte> lse_bytes;
    bool gaps_intact;
  };
  [[nodiscard]] Result run(const Decode& decode) const;
  [[nodiscard]] Result run(std::string_view compute) const { return run(decode_with(compute)); }

  /// Returns the bytes of the o and lse rows that belong to one sequence.
  [[nodiscard]] std::vector<std::byte> bytes_of_sequence(const Result& result, std::int64_t s) const;

  [[nodiscard]] const CacheFacts& facts() const { return facts_; }
  [[nodiscard]] std::int64_t num_sequences() const { return static_cast<std::int64_t>(facts_.lengths.size()); }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }

  /// Position of one key in the cache: the batch entry or page, and the row in it.
  struct Place {
    std::int64_t block, row;
  };
  [[nodiscard]] std::optional<Place> place(std::int64_t s, std::int64_t j) const;

  /// Return one column of a key or of its value. The result is the number that the stored element represents.
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
