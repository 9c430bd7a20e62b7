// The host side of a kernel family. A family decides which problems it refuses, which kernel variant it uses, how much
// workspace the variant needs, and how its kernels are launched. Each family has one file in this folder, and kernels
// with the same file name under kernels/. families.cpp lists the families. launcher.cpp contains the code that they
// share. docs/extending.md describes how to add a family.
//
// For each call, the following functions run in order: lack, choose, kernels (only for the first call of a variant),
// workspace, launch.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/lack.hpp"
#include "core/problem.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/kernel.hpp"
#include "cuda/jit/kernel_spec.hpp"
#include "cuda/launch/facts.hpp"
#include "cuda/launch/fields.hpp"

namespace attend::cuda {

/// Compile-time parameters of the kernels of one call. A variant stores the bytes of a family-specific struct of ints.
/// It is the key of every cache of kernels. A struct with padding bytes cannot be converted to a variant.
class Variant {
 public:
  static constexpr std::size_t kMaxInts = 72;

  Variant() = default;
  template <class T>
  Variant(const T& facts) : count_(sizeof(T) / sizeof(std::int32_t)) {  // NOLINT: a struct of facts is a variant
    static_assert(std::has_unique_object_representations_v<T> && std::is_trivially_copyable_v<T>);
    static_assert(sizeof(T) % sizeof(std::int32_t) == 0 && sizeof(T) <= sizeof(ints_));
    std::memcpy(ints_.data(), &facts, sizeof(T));
  }

  /// Returns the struct from which the variant was made.
  template <class T>
  [[nodiscard]] T as() const {
    std::array<std::int32_t, sizeof(T) / sizeof(std::int32_t)> ints;
    std::copy_n(ints_.begin(), ints.size(), ints.begin());
    return std::bit_cast<T>(ints);
  }

  [[nodiscard]] std::span<const std::int32_t> ints() const { return std::span(ints_).first(count_); }
  void set(std::size_t at, std::int32_t value) { ints_.at(at) = value; }

  bool operator==(const Variant& other) const {
    return count_ == other.count_ && std::memcmp(ints_.data(), other.ints_.data(), count_ * sizeof(std::int32_t)) == 0;
  }

 private:
  std::array<std::int32_t, kMaxInts> ints_ = {};  // only the first count_ ints are used
  std::size_t count_ = 0;
};

/// Grid of one kernel launch.
struct StepShape {
  std::int64_t blocks = 0;         ///< number of blocks; if 0, the kernel is not launched
  unsigned cluster = 1;            ///< number of blocks per cluster
  bool overlaps_previous = false;  ///< may start before the previous kernel ends (programmatic dependent launch)
};

/// The variant and the launch parameters that a family chooses for a problem.
struct Choice {
  static constexpr std::size_t kMaxSteps = 8;

  Variant variant;
  /// Grids of the kernels, in launch order; kernels() returns the kernels in the same order.
  std::array<StepShape, kMaxSteps> steps = {};
  std::size_t num_steps = 0;
  /// Estimated time in seconds. If it is infinity, "auto" never chooses this family.
  double seconds = std::numeric_limits<double>::infinity();
  const char* why = "";  ///< reason for the choice, in one line

  void add_step(StepShape shape) { steps.at(num_steps++) = shape; }
};

/// Layout of the scratch memory of one call. All regions are in one allocation. Each region starts at a multiple of 256
/// bytes.
class Workspace {
 public:
  struct Region {
    const char* name = "";
    std::int64_t bytes = 0;
    bool zeroed = false;  ///< whether the region is zeroed before the first kernel starts
  };

  void add(Region region) { regions_.at(count_++) = region; }
  [[nodiscard]] std::span<const Region> regions() const { return std::span(regions_).first(count_); }
  [[nodiscard]] std::size_t offset(std::size_t region) const {
    std::size_t at = 0;
    for (std::size_t i = 0; i < region; ++i) at += rounded(regions_[i].bytes);
    return at;
  }
  [[nodiscard]] std::size_t bytes() const { return offset(count_); }

  static constexpr std::size_t kAlignment = 256;

 private:
  static std::size_t rounded(std::int64_t bytes) {
    return (static_cast<std::size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  }

  std::array<Region, 8> regions_ = {};
  std::size_t count_ = 0;
};

/// A compiled kernel that is loaded on a GPU.
struct LoadedKernel {
  std::shared_ptr<const Kernel> kernel;
  std::string args;  ///< type name of the kernel's argument struct
  unsigned threads = 0;
  unsigned smem_bytes = 0;
};

/// Everything that a family needs to launch the kernels of one call.
struct Launch {
  const core::Problem& problem;
  const Choice& choice;
  std::span<const LoadedKernel> kernels;
  const Workspace& workspace;
  DevicePointer memory;  ///< address of the workspace
  StreamHandle stream;

  /// Returns the address of a workspace region, or null if the region is empty.
  template <class T = void>
  [[nodiscard]] T* region(std::size_t index) const {
    if (index >= workspace.regions().size() || workspace.regions()[index].bytes == 0) return nullptr;
    return reinterpret_cast<T*>(memory + workspace.offset(index));  // NOLINT(performance-no-int-to-ptr)
  }
  /// Launches the kernel with index `step`. `Args` must be the struct that the kernel's spec names.
  template <class Args>
  void run(std::size_t step, Args& args) const {
    run(step, Args::kTypeName, &args);
  }
  /// Launches all kernels with the same arguments.
  template <class Args>
  void run_all(Args&& args) const {
    for (std::size_t step = 0; step < choice.num_steps; ++step) run(step, args);
  }

 private:
  void run(std::size_t step, const char* type, void* args) const;
};

/// A kernel family. All functions receive the device properties as arguments, so tests can pass an invented device.
class Family {
 public:
  Family(const char* its_name, const char* its_description) : name(its_name), description(its_description) {}
  virtual ~Family() = default;
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  const char* name;         ///< name of the family, which is the value of `compute` and the common part of the family's
                            ///< file names
  const char* description;  ///< description in one line
  bool in_auto = true;  ///< if false, "auto" never chooses the family, for example because its kernels are tutorials
  /// Whether this family supports more problems than any other. If no family supports a problem, "auto" reports the
  /// reason that this family gives.
  bool is_fallback = false;
  bool has_forward = true;
  bool has_backward = true;
  core::DTypes dtypes = {};  ///< supported dtypes of all tensors except bias and mask
  std::int32_t takes = 0;    ///< supported options, as bits of namespace option

  /// Returns whether the architecture has all instructions that the family uses.
  [[nodiscard]] virtual bool supports(const Arch& arch) const = 0;
  /// Returns the reason why the family does not support the problem, or nothing.
  [[nodiscard]] std::optional<core::Lack> lack(const core::Problem& p, const DeviceInfo& device) const;
  /// Returns the variant and all launch parameters. All heuristics of the family are in this function.
  [[nodiscard]] virtual Choice choose(const core::Problem& p, const DeviceInfo& device) const = 0;
  /// Sets the grids and the estimated time of a choice whose variant is already set. choose() calls this function last.
  virtual void lay_out(const core::Problem& p, const DeviceInfo& device, Choice& choice) const = 0;
  /// Returns the specs of the kernels to compile, one spec per launch.
  [[nodiscard]] virtual std::vector<KernelSpec> kernels(const Variant& variant, const Arch& arch) const = 0;
  [[nodiscard]] virtual Workspace workspace(const core::Problem& p, const Choice& choice) const = 0;
  /// Fills the arguments of the kernels and launches the kernels.
  virtual void launch(const Launch& launch) const = 0;
  [[nodiscard]] virtual std::span<const Tunable> tunables(const Variant& /*variant*/) const { return {}; }

 protected:
  /// Returns the family-specific reason why a problem is unsupported, for example its head_dim or its alignment. lack()
  /// has already checked the pass, the architecture, the options and the dtypes.
  [[nodiscard]] virtual std::optional<core::Lack> lack_of_its_own(const core::Problem& /*p*/,
                                                                  const DeviceInfo& /*device*/) const {
    return {};
  }
};

/// Returns all families in the order of tables: the ladder from its first rung, the families for Ampere, the families
/// for Hopper, and simt. "auto" and error messages use a different order, which backends.hpp documents.
[[nodiscard]] std::span<const Family* const> families();

/// Returns the names of the families that run on an architecture, in the order of families(). These names and "auto"
/// are the possible values of `compute` on the architecture.
[[nodiscard]] std::vector<std::string> families_on(const Arch& arch);

/// Returns the family with this name, or null if there is none.
[[nodiscard]] const Family* find_family(std::string_view name);

}  // namespace attend::cuda
