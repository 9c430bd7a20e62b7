// The examples of each family, for the list in examples.cpp. Each family has one file, with its cases in tables.
#pragma once

#include <vector>

#include "cuda/driver/arch.hpp"
#include "cuda/launch/family.hpp"
#include "cuda/launch/rung.hpp"

namespace attend::cuda {

/// The head_dim of q and k, and the head_dim of v.
struct HeadDims {
  int qk = 0;
  int v = 0;

  constexpr HeadDims() = default;
  constexpr HeadDims(int both) : qk(both), v(both) {}  // NOLINT: a number is the head_dim of all three
  constexpr HeadDims(int of_qk, int of_v) : qk(of_qk), v(of_v) {}
};

/// Examples of a rung: the head_dims of the ladder's tests and those at which tiles change, both masks, both passes and
/// all tiles. Each is also combined with negated scores and with unaligned tensors.
[[nodiscard]] std::vector<Variant> rung_examples(const Rung& rung, const Arch& arch);

/// Examples of simt: all dtypes, the head_dims at which tiles change, each option alone and all options together,
/// unaligned tensors, few rows, and both kinds of dbias.
[[nodiscard]] std::vector<Variant> simt_examples(const Arch& arch);

/// Examples of sm80_forward: the head_dims at which tiles change, both dtypes, all masks, each option alone and all
/// options together, negated scores, unaligned tensors, and few rows.
[[nodiscard]] std::vector<Variant> sm80_forward_examples(const Arch& arch);

/// Examples of sm80_backward: the same cases, in one pass and in two, and both kinds of dbias.
[[nodiscard]] std::vector<Variant> sm80_backward_examples(const Arch& arch);

/// Examples of sm90_forward: all head_dims of the products, both dtypes, all masks, each option alone and all options
/// together, negated scores, and parts of a ring.
[[nodiscard]] std::vector<Variant> sm90_forward_examples(const Arch& arch);

/// Examples of sm90_f32_forward: the head_dims at which tiles change, all masks, each option alone and all options
/// together, few rows, and unaligned tensors.
[[nodiscard]] std::vector<Variant> sm90_f32_forward_examples(const Arch& arch);

/// Examples of sm90_backward: both tile shapes, both dtypes, all masks, packed sequences, deterministic sums, padded
/// head_dims, and parts of a ring.
[[nodiscard]] std::vector<Variant> sm90_backward_examples(const Arch& arch);

}  // namespace attend::cuda
