// Example variants of every family that represent all its possible choices. `attend compile` compiles them and the
// tests check them. No call needs them, so they are in a separate library (attend_examples).
#pragma once

#include <string>
#include <vector>

#include "cuda/driver/arch.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "cuda/launch/family.hpp"

namespace attend::cuda {

/// Returns variants of every kind that choose() of the family can return on the architecture, without duplicates.
/// @throws Error (kInternal) for a family without examples.
[[nodiscard]] std::vector<Variant> example_variants(const Family& family, const Arch& arch);

/// Returns the specs of all these variants, without duplicates. The family must support the architecture.
[[nodiscard]] std::vector<KernelSpec> example_specs(const Family& family, const Arch& arch);

/// Returns the items that a compilation of the spec covers, as texts: the kernel with its architecture, the element
/// type on this architecture, and each value of each constant. For a head_dim, only the tile width and how head_dim
/// fills it count.
[[nodiscard]] std::vector<std::string> covered_by(const KernelSpec& spec);

/// Returns a small subset of the specs, in their order, that covers all items of all specs. For the specs of this
/// library the subset is an eighth.
[[nodiscard]] std::vector<KernelSpec> covering_specs(std::vector<KernelSpec> specs);

}  // namespace attend::cuda
