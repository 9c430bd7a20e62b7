// Variants of every family that stand for all that it can choose: what `attend compile` compiles and the tests look at.
// No call needs them, so they are a library of their own (attend_examples).
#pragma once

#include <string>
#include <vector>

#include "cuda/driver/arch.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "cuda/launch/family.hpp"

namespace attend::cuda {

/// Variants that cover every kind that the family's choose() can come to on the architecture, none twice.
/// @throws Error (kInternal) for a family that has none.
[[nodiscard]] std::vector<Variant> example_variants(const Family& family, const Arch& arch);

/// The specs of all these variants, none twice. The family has to support the architecture.
[[nodiscard]] std::vector<KernelSpec> example_specs(const Family& family, const Arch& arch);

/// What a compile of the spec has tried, as texts: its kernel on its architecture, with its element type there, and
/// each value of each constant of the kernel; of a head_dim only which width of tile it needs, and how it fills that.
[[nodiscard]] std::vector<std::string> covered_by(const KernelSpec& spec);

/// Few of the specs that together have tried whatever all of them do, in their order: of the library's an eighth.
[[nodiscard]] std::vector<KernelSpec> covering_specs(std::vector<KernelSpec> specs);

}  // namespace attend::cuda
