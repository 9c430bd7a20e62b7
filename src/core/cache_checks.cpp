#include "core/cache_checks.hpp"

#include <array>
#include <string_view>

#include "core/environment.hpp"
#include "core/problem_checks.hpp"

namespace attend::core {
namespace {

/// Checks the numbers of all pages with keys that a row of the sequence may see.
void check_pages(const DecodeProblem& p, const DecodeSequence& s) {
  if (s.seqlen_q == 0 || s.seqlen_k == 0) return;
  const PageTable& table = *p.cache.page_table;
  const KeyRange first = p.keys_of_row(s, 0);
  const KeyRange last = p.keys_of_row(s, s.seqlen_q - 1);
  if (last.end <= first.begin) return;
  for (std::int64_t n = first.begin / p.block_size; n * p.block_size < last.end; ++n) {
    const std::int64_t page = table.pages[s.cache_row * table.row_stride + n];
    if (page >= 0 && page < p.k.shape[0]) continue;
    refuse("page_table: entry ({}, {}) is {}, and sequence {} has keys there; allowed 0 to {}", s.cache_row, n, page,
           s.index, p.k.shape[0] - 1);
  }
}

}  // namespace

bool checks_caches() {
  static constexpr std::array<std::string_view, 2> kAllowed = {"0", "1"};
  static const bool kWanted = environment_choice("ATTEND_CHECK", kAllowed) == std::size_t{1};
  return kWanted;
}

void check_cache_entries(const DecodeProblem& p) {
  for (std::int64_t index = 0; index < p.num_sequences; ++index) {
    const std::int64_t length = p.cache.seqlens_k != nullptr ? p.cache.seqlens_k[index] : p.capacity;
    if (length < 0) continue;  // a negative length means a dead sequence, whose other entries are not checked
    if (length > p.capacity) {
      refuse("seqlens_k: entry {} is {}, allowed at most the capacity, {}", index, length, p.capacity);
    }
    const DecodeSequence s = p.sequence(index);
    if (s.dead) {
      refuse("cache_batch_idx: entry {} is {}, allowed 0 to {}", index, s.cache_row, p.cache_rows() - 1);
    }
    if (p.cache.page_table) check_pages(p, s);
  }
}

}  // namespace attend::core
