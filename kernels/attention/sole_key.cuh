// Computes <dout, o> of a query row that sees only one key, without the rounding error of o.
//
// For such a row, p = 1, o is the value of its key, and <dout, o> equals dp. So ds = p (dp - <dout, o>) must be 0. If o
// is rounded to 16 bits, a difference of about its last bit remains, which is enlarged by dropout's factor 1 / (1 - p).
// Rows that see more keys need no correction, because the rounding of o affects their gradients no more than the
// rounding of p and ds.
#pragma once

#include "../common/args.cuh"
#include "../common/element.cuh"
#include "../common/warp_reduce.cuh"
#include "head_matrix.cuh"
#include "score_rules.cuh"

namespace attend {

// Returns the exact value of <dout, o>, which from_o approximates with the rounded o. kLanes lanes share a row, and all
// lanes of the warp must call it. A row beyond the sequence has no key. If the two values differ by more than the
// rounding of o explains, o covers other keys too, for example keys on other devices. The function then returns from_o.
template <class Config, int kLanes>
[[nodiscard]] __device__ __forceinline__ float sole_key_delta(const BackwardArgs& base, const OptionArgs& options,
                                                              const SequenceSpan& span, uint32 sequence, uint32 head,
                                                              int64 row, float from_o) {
  using Element = ElementOf<Config>;
  using Storage = typename Element::Storage;
  constexpr float kSlack = 1.1f, kSubnormal = 0x1p-24f;
  const auto rules = ScoreRules<Config>::make(options, base.scale, span, sequence, head, base.num_heads_q);
  const KeyRange seen = row < span.seqlen_q ? rules.window.row(row) : KeyRange{0, 0};
  const bool is_sole = seen.end - seen.begin == 1;
  float dp = 0.0f, most = 0.0f;
  if (is_sole) {
    const uint32 head_k = key_head_of(base, head);
    const auto* dout = static_cast<const Storage*>(base.dout) + span.query_offset(base.dout_stride, head, row);
    const auto* o = static_cast<const Storage*>(base.o) + span.query_offset(base.o_stride, head, row);
    const auto* v = static_cast<const Storage*>(base.v) + span.keys().offset(base.v_stride, head_k, seen.begin);
    for (int col = threadIdx.x % kLanes; col < Config::kHeadDimV; col += kLanes) {
      const float gradient = Element::to_float(dout[col]);
      dp = fmaf(gradient, Element::to_float(v[col]), dp);
      most += fabsf(gradient) *
              fmaf(kSlack * element_info(Config::kElement).unit_roundoff, fabsf(Element::to_float(o[col])), kSubnormal);
    }
  }
  dp = warp_sum<kLanes>(dp);
  most = warp_sum<kLanes>(most);
  if (!is_sole) return from_o;
  const auto tile = rules.tile(row, seen.begin);
  const float exact = tile.drop_mask.keeps(tile.first_row, tile.first_key) ? dp * kept_scale<Config>(options) : 0.0f;
  return fabsf(exact - from_o) <= most ? exact : from_o;
}

}  // namespace attend
