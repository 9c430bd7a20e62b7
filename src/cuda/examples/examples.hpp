// Example variants of each kernel family. Together they represent all variants that the family can choose. `attend
// compile` compiles the examples, and the tests check them. The library itself does not need them, so they are in a
// separate library (attend_examples).
#pragma once

#include <string>
#include <vector>

#include "cuda/driver/arch.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "cuda/launch/family.hpp"

namespace attend::cuda {

/// Returns the example variants of a family for an architecture. Together, the examples represent all variants that
/// choose() can return. No variant occurs twice.
/// @throws Error (kInternal) if the family has no examples.
[[nodiscard]] std::vector<Variant> example_variants(const Family& family, const Arch& arch);

/// Returns the kernel specs of all example variants. No spec occurs twice. The family must support the architecture.
[[nodiscard]] std::vector<KernelSpec> example_specs(const Family& family, const Arch& arch);

/// Returns the properties that a compilation of this spec tests, one string for each property. One property is the pair
/// of kernel and architecture. Another is the pair of element type and architecture. Each Config constant with its
/// value is a further property. For a constant that is a head_dim, the property consists of the width of the tile and
/// of one of three cases: head_dim fills the tile, it is a multiple of 8, or neither.
[[nodiscard]] std::vector<std::string> covered_by(const KernelSpec& spec);

/// Returns a small subset of the specs, in the same order. The subset has all properties (see covered_by()) that occur
/// in any of the specs. For the specs of this library, it contains about one eighth of them.
[[nodiscard]] std::vector<KernelSpec> covering_specs(std::vector<KernelSpec> specs);

}  // namespace attend::cuda
