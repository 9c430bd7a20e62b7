#include "core/append_checks.hpp"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "core/problem_checks.hpp"

namespace attend::core {
namespace {

/// Checks the length of a live sequence and its cache row.
void check_sequence(const AppendProblem& p, std::int64_t s, std::int64_t length) {
  const std::int64_t seqlen_new = p.new_rows.length(s);
  if (length > p.capacity) {
    refuse("seqlens_k: entry {} is {}, allowed at most the capacity, {}", s, length, p.capacity);
  }
  const CachedSequence in_cache = p.cached(s);
  if (in_cache.dead) {
    refuse("cache_batch_idx: entry {} is {}, allowed 0 to {}", s, in_cache.cache_row, p.cache_rows() - 1);
  }
  if (length + seqlen_new > p.capacity) {
    refuse("seqlens_k: entry {} is {}, and {} new keys would end beyond the capacity, {}", s, length, seqlen_new,
           p.capacity);
  }
}

/// Checks that the destination of new row i exists. If the row's slot is negative, there is nothing to check, because
/// the call skips the row.
void check_place(const AppendProblem& p, const CachedSequence& in_cache, std::int64_t s, std::int64_t i) {
  if (p.destination(in_cache, s, i).block >= 0) return;
  if (p.slot_mapping != nullptr) {
    const std::int64_t token = p.new_rows.begin(s) + i;
    const std::int64_t slot = p.slot_mapping[token];
    if (slot < 0) return;
    refuse("slot_mapping: entry {} is {}, allowed up to {}, or negative", token, slot, p.num_blocks * p.block_size - 1);
  }
  const std::int64_t entry = (in_cache.length + i) / p.block_size;
  const PageTable& table = *p.cache.page_table;
  refuse("page_table: entry ({}, {}) is {}, and sequence {} gets keys there; allowed 0 to {}", in_cache.cache_row,
         entry, table.pages[in_cache.cache_row * table.row_stride + entry], s, p.num_blocks - 1);
}

void check_position(const AppendProblem& p, const CachedSequence& in_cache, std::int64_t s, std::int64_t i) {
  const std::int64_t position = p.position(in_cache, s, i);
  if (!p.rotary || (position >= 0 && position < p.max_positions())) return;
  if (p.positions != nullptr) {
    refuse("positions: entry {} is {}, allowed 0 to {}", p.new_rows.begin(s) + i, position, p.max_positions() - 1);
  }
  refuse("{}: entry {} gives a row the position {}, allowed 0 to {}",
         p.rotary->seqlens != nullptr ? "rotary.seqlens" : "seqlens_k", s, position, p.max_positions() - 1);
}

/// Destination of a new row, and the number of the row among all new rows (its token).
struct Arrival {
  std::int64_t slot;
  std::int64_t token;
};

void check_arrivals(const AppendProblem& p, std::vector<Arrival> arrivals) {
  std::ranges::sort(arrivals, {}, [](const Arrival& a) { return std::pair{a.slot, a.token}; });
  const auto twice = std::ranges::adjacent_find(arrivals, {}, &Arrival::slot);
  if (twice == arrivals.end()) return;
  const char* name = p.slot_mapping != nullptr ? "slot_mapping" : p.cache.page_table ? "page_table" : "cache_batch_idx";
  refuse("{}: new rows {} and {} are both written to row {} of {} {}, allowed separate places", name, twice[0].token,
         twice[1].token, twice->slot % p.block_size, p.cache.page_table ? "page" : "cache row",
         twice->slot / p.block_size);
}

bool is_same(const std::optional<Tensor>& a, const std::optional<ConstTensor>& b) {
  return a.has_value() == b.has_value() && (!a || is_same_view(*a, input_view(*b)));
}

bool is_same_input(const std::optional<ConstTensor>& a, const std::optional<ConstTensor>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  return is_same_view(input_view(*a), input_view(*b));
}

bool is_same(const std::optional<PageTable>& a, const std::optional<PageTable>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  return a->pages == b->pages && a->num_rows == b->num_rows && a->pages_per_row == b->pages_per_row &&
         a->row_stride == b->row_stride;
}

}  // namespace

void check_query_rows(const AppendProblem& p) {
  if (!p.q || p.positions == nullptr) return;
  for (std::int64_t s = 0; s < p.num_sequences(); ++s) {
    const std::int64_t rows = p.q_rows.length(s), new_rows = p.new_rows.length(s);
    if (rows == 0 || p.sequence(s).dead) continue;
    if (p.new_row_of_query(s, 0) >= 0 && p.new_row_of_query(s, rows - 1) < new_rows) continue;
    refuse("positions: sequence {} has {} query rows and {} new rows, allowed a new row for each query row", s, rows,
           new_rows);
  }
}

void check_append_entries(const AppendProblem& p) {
  std::vector<Arrival> arrivals;
  for (std::int64_t s = 0; s < p.num_sequences(); ++s) {
    const std::int64_t length = p.cache.seqlens_k != nullptr ? p.cache.seqlens_k[s] : 0;
    if (length < 0) continue;  // a negative length means a dead sequence, whose other entries are not checked
    if (p.slot_mapping == nullptr) check_sequence(p, s, length);
    const CachedSequence in_cache = p.sequence(s);
    for (std::int64_t i = 0; i < p.new_rows.length(s); ++i) {
      check_place(p, in_cache, s, i);
      const CachePlace at = p.destination(in_cache, s, i);
      if (at.block < 0) continue;
      check_position(p, in_cache, s, i);
      arrivals.push_back({at.block * p.block_size + at.row, p.new_rows.begin(s) + i});
    }
    if (!p.q) continue;
    for (std::int64_t i = 0; i < p.q_rows.length(s); ++i) check_position(p, in_cache, s, p.new_row_of_query(s, i));
  }
  check_arrivals(p, std::move(arrivals));
}

void check_one_cache(const AppendCall& append, const DecodeCall& decode) {
  const CacheIndex &a = append.cache, &d = decode.cache;
  for (const auto& [name, same] : {std::pair{"k_cache", is_same(append.k_cache, decode.k_cache)},
                                   {"v_cache", is_same(append.v_cache, decode.v_cache)},
                                   {"seqlens_k", a.seqlens_k == d.seqlens_k},
                                   {"page_table", is_same(a.page_table, d.page_table)},
                                   {"cache_batch_idx", a.cache_batch_idx == d.cache_batch_idx},
                                   {"k_descale", is_same_input(a.k_descale, d.k_descale)},
                                   {"v_descale", is_same_input(a.v_descale, d.v_descale)}}) {
    if (!same) refuse("{}: different in append and decode, allowed the same one in both", name);
  }
  const std::int64_t of_append = append.cu_seqlens_new != nullptr ? append.num_sequences : append.k.shape[0];
  const std::int64_t of_decode =
      decode.params.cu_seqlens_q != nullptr ? decode.params.num_sequences : decode.q.shape[0];
  if (of_append != of_decode) {
    refuse("num_sequences: append has {}, decode has {}, allowed the same number in both", of_append, of_decode);
  }
}

void check_outputs_apart(const DecodeProblem& decode, const AppendProblem& append) {
  using Tensors = std::initializer_list<NamedTensor>;
  const auto check = [](Tensors outputs, Tensors inputs) {
    for (const auto& [name, out] : outputs) {
      for (const auto& [input_name, input] : inputs) {
        if (out == nullptr || input == nullptr || !may_share_bytes(*out, *input)) continue;
        refuse("{}: shares memory with {}, allowed a separate buffer", name, input_name);
      }
    }
  };
  const auto given = [](const std::optional<Tensor>& t) { return t ? &*t : nullptr; };
  std::optional<Tensor> cos, sin;
  if (append.rotary) {
    cos = input_view(append.rotary->cos);
    sin = input_view(append.rotary->sin);
  }
  check({{"o", &decode.o}, {"lse", given(decode.lse)}}, {{"k", &append.k},
                                                         {"v", given(append.v)},
                                                         {"rotary.cos", given(cos)},
                                                         {"rotary.sin", given(sin)},
                                                         {"q_norm", given(append.q_norm)},
                                                         {"k_norm", given(append.k_norm)}});
  check({{"k_cache", &append.k_cache}, {"v_cache", given(append.v_cache)}},
        {{"q", &decode.q}, {"alibi_slopes", given(decode.alibi_slopes)}, {"sinks", given(decode.sinks)}});
}

}  // namespace attend::core
