// The fields of the named tuples Tensors and Numbers. attend/_serving.py imports the names of the fields. The C++ code
// reads the fields by position, which is faster than by name.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

namespace attend::python {

inline constexpr std::string_view kTensorFields =
    "q k_cache v_cache out lse seqlens_k page_table cache_batch_idx cache_leftpad cu_seqlens_q tree_mask alibi_slopes "
    "sinks k v cu_seqlens_new slot_mapping positions rotary_cos rotary_sin rotary_seqlens q_norm k_norm "
    "k_descale v_descale";
inline constexpr std::string_view kNumberFields =
    "layout max_seqlen_q scale causal window_left window_right softcap lse_base2 max_seqlen_new rotary_interleaved "
    "rotary_first_column query_positions norm_eps compute";

/// Returns the position of `word` in a list of words, or nothing if the list does not contain it.
constexpr std::optional<std::size_t> find_word(std::string_view word, std::string_view words) {
  for (std::size_t position = 0; !words.empty(); ++position) {
    const std::size_t length = std::min(words.find(' '), words.size());
    if (words.substr(0, length) == word) return position;
    words.remove_prefix(std::min(length + 1, words.size()));
  }
  return std::nullopt;
}

/// Returns the position of `word` in a list of words. If the list does not contain it, the code does not compile.
consteval std::size_t position_of(std::string_view word, std::string_view words) {
  return find_word(word, words).value();
}

inline constexpr auto kNumTensorFields = static_cast<std::size_t>(std::ranges::count(kTensorFields, ' ') + 1);
inline constexpr auto kNumNumberFields = static_cast<std::size_t>(std::ranges::count(kNumberFields, ' ') + 1);

struct TensorField {
  const char* name;  ///< name of the field, which is also its name in error messages
  std::size_t position;
  consteval TensorField(const char* field) : name(field), position(position_of(field, kTensorFields)) {}
};

struct NumberField {
  const char* name;  ///< name in error messages
  std::size_t position;
  consteval NumberField(const char* field) : NumberField(field, field) {}
  consteval NumberField(const char* field, const char* shown)
      : name(shown), position(position_of(field, kNumberFields)) {}
};

}  // namespace attend::python
