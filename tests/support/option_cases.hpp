// Small problems that together use every option. These problems are meant for checks that would be too slow on large
// problems.
#pragma once

#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

/// Calls with(change) once for each variant with sinks. `change` adds the sinks to a problem that has none.
template <class With>
void sink_cases(const With& with) {
  with([](AttentionCase& c) { c.sinks = true; });
  with([](AttentionCase& c) { c.sinks = c.sinks_per_sequence = true, c.heads_q = 6, c.dlse = false; });
  with([](AttentionCase& c) { c.sinks = true, c.causal = true, c.seqlen_q = 7; });  // the first rows see no key
  with([](AttentionCase& c) {
    c.varlen_q = {3, 0, 2, 4}, c.varlen_k = {2, 4, 0, 5}, c.sinks = c.sinks_per_sequence = true;
  });
  with([](AttentionCase& c) {
    c.heads_q = 4, c.softcap = 2, c.bias = Broadcast{true, true, true}, c.mask = Broadcast{false, false, true};
    c.causal = true, c.window_left = 3, c.alibi = true, c.dropout_p = 0.25, c.scale = -0.9, c.sinks = true;
  });
}

/// Returns one problem without options, one problem per option and a few combinations of options, all with dtype
/// `dtype`.
[[nodiscard]] inline std::vector<AttentionCase> option_cases(DType dtype) {
  const AttentionCase plain = {.dtype = dtype,
                               .batch = 2,
                               .heads_q = 2,
                               .heads_k = 2,
                               .seqlen_q = 4,
                               .seqlen_k = 5,
                               .head_dim = 3,
                               .head_dim_v = 3,
                               .dlse = true,
                               .seed = 11};
  std::vector<AttentionCase> cases = {plain};
  const auto with = [&](auto change) {
    AttentionCase c = plain;
    change(c);
    c.seed += cases.size();
    cases.push_back(c);
  };
  with([](AttentionCase& c) { c.heads_q = 6; });
  with([](AttentionCase& c) { c.heads_q = 5, c.heads_k = 1; });
  with([](AttentionCase& c) { c.head_dim_v = 7; });
  with([](AttentionCase& c) { c.head_dim = 9, c.head_dim_v = 1; });
  with([](AttentionCase& c) { c.scale = 0.7; });
  with([](AttentionCase& c) { c.scale = -0.4; });
  with([](AttentionCase& c) { c.scale = 0.0; });
  with([](AttentionCase& c) { c.causal = true; });
  with([](AttentionCase& c) { c.causal = true, c.seqlen_q = 7; });  // the first two rows see no key
  with([](AttentionCase& c) { c.window_left = 1; });
  with([](AttentionCase& c) { c.window_right = 1, c.seqlen_q = 6; });
  with([](AttentionCase& c) { c.window_left = 1, c.window_right = 0; });
  with([](AttentionCase& c) { c.causal = true, c.window_left = 2, c.window_right = 3; });
  with([](AttentionCase& c) { c.softcap = 0.8; });
  with([](AttentionCase& c) { c.alibi = true; });
  with([](AttentionCase& c) { c.alibi = c.alibi_per_sequence = true; });
  for (int bits = 0; bits < 8; ++bits) {
    const Broadcast full = {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
    with([&](AttentionCase& c) { c.bias = full; });
    with([&](AttentionCase& c) { c.mask = full; });
  }
  with([](AttentionCase& c) { c.dropout_p = 0.3; });
  with([](AttentionCase& c) { c.dropout_p = 0.5, c.seqlen_k = 11, c.heads_q = 4; });
  with([](AttentionCase& c) { c.varlen_q = {3, 0, 2, 4}, c.varlen_k = {2, 4, 0, 5}; });
  with([](AttentionCase& c) {
    c.varlen_q = {1, 5}, c.varlen_k = {6, 3}, c.causal = true, c.window_left = 3, c.heads_q = 4;
    c.alibi = c.alibi_per_sequence = true, c.softcap = 1.5, c.dropout_p = 0.2;
  });
  with([](AttentionCase& c) { c.dlse = false; });
  with([](AttentionCase& c) { c.broadcast_dout = true; });
  with([](AttentionCase& c) {
    c.heads_q = 4, c.softcap = 2, c.bias = Broadcast{false, true, true}, c.mask = Broadcast{true, false, true};
    c.causal = true, c.window_left = 3, c.alibi = true, c.dropout_p = 0.25, c.scale = -0.9;
  });
  sink_cases(with);
  return cases;
}

}  // namespace attend::test
