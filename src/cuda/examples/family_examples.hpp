// The examples of each family, for the list in examples.cpp: one file a family. Their cases are tables.
#pragma once

#include <vector>

#include "cuda/driver/arch.hpp"
#include "cuda/launch/family.hpp"
#include "cuda/launch/rung.hpp"

namespace attend::cuda {

/// Columns of q and k, and of v.
struct HeadDims {
  int qk = 0;
  int v = 0;

  constexpr HeadDims() = default;
  constexpr HeadDims(int both) : qk(both), v(both) {}  // NOLINT: a number is the head_dim of all three
  constexpr HeadDims(int of_qk, int of_v) : qk(of_qk), v(of_v) {}
};

/// A rung: the head_dims of the ladder's cases and those between at which tiles change, both masks and passes, every
/// tile; and of each, scores that are negated and tensors that are not aligned.
[[nodiscard]] std::vector<Variant> rung_examples(const Rung& rung, const Arch& arch);

/// Every dtype, the head_dims at which tiles change, each option alone, and all that go together; tensors that are not
/// aligned, few rows, both kinds of dbias.
[[nodiscard]] std::vector<Variant> simt_examples(const Arch& arch);

/// Each head_dim at which tiles change, both types, every mask; each option alone, and all that go together; negated
/// scores; tensors that are not aligned; few rows.
[[nodiscard]] std::vector<Variant> sm80_forward_examples(const Arch& arch);

/// Likewise, in one pass and in two, and both kinds of dbias.
[[nodiscard]] std::vector<Variant> sm80_backward_examples(const Arch& arch);

/// Each head_dim of the products, both types, every mask; each option alone, and all that go together; negated scores;
/// parts of a ring.
[[nodiscard]] std::vector<Variant> sm90_forward_examples(const Arch& arch);

/// Each head_dim at which tiles change, every mask; each option, and all that go together; few rows; tensors that are
/// not aligned.
[[nodiscard]] std::vector<Variant> sm90_f32_forward_examples(const Arch& arch);

/// Both shapes of tiles, both types, every mask; packed, deterministic; head_dims that are padded; parts of a ring.
[[nodiscard]] std::vector<Variant> sm90_backward_examples(const Arch& arch);

}  // namespace attend::cuda
