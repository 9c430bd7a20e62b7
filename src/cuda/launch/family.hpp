// The host side of a kernel family: the problems that it refuses, the variant that it chooses, the memory that the
// variant needs, and its launches. Each family has one file here and kernels with the same stem under kernels/.
// families.cpp lists the families; launcher.cpp has the code that they share. docs/code_map.md describes how to add a
// family.
//
//  A call has these steps: lack -> choose -> (kernels, once) -> workspace -> launch.
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

/// Compile-time facts of one call's kernels: the bytes of a family-specific struct of ints. The variant is the key of
/// every cache. A struct with padding bytes does not convert.
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

  /// Returns the struct that the variant was made from.
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

/// The grid of one kernel.
struct StepShape {
  std::int64_t blocks = 0;         ///< 0: the kernel is not launched
  unsigned cluster = 1;            ///< blocks per cluster
  bool overlaps_previous = false;  ///< may start before the previous kernel ends (programmatic dependent launch)
};

/// A family's choice for a problem.
struct Choice {
  static constexpr std::size_t kMaxSteps = 8;

  Variant variant;
  std::array<StepShape, kMaxSteps> steps = {};  ///< in launch order, which is also the order of kernels()
  std::size_t num_steps = 0;
  /// Estimated time; infinity excludes the choice from "auto".
  double seconds = std::numeric_limits<double>::infinity();
  const char* why = "";  ///< the reason for the choice, one line

  void add_step(StepShape shape) { steps.at(num_steps++) = shape; }
};

/// Scratch memory of one call: regions of one allocation. Each region starts at a multiple of 256 bytes.
class Workspace {
 public:
  struct Region {
    const char* name = "";
    std::int64_t bytes = 0;
    bool zeroed = false;  ///< whether the region is zeroed before the first kernel
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

/// A kernel ready to be launched.
struct LoadedKernel {
  std::shared_ptr<const Kernel> kernel;
  std::string args;  ///< name of the kernel's argument struct
  unsigned threads = 0;
  unsigned smem_bytes = 0;
};

/// The inputs of one call's launches.
struct Launch {
  const core::Problem& problem;
  const Choice& choice;
  std::span<const LoadedKernel> kernels;
  const Workspace& workspace;
  DevicePointer memory;  ///< address of the workspace
  StreamHandle stream;

  /// Returns the address of a workspace region, or null if the region has no bytes.
  template <class T = void>
  [[nodiscard]] T* region(std::size_t index) const {
    if (index >= workspace.regions().size() || workspace.regions()[index].bytes == 0) return nullptr;
    return reinterpret_cast<T*>(memory + workspace.offset(index));  // NOLINT(performance-no-int-to-ptr)
  }
  /// Launches kernel `step`. Args must be the struct that its spec names.
  template <class Args>
  void run(std::size_t step, Args& args) const {
    run(step, Args::kTypeName, &args);
  }
  /// Launches every kernel, if all kernels have the same arguments.
  template <class Args>
  void run_all(Args&& args) const {
    for (std::size_t step = 0; step < choice.num_steps; ++step) run(step, args);
  }

 private:
  void run(std::size_t step, const char* type, void* args) const;
};

/// A kernel family. Its functions read the device only from their arguments, so tests can pass an invented device.
class Family {
 public:
  Family(const char* its_name, const char* its_description) : name(its_name), description(its_description) {}
  virtual ~Family() = default;
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  const char* name;          ///< the value of --compute; the stem of the family's files
  const char* description;   ///< one line
  bool in_auto = true;       ///< if false, the family is a lesson and "auto" skips it
  bool is_fallback = false;  ///< the family supports the most problems; "auto" reports its refusal (core::Backend)
  bool has_forward = true;
  bool has_backward = true;
  core::DTypes dtypes = {};  ///< of all tensors except bias and mask
  std::int32_t takes = 0;    ///< supported options

  /// Returns whether the architecture has the instructions that the family uses.
  [[nodiscard]] virtual bool supports(const Arch& arch) const = 0;
  /// Returns the reason why the problem is unsupported, or nothing.
  [[nodiscard]] std::optional<core::Lack> lack(const core::Problem& p, const DeviceInfo& device) const;
  /// Returns the variant and all launch parameters. All heuristics of the family are here.
  [[nodiscard]] virtual Choice choose(const core::Problem& p, const DeviceInfo& device) const = 0;
  /// Sets the steps and the seconds of a choice whose variant is set. choose() calls it last.
  virtual void lay_out(const core::Problem& p, const DeviceInfo& device, Choice& choice) const = 0;
  /// Returns the kernels to compile, one spec per step.
  [[nodiscard]] virtual std::vector<KernelSpec> kernels(const Variant& variant, const Arch& arch) const = 0;
  [[nodiscard]] virtual Workspace workspace(const core::Problem& p, const Choice& choice) const = 0;
  /// Fills the arguments and launches the steps.
  virtual void launch(const Launch& launch) const = 0;
  [[nodiscard]] virtual std::span<const Tunable> tunables(const Variant& /*variant*/) const { return {}; }

 protected:
  /// Returns the reason why the problem is unsupported, apart from passes, instructions, options and dtypes. Examples
  /// are head_dim and alignment.
  [[nodiscard]] virtual std::optional<core::Lack> lack_of_its_own(const core::Problem& /*p*/,
                                                                  const DeviceInfo& /*device*/) const {
    return {};
  }
};

/// All families, in the order of tables: the ladder from its first rung, the families for Ampere, the families for
/// Hopper, and simt. backends.hpp documents the order for "auto" and refusals.
[[nodiscard]] std::span<const Family* const> families();

/// Returns the names of the families that run on an architecture, in the same order. With "auto", they are the values
/// of `compute` there.
[[nodiscard]] std::vector<std::string> families_on(const Arch& arch);

/// Returns the family called `name`, or null.
[[nodiscard]] const Family* find_family(std::string_view name);

}  // namespace attend::cuda
