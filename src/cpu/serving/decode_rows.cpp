// Decoding: computes a tile of query rows over some leaves of cached keys, on one thread.
//
// A leaf has 256 keys. For each leaf, the code computes the scores S, their maximum m, the exponentials P, the sum l of
// the exponentials, and the weighted sum O of the values:
//
//   S = Q K^T
//   m = max S
//   P = exp(S - m)
//   l = sum P
//   O = P V
//
// Keys are read in place, but 8-bit keys are first converted to floats. Fold merges O, m and l with the results of
// earlier leaves. At the end, o = O / l and lse = m + log l.
//
// Source: Dao, Haziza, Massa & Sizov, Flash-Decoding for long-context inference (2023)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/serving/decode_rows.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per SIMD target
#include <hwy/highway.h>

#include <bit>
#include <cmath>

#include "core/dtype_traits.hpp"
#include "core/elements.hpp"
#include "core/merged_lse.hpp"
#include "cpu/parallel.hpp"
#include "cpu/serving/decode_tiles.hpp"
#include "cpu/serving/tile_pass-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
namespace {

/// Computes o *= factor. Replaces -0 by 0, because the sign of a zero sum may depend on keys that a row does not see.
void normalize(float* o, std::int64_t columns, float factor) {
  const Vector scale = hn::Set(kFloats, factor);
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(kFloats, o + c), scale, hn::Zero(kFloats)), kFloats, o + c);
  }
}

/// Writes a row of o. The columns of `o` are in the lane order that TilePass uses.
void write_columns(const DecodeProblem& p, const float* o, const core::Matrix& out, std::int64_t row) {
  with_type(out.data, out.dtype, [&](const auto* data) HWY_ATTR {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(data)>>;
    T* to = const_cast<T*>(data) + row * out.row_stride;
    if constexpr (std::is_same_v<T, core::BFloat16>) {  // if the cache has 8 bits, the lane order is that of float
      if (core::is_quantized(p.k.dtype)) {
        for (std::int64_t c = 0; c < p.head_dim_v; ++c) store_scalar(o[c], to + c);
        return;
      }
    }
    store_columns(o, to, p.head_dim_v);
  });
}

/// Writes o and lse of the tile's rows.
void write_rows(const DecodeProblem& p, const DecodeTile& tile, const State& state) {
  const ScoreUnit unit(p);
  const core::DecodeSequence& s = tile.sequence;
  const std::int64_t columns = state_columns(p.head_dim_v);
  for (int r = 0; r < tile.rows; ++r) {
    const std::int64_t head = tile.head(p, r);
    const std::int64_t i = tile.row(p, r);
    const double sum = state.row_sum[r];
    const bool saw_no_key = sum == 0;
    double lse = saw_no_key ? -static_cast<double>(kInfinity)
                            : static_cast<double>(state.row_max[r]) * unit.nats_per_score() + std::log(sum);
    double share = 1;  // part of the row's sum that belongs to keys and not to the sink
    if (p.sinks && !s.dead) {
      const core::MergedLse all = core::merge_lse(lse, core::load(*p.sinks, s.index, head, 0, 0));
      lse = all.lse;
      share = all.weight_a;
    }
    float* o = state.o + r * columns;
    if (saw_no_key) {
      std::fill_n(o, columns, 0.0F);
    } else {
      normalize(o, columns, static_cast<float>(share / sum));
    }
    write_columns(p, o, core::q_matrix(p.o, s, head), i);
    if (p.lse) core::store(core::q_matrix(*p.lse, s, head), i, 0, p.lse_base2 ? lse * kLog2E : lse);
  }
}

/// Returns the number of tree levels below a node that covers `leaves` leaves.
int levels_below(std::int64_t leaves) {
  return std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(leaves, 1) - 1));
}

template <class T>
void compute_leaves(const DecodeProblem& p, const DecodeTile& tile, const LeafRange& leaves, const LeafRange& node,
                    float* partial, Scratch& scratch) {
  const int levels = levels_below(node.end - node.begin);
  scratch.reserve(TilePass<T>::floats(p) + Fold::floats(p, levels));
  TilePass<T> pass(p, tile, scratch);
  Fold fold(p, tile.rows, levels, ScoreUnit(p).log2_per_score(), scratch);
  InterruptPoint interrupt;
  for (std::int64_t leaf = leaves.begin; leaf < leaves.end;) {
    const int count = pass.visit(leaf, leaves.end, fold.current());
    for (int n = 0; n < count; ++n) fold.push(leaf + n - node.begin, n);
    leaf += count;
    interrupt.after(count * kLeaf * tile.rows);
  }
  const State& total = fold.total(/*current_is_last=*/false);
  if (partial == nullptr) {
    write_rows(p, tile, total);
  } else {
    std::copy_n(total.o, state_floats(p.head_dim_v), partial);
  }
}

}  // namespace

void decode_leaves_target(const DecodeProblem& p, const DecodeTile& tile, const LeafRange& leaves,
                          const LeafRange& node, float* partial, Scratch& scratch) {
  const DType tile_dtype = core::is_quantized(p.k.dtype) ? DType::kF32 : p.k.dtype;
  with_type(nullptr, tile_dtype, [&](const auto* typed) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(typed)>>;
    compute_leaves<T>(p, tile, leaves, node, partial, scratch);
  });
}

void merge_parts_target(const DecodeProblem& p, const DecodeTile& tile, const LeafRange& leaves,
                        std::int64_t leaves_per_part, const float* parts, Scratch& scratch) {
  const std::int64_t first = leaves.begin / leaves_per_part;
  const std::int64_t last = (leaves.end - 1) / leaves_per_part;
  const int levels = levels_below(last + 1);
  scratch.reserve(Fold::floats(p, levels));
  Fold fold(p, tile.rows, levels, ScoreUnit(p).log2_per_score(), scratch);
  const bool last_is_cut = leaves.end % leaves_per_part != 0;
  for (std::int64_t part = first; part <= last; ++part) {
    const std::int64_t floats = state_floats(p.head_dim_v);
    std::copy_n(parts + (part - first) * floats, floats, fold.current()[0].o);
    if (part < last || !last_is_cut) fold.push(part);
  }
  write_rows(p, tile, fold.total(last_is_cut));
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::cpu {

HWY_EXPORT(decode_leaves_target);
HWY_EXPORT(merge_parts_target);

void decode_leaves(const core::DecodeProblem& p, const DecodeTile& tile, const LeafRange& leaves, const LeafRange& node,
                   float* partial, Scratch& scratch) {
  HWY_DYNAMIC_DISPATCH(decode_leaves_target)(p, tile, leaves, node, partial, scratch);
}

void merge_parts(const core::DecodeProblem& p, const DecodeTile& tile, const LeafRange& leaves,
                 std::int64_t leaves_per_part, const float* parts, Scratch& scratch) {
  HWY_DYNAMIC_DISPATCH(merge_parts_target)(p, tile, leaves, leaves_per_part, parts, scratch);
}

}  // namespace attend::cpu
#endif
