// Problems for the tests of sm90_backward whose blocks divide the work in a certain way.
#pragma once

#include <cstdint>
#include <vector>

#include "support/attention_case.hpp"

namespace attend::test::sm90_backward {

/// Returns a bfloat16 problem without options and with as many keys as query rows.
AttentionCase plain(std::int64_t heads_q, std::int64_t heads_k, std::int64_t seqlen, std::int64_t head_dim,
                    bool causal);

/// Returns cases with groups of query heads, whose dk and dv are summed in memory. There are more key blocks than
/// multiprocessors, so the work of the last wave is split.
std::vector<AttentionCase> grouped_cases();

/// Returns cases with one or two heads per multiprocessor of an H200. Each block then computes complete heads, unless a
/// row tile sees no key.
std::vector<AttentionCase> own_head_cases();

/// Returns cases with two KV heads per multiprocessor of an H200. Their blocks of up to 64 columns are not persistent.
/// With few heads they are (tests/cuda/own_heads_test.cpp), so the other suites rarely test these blocks.
std::vector<AttentionCase> narrow_cases();

}  // namespace attend::test::sm90_backward
