// The first steps of an sm90 launch with a boolean mask. They convert the mask to tile lists in the format of block
// masks, so that the kernels after them handle block masks only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/lack.hpp"
#include "core/problem.hpp"
#include "cuda/driver/arch.hpp"
#include "cuda/launch/facts.hpp"
#include "cuda/launch/family.hpp"
#include "kernels/sm90/sm90_mask_args.cuh"

namespace attend::cuda {

/// Mask lists in the form of kernel arguments.
struct Sm90MaskListArgs {
  BlockMaskArgs by_keys = {}, by_rows = {};
};

/// Describes the lists that the kernels of a launch walk.
struct Sm90MaskLists {
  int by_rows_rows = 0, by_rows_keys = 0;  ///< tile size for BlockMaskLists::of(); 0: no lists
  int by_keys_keys = 0;                    ///< block size for BlockMaskLists::by_keys(); 0: no lists
  bool has_order = false;                  ///< by keys: additions have a fixed order
  bool is_persistent = false;              ///< by keys: the kernel is persistent

  [[nodiscard]] std::size_t num_steps() const {
    return 1 + static_cast<std::size_t>(has_order) + static_cast<std::size_t>(by_keys_keys > 0) +
           static_cast<std::size_t>(by_rows_rows > 0);
  }
  /// Appends the specs of the steps. Call it before the family appends its specs.
  void add_specs(const Arch& arch, std::vector<KernelSpec>& specs) const;
  /// Returns the lists for a launch. With a boolean mask, runs the first steps of the launch, which write the lists to
  /// `memory`. With a block mask alone, returns the lists that the mask caches. Without a mask, returns no lists.
  /// `memory` needs Sm90MaskSteps::bytes() bytes.
  [[nodiscard]] Sm90MaskListArgs args(const Launch& launch, std::byte* memory) const;
};

/// The steps for one problem that has a boolean mask.
class Sm90MaskSteps {
 public:
  Sm90MaskSteps(const core::Problem& p, const Sm90MaskLists& lists);

  /// Appends the grids of the steps. Call it before the family appends its grids.
  void add_steps(Choice& choice) const;
  /// Returns the time for reading the mask, without launch overhead.
  [[nodiscard]] double seconds(const DeviceInfo& device) const;
  /// Returns the bytes of scratch memory. The memory need not be zeroed.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  /// Refuses masks with more list entries than an int can count.
  [[nodiscard]] std::optional<core::Lack> lack() const;

  /// args() returns the arguments of the steps, in order. lists() returns the lists that they write.
  [[nodiscard]] std::vector<Sm90MaskArgs> args(std::byte* memory) const;
  [[nodiscard]] Sm90MaskListArgs lists(std::byte* memory) const;

 private:
  /// The lists of one shape and their offsets in the memory.
  struct Part {
    MaskListShape shape = {};  ///< heads = 0: no lists
    std::int64_t lists = 0;    ///< number of lists per group of heads that share lists
    std::int64_t heads = 0;    ///< number of these groups per sequence
    std::int64_t elements = 0;
    std::int64_t bounds_at = 0, entries_at = 0;

    [[nodiscard]] bool exists() const { return shape.heads > 0; }
    [[nodiscard]] std::int64_t num_lists(std::int64_t sequences) const { return sequences * heads * lists; }
  };
  [[nodiscard]] Part part(MaskListShape shape);
  std::int64_t place(std::int64_t bytes);
  [[nodiscard]] BlockMaskArgs args_of(const Part& part, std::byte* memory, std::int64_t patterns_at) const;

  const core::Problem& problem_;
  Sm90MaskLists lists_;
  std::int64_t sequences_, num_heads_;  ///< of the mask; 1 if all are identical
  std::int64_t tile_rows_, tile_columns_, mask_rows_;
  std::int64_t bytes_ = 0;
  std::int64_t kinds_at_ = 0, turns_at_ = 0, patterns_at_ = 0, patterns_by_key_at_ = 0;
  Part by_keys_, by_rows_;
};

}  // namespace attend::cuda
