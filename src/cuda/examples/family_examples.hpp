// The examples of each kernel family, which examples.cpp lists. Each family has one source file with a table of test
// cases.
#pragma once

#include <vector>

#include "cuda/driver/arch.hpp"
#include "cuda/launch/family.hpp"
#include "cuda/launch/rung.hpp"

namespace attend::cuda {

/// head_dim of q and k, and head_dim of v.
struct HeadDims {
  int qk = 0;
  int v = 0;

  constexpr HeadDims() = default;
  constexpr HeadDims(int both) : qk(both), v(both) {}  // NOLINT: a number is the head_dim of all three
  constexpr HeadDims(int of_qk, int of_v) : qk(of_qk), v(of_v) {}
};

/// Returns the examples of a rung. They cover the head_dims of the ladder's tests and those at which the tile changes,
/// full and causal masks, forward and backward passes, and all tiles. Each combination also occurs with negated scores
/// and with unaligned tensors.
[[nodiscard]] std::vector<Variant> rung_examples(const Rung& rung, const Arch& arch);

/// Returns the examples of simt. They cover all dtypes, the head_dims at which the tile changes, each option alone and
/// all options together, unaligned tensors, few query rows, and both forms of dbias.
[[nodiscard]] std::vector<Variant> simt_examples(const Arch& arch);

/// Returns the examples of sm80_forward. They cover the head_dims at which the tile changes, both dtypes, all masks,
/// each option alone and all options together, negated scores, unaligned tensors, and few query rows.
[[nodiscard]] std::vector<Variant> sm80_forward_examples(const Arch& arch);

/// Returns the examples of sm80_backward. They cover the same properties as the examples of sm80_forward. They also
/// cover both forms of dbias, and backward passes with one and with two passes over the scores.
[[nodiscard]] std::vector<Variant> sm80_backward_examples(const Arch& arch);

/// Returns the examples of sm90_forward. They cover all padded head_dims, both dtypes, all masks, each option alone and
/// all options together, negated scores, and steps of ring attention.
[[nodiscard]] std::vector<Variant> sm90_forward_examples(const Arch& arch);

/// Returns the examples of sm90_f32_forward. They cover the head_dims at which the tile changes, all masks, each option
/// alone and all options together, few query rows, and unaligned tensors.
[[nodiscard]] std::vector<Variant> sm90_f32_forward_examples(const Arch& arch);

/// Returns the examples of sm90_fp8_forward. They cover all head_dims, all dtypes of o, all masks, packed sequences,
/// negated scores, and descales of blocks of keys.
[[nodiscard]] std::vector<Variant> sm90_fp8_forward_examples(const Arch& arch);

/// Returns the examples of sm90_backward. They cover both tile shapes, both dtypes, all masks, packed sequences,
/// deterministic sums, padded head_dims, and steps of ring attention.
[[nodiscard]] std::vector<Variant> sm90_backward_examples(const Arch& arch);

/// Returns the examples of sm90_backward_panels. They cover both widths of output tiles, both dtypes, all masks, packed
/// sequences, and padded head_dims.
[[nodiscard]] std::vector<Variant> sm90_backward_panels_examples(const Arch& arch);

}  // namespace attend::cuda
