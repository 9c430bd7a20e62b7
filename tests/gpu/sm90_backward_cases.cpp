#include "gpu/sm90_backward_cases.hpp"

#include "gpu/forward_checks.hpp"

namespace attend::test::sm90_backward {

AttentionCase plain(std::int64_t heads_q, std::int64_t heads_k, std::int64_t seqlen, std::int64_t head_dim,
                    bool causal) {
  return test::plain(DType::kBF16, heads_q, heads_k, seqlen, seqlen, head_dim, causal);
}

std::vector<AttentionCase> grouped_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](DType dtype, std::int64_t heads_q, std::int64_t heads_k, std::int64_t q, std::int64_t k,
                       std::int64_t head_dim, std::int64_t head_dim_v, bool causal) -> AttentionCase& {
    AttentionCase c = plain(heads_q, heads_k, q, head_dim, causal);
    c.dtype = dtype;
    c.seqlen_k = k;
    c.head_dim_v = head_dim_v;
    c.dlse = cases.size() % 2 == 1;
    c.layout = cases.size() % 3 == 0 ? CaseLayout::kBSHD : CaseLayout::kBHSD;
    c.sinks = cases.size() % 3 == 1;
    c.seed = 900 + cases.size();
    return cases.emplace_back(c);
  };
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    add(dtype, 8, 1, 1030, 300, 128, 128, false);
    add(dtype, 16, 2, 2085, 333, 128, 64, true);
    add(dtype, 8, 1, 1100, 193, 64, 64, false).batch = 2;
    add(dtype, 9, 1, 2100, 400, 40, 64, true);
  }
  add(DType::kBF16, 4, 1, 4100, 130, 128, 128, false);
  add(DType::kBF16, 16, 2, 1030, 130, 128, 128, false).dropout_p = 0.2;
  add(DType::kBF16, 8, 1, 1030, 200, 64, 64, false).alibi = true;
  add(DType::kBF16, 144, 18, 1030, 600, 72, 24, false);
  add(DType::kBF16, 34, 34, 150, 600, 128, 128, false);
  add(DType::kBF16, 34, 34, 150, 600, 64, 64, false);  // persistent blocks of 64 columns, whose last items are cut
  add(DType::kBF16, 34, 34, 150, 600, 128, 128, false).deterministic = true;
  add(DType::kBF16, 68, 34, 70, 600, 80, 80, true);
  // More than 16 key blocks, so the fixed order of the sums consists of two parts.
  for (const std::int64_t head_dim : {128, 64}) {
    for (const bool causal : {true, false})
      add(DType::kBF16, 2, 1, 2300, 2500, head_dim, 128, causal).deterministic = true;
    AttentionCase& windowed = add(DType::kBF16, 2, 2, 2500, 2500, head_dim, head_dim, false);
    windowed.window_left = 1300;
    windowed.window_right = 40;
    windowed.deterministic = true;
    AttentionCase& packed = add(DType::kF16, 2, 1, 2300, 2500, head_dim, head_dim, true);
    packed.varlen_q = {2300, 700};
    packed.varlen_k = {2500, 900};
    packed.deterministic = true;
  }
  return cases;
}

std::vector<AttentionCase> own_head_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](std::int64_t q, std::int64_t k, std::int64_t head_dim, std::int64_t head_dim_v,
                       bool causal) -> AttentionCase& {
    AttentionCase c = plain(11, 11, q, head_dim, causal);
    c.batch = 12;
    c.dtype = cases.size() % 2 == 0 ? DType::kBF16 : DType::kF16;
    c.seqlen_k = k;
    c.head_dim_v = head_dim_v;
    c.dlse = cases.size() % 3 == 1;
    c.layout = cases.size() % 4 < 2 ? CaseLayout::kBSHD : CaseLayout::kBHSD;
    c.seed = 700 + cases.size();
    return cases.emplace_back(c);
  };
  for (const std::int64_t head_dim : {64, 128}) {
    add(200, 200, head_dim, head_dim, false);
    add(257, 257, head_dim, head_dim, true);
    add(64, 300, head_dim, head_dim, true);
    add(129, 127, head_dim, head_dim, false);
    add(200, 190, head_dim, head_dim, true);  // only some rows of the first tile see keys
    add(200, 120, head_dim, head_dim, true);  // no row of the first tile sees a key
    add(1, 1, head_dim, head_dim, false);
    add(5, 260, head_dim, head_dim, false).deterministic = true;
    AttentionCase& windowed = add(300, 260, head_dim, head_dim, false);
    windowed.window_left = 100;
    windowed.window_right = 30;
    add(257, 257, head_dim, head_dim, true).deterministic = true;
    add(193, 140, head_dim, head_dim, true).alibi = true;
    add(130, 260, head_dim, head_dim, false).dropout_p = 0.2;
    add(193, 257, head_dim, head_dim, true).softcap = 10;
    add(130, 129, head_dim, head_dim, true).sinks = true;
    add(70, 140, head_dim, head_dim, true).batch = 24;
  }
  add(193, 193, 80, 72, true);
  add(150, 150, 112, 24, false);
  add(193, 200, 40, 40, true).scale = -0.2;
  add(150, 260, 64, 128, false);
  return cases;
}

std::vector<AttentionCase> narrow_cases() {
  std::vector<AttentionCase> cases;
  const auto add = [&](std::int64_t q, std::int64_t k, std::int64_t head_dim, bool causal) -> AttentionCase& {
    AttentionCase c = plain(44, 22, q, head_dim, causal);
    c.batch = 12;
    c.dtype = cases.size() % 2 == 0 ? DType::kBF16 : DType::kF16;
    c.seqlen_k = k;
    c.dlse = cases.size() % 3 == 1;
    c.layout = cases.size() % 4 < 2 ? CaseLayout::kBSHD : CaseLayout::kBHSD;
    c.seed = 1100 + cases.size();
    return cases.emplace_back(c);
  };
  for (const bool causal : {false, true}) {
    add(130, 190, 64, causal);
    add(65, 384, 40, causal);
    add(1, 150, 64, causal).head_dim_v = 24;
    add(150, 180, 64, causal).alibi = true;
    add(129, 192, 64, causal).dropout_p = 0.2;
    AttentionCase& both = add(70, 191, 64, causal);
    both.alibi = true;
    both.dropout_p = 0.3;
    add(130, 190, 64, causal).softcap = 1.5;
    add(130, 190, 56, causal).sinks = true;
  }
  for (const std::int64_t head_dim : {64, 32}) {
    AttentionCase& windowed = add(200, 190, head_dim, false);
    windowed.window_left = 60;
    windowed.window_right = 10;
  }
  return cases;
}

}  // namespace attend::test::sm90_backward
