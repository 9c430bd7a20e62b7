// A family of kernels as the host knows it: what it lacks for a problem, which variant it chooses, what that needs, and
// how it is put on a stream. One file a family, beside kernels/ by the same stem; families.cpp lists them; launcher.cpp
// does what all have in common. docs/code_map.md says how to add one.
//
// A call goes: lack -> choose -> (kernels, once) -> workspace -> launch.
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

/// What the kernels of one call are compiled for, as the bytes of a plain struct of the family's own: the key of every
/// cache. A struct with a byte of padding does not convert.
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

  /// The struct that it was made of.
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
  std::array<std::int32_t, kMaxInts> ints_ = {};  // the first count_ count
  std::size_t count_ = 0;
};

/// The grid of one kernel.
struct StepShape {
  std::int64_t blocks = 0;         ///< 0: nothing to do, not launched
  unsigned cluster = 1;            ///< blocks
  bool overlaps_previous = false;  ///< may start before the kernel before it ends (programmatic dependent launch)
};

/// What a family makes of a problem.
struct Choice {
  static constexpr std::size_t kMaxSteps = 8;

  Variant variant;
  std::array<StepShape, kMaxSteps> steps = {};  ///< in the order of kernels() and of the stream
  std::size_t num_steps = 0;
  double seconds = std::numeric_limits<double>::infinity();  ///< an estimate; infinity: not for "auto"
  const char* why = "";                                      ///< one line

  void add_step(StepShape shape) { steps.at(num_steps++) = shape; }
};

/// Scratch memory of one call: regions of one block, each from a multiple of 256 bytes on.
class Workspace {
 public:
  struct Region {
    const char* name = "";
    std::int64_t bytes = 0;
    bool zeroed = false;  ///< before the first kernel
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
  std::string args;  ///< name of the struct that it takes
  unsigned threads = 0;
  unsigned smem_bytes = 0;
};

/// One call on its way to the stream.
struct Launch {
  const core::Problem& problem;
  const Choice& choice;
  std::span<const LoadedKernel> kernels;
  const Workspace& workspace;
  DevicePointer memory;  ///< of the workspace
  StreamHandle stream;

  /// A region of the workspace; null where it has no bytes.
  template <class T = void>
  [[nodiscard]] T* region(std::size_t index) const {
    if (index >= workspace.regions().size() || workspace.regions()[index].bytes == 0) return nullptr;
    return reinterpret_cast<T*>(memory + workspace.offset(index));  // NOLINT(performance-no-int-to-ptr)
  }
  /// Puts kernel `step` on the stream. Args is the struct that its spec names.
  template <class Args>
  void run(std::size_t step, Args& args) const {
    run(step, Args::kTypeName, &args);
  }
  /// Every kernel, where all take the same.
  template <class Args>
  void run_all(Args&& args) const {
    for (std::size_t step = 0; step < choice.num_steps; ++step) run(step, args);
  }

 private:
  void run(std::size_t step, const char* type, void* args) const;
};

/// One family. Its functions know the device by what they are given, so that tests may make one up.
class Family {
 public:
  Family(const char* its_name, const char* its_description) : name(its_name), description(its_description) {}
  virtual ~Family() = default;
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  const char* name;          ///< what --compute takes; the stem of its files
  const char* description;   ///< one line
  bool in_auto = true;       ///< "auto" compares it by its estimate; the others are lessons
  bool is_fallback = false;  ///< it supports most: what it lacks is what "auto" reports (core::Backend)
  bool has_forward = true;
  bool has_backward = true;
  core::DTypes dtypes = {};  ///< of all tensors but bias and mask
  std::int32_t takes = 0;    ///< options

  /// Has the architecture the instructions that it uses?
  [[nodiscard]] virtual bool supports(const Arch& arch) const = 0;
  /// What it lacks for the problem, or nothing.
  [[nodiscard]] std::optional<core::Lack> lack(const core::Problem& p, const DeviceInfo& device) const;
  /// The variant, and everything about the launch but the grid. Every heuristic of the family lives here.
  [[nodiscard]] virtual Choice choose(const core::Problem& p, const DeviceInfo& device) const = 0;
  /// Fills in steps and seconds of a choice whose variant is set. choose() ends with it.
  virtual void lay_out(const core::Problem& p, const DeviceInfo& device, Choice& choice) const = 0;
  /// What to compile, a spec a step.
  [[nodiscard]] virtual std::vector<KernelSpec> kernels(const Variant& variant, const Arch& arch) const = 0;
  [[nodiscard]] virtual Workspace workspace(const core::Problem& p, const Choice& choice) const = 0;
  /// Fills the arguments and runs the steps.
  virtual void launch(const Launch& launch) const = 0;
  [[nodiscard]] virtual std::span<const Tunable> tunables(const Variant& /*variant*/) const { return {}; }

 protected:
  /// What it lacks beyond passes, instructions, options and dtypes: head_dims, alignment.
  [[nodiscard]] virtual std::optional<core::Lack> lack_of_its_own(const core::Problem& /*p*/,
                                                                  const DeviceInfo& /*device*/) const {
    return {};
  }
};

/// All of them, in the order of tables: the ladder from its first rung on, the families for Ampere, those for Hopper,
/// and simt. backends.hpp says in which order "auto" and refusals see them.
[[nodiscard]] std::span<const Family* const> families();

/// The names of those that run on an architecture, in the same order: what `compute` takes there beside "auto".
[[nodiscard]] std::vector<std::string> families_on(const Arch& arch);

/// The family called `name`, or null.
[[nodiscard]] const Family* find_family(std::string_view name);

}  // namespace attend::cuda
