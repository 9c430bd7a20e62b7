// Implements the C interface for decode, append and merge.
#include "attend/serving.hpp"

#include <vector>

#include "c/arguments.hpp"
#include "c/struct_sizes.hpp"

using attend::c::guarded;

namespace attend::c {
namespace {

PageTable page_table_of(const attend_page_table* given) {
  const attend_page_table table = read_struct("page_table", given);
  return {.pages = table.pages,
          .num_rows = table.num_rows,
          .pages_per_row = table.pages_per_row,
          .row_stride = table.row_stride};
}

CacheIndex cache_of(const attend_cache_index* given) {
  if (given == nullptr) return {};
  const attend_cache_index c = read_struct("cache", given);
  CacheIndex cache = {.seqlens_k = c.seqlens_k,
                      .cache_batch_idx = c.cache_batch_idx,
                      .cache_leftpad = c.cache_leftpad,
                      .k_descale = optional_input_of("k_descale", c.k_descale),
                      .v_descale = optional_input_of("v_descale", c.v_descale)};
  if (c.page_table != nullptr) cache.page_table = page_table_of(c.page_table);
  return cache;
}

DecodeParams decode_params_of(const attend_decode_params* given) {
  if (given == nullptr) return {};
  const attend_decode_params p = read_struct("params", given);
  check_reserved("params", p.reserved);
  DecodeParams params = {.causal = flag("causal", p.causal),
                         .window_left = p.window_left,
                         .window_right = p.window_right,
                         .softcap = p.softcap,
                         .alibi_slopes = optional_input_of("alibi_slopes", p.alibi_slopes),
                         .sinks = optional_input_of("sinks", p.sinks),
                         .cu_seqlens_q = p.cu_seqlens_q,
                         .num_sequences = p.num_sequences,
                         .max_seqlen_q = p.max_seqlen_q,
                         .tree_mask = p.tree_mask,
                         .lse_base2 = flag("lse_base2", p.lse_base2),
                         .compute = compute_of(p.compute)};
  if (flag("has_scale", p.has_scale)) params.scale = p.scale;
  return params;
}

DecodeCall decode_call_of(const char* name, const attend_decode_call* given) {
  const attend_decode_call call = read_struct(name, given);
  return {.q = tensor_of("q", call.q),
          .k_cache = tensor_of("k_cache", call.k_cache),
          .v_cache = optional_input_of("v_cache", call.v_cache),
          .o = tensor_of("o", call.o),
          .lse = optional_tensor_of("lse", call.lse),
          .cache = cache_of(call.cache),
          .params = decode_params_of(call.params),
          .stream = call.stream};
}

Rotary rotary_of(const attend_rotary* given) {
  const attend_rotary r = read_struct("rotary", given);
  check_reserved("rotary", r.reserved);
  return {.cos = tensor_of("rotary.cos", r.cos),
          .sin = tensor_of("rotary.sin", r.sin),
          .interleaved = flag("rotary.interleaved", r.interleaved),
          .first_column = r.first_column,
          .seqlens = r.seqlens};
}

AppendCall append_call_of(const char* name, const attend_append_call* given) {
  const attend_append_call a = read_struct(name, given);
  check_reserved(name, a.reserved);
  AppendCall call = {.k = tensor_of("k", a.k),
                     .v = optional_input_of("v", a.v),
                     .k_cache = tensor_of("k_cache", a.k_cache),
                     .v_cache = optional_tensor_of("v_cache", a.v_cache),
                     .cache = cache_of(a.cache),
                     .cu_seqlens_new = a.cu_seqlens_new,
                     .num_sequences = a.num_sequences,
                     .max_seqlen_new = a.max_seqlen_new,
                     .slot_mapping = a.slot_mapping,
                     .positions = a.positions,
                     .q = optional_input_of("q", a.q),
                     .q_out = optional_tensor_of("q_out", a.q_out),
                     .cu_seqlens_q = a.cu_seqlens_q,
                     .max_seqlen_q = a.max_seqlen_q,
                     .query_positions = enumerator("query_positions", a.query_positions, QueryPositions::kOne),
                     .q_norm = optional_input_of("q_norm", a.q_norm),
                     .k_norm = optional_input_of("k_norm", a.k_norm),
                     .norm_eps = a.norm_eps,
                     .stream = a.stream};
  if (a.rotary != nullptr) call.rotary = rotary_of(a.rotary);
  return call;
}

std::vector<PartialState> states_of(const attend_partial_state* given, std::int64_t count) {
  if (count < 0) refuse("num_states: {}, allowed >= 1", count);
  if (given == nullptr && count != 0) refuse("states: null, allowed {} of them", count);
  std::vector<PartialState> states;
  for (std::int64_t n = 0; n < count; ++n) {
    states.push_back({.o = tensor_of(fmt::format("states[{}].o", n).c_str(), given[n].o),
                      .lse = tensor_of(fmt::format("states[{}].lse", n).c_str(), given[n].lse)});
  }
  return states;
}

void merge_states(const attend_merge_call* given) {
  const attend_merge_call call = read_struct("call", given);
  check_reserved("call", call.reserved);
  const std::vector<PartialState> states = states_of(call.states, call.num_states);
  const std::optional<Tensor> lse = optional_tensor_of("lse", call.lse);
  const MergeParams params = {.sinks = optional_input_of("sinks", call.sinks),
                              .lse_base2 = flag("lse_base2", call.lse_base2)};
  merge(states, tensor_of("o", call.o), lse ? &*lse : nullptr, params, call.stream);
}

static_assert(ATTEND_POSITIONS_LAST == static_cast<int>(QueryPositions::kLast) &&
              ATTEND_POSITIONS_FIRST == static_cast<int>(QueryPositions::kFirst) &&
              ATTEND_POSITIONS_ONE == static_cast<int>(QueryPositions::kOne));

}  // namespace
}  // namespace attend::c

void attend_page_table_init(attend_page_table* table, std::size_t struct_size) {
  attend::c::fill_struct(table, struct_size, {});
}

void attend_cache_index_init(attend_cache_index* cache, std::size_t struct_size) {
  attend::c::fill_struct(cache, struct_size, {});
}

void attend_decode_params_init(attend_decode_params* params, std::size_t struct_size) {
  attend_decode_params defaults = {};
  defaults.causal = 1;
  defaults.window_left = -1;
  defaults.window_right = -1;
  attend::c::fill_struct(params, struct_size, defaults);
}

void attend_decode_call_init(attend_decode_call* call, std::size_t struct_size) {
  attend::c::fill_struct(call, struct_size, {});
}

std::int32_t attend_decode(const attend_decode_call* call, attend_error* error) {
  return guarded(error, [&] { attend::decode(attend::c::decode_call_of("call", call)); });
}

void attend_rotary_init(attend_rotary* rotary, std::size_t struct_size) {
  attend::c::fill_struct(rotary, struct_size, {});
}

void attend_append_call_init(attend_append_call* call, std::size_t struct_size) {
  attend_append_call defaults = {};
  defaults.norm_eps = attend::AppendCall{}.norm_eps;
  attend::c::fill_struct(call, struct_size, defaults);
}

std::int32_t attend_append(const attend_append_call* call, attend_error* error) {
  return guarded(error, [&] { attend::append(attend::c::append_call_of("call", call)); });
}

std::int32_t attend_append_and_decode(const attend_append_call* append, const attend_decode_call* decode,
                                      attend_error* error) {
  return guarded(error, [&] {
    const attend::AppendCall append_call = attend::c::append_call_of("append", append);
    attend::decode(append_call, attend::c::decode_call_of("decode", decode));
  });
}

void attend_merge_call_init(attend_merge_call* call, std::size_t struct_size) {
  attend::c::fill_struct(call, struct_size, {});
}

std::int32_t attend_merge(const attend_merge_call* call, attend_error* error) {
  return guarded(error, [&] { attend::c::merge_states(call); });
}
