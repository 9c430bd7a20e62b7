// The kernels that run first in an sm90 launch with a boolean mask. They convert the mask to lists of visible tiles, in
// the format of a block mask. The main kernels therefore support only block masks.
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

/// The tile lists as kernel arguments.
struct Sm90MaskListArgs {
  BlockMaskArgs by_keys = {}, by_rows = {};
};

/// Describes which tile lists the kernels of a launch read, and the tile sizes of the lists.
struct Sm90MaskLists {
  /// Rows and keys of a tile in the lists by rows (BlockMaskLists::of()); 0 if the kernels read no such lists.
  int by_rows_rows = 0, by_rows_keys = 0;
  /// Keys of a block in the lists by keys (BlockMaskLists::by_keys()); 0 if the kernels read no such lists.
  int by_keys_keys = 0;
  bool has_order = false;      ///< whether additions to dq have a fixed order. Used for the lists by keys
  bool is_persistent = false;  ///< whether the kernel is persistent. Used for the lists by keys

  [[nodiscard]] std::size_t num_steps() const {
    return 1 + static_cast<std::size_t>(has_order) + static_cast<std::size_t>(by_keys_keys > 0) +
           static_cast<std::size_t>(by_rows_rows > 0);
  }
  /// Appends the specs of the kernels that make the lists. The family must call this function before it appends its
  /// specs.
  void add_specs(const Arch& arch, std::vector<KernelSpec>& specs) const;
  /// Returns the lists for a launch. With a boolean mask, launches the kernels that write the lists to `memory`, which
  /// must have Sm90MaskSteps::bytes() bytes. With only a block mask, returns the lists that are cached in the mask.
  /// Without a mask, returns no lists.
  [[nodiscard]] Sm90MaskListArgs args(const Launch& launch, std::byte* memory) const;
};

/// The kernels that make the lists for one problem with a boolean mask.
class Sm90MaskSteps {
 public:
  Sm90MaskSteps(const core::Problem& p, const Sm90MaskLists& lists);

  /// Appends the grids of these kernels. The family must call this function before it appends its grids.
  void add_steps(Choice& choice) const;
  /// Returns the estimated time in seconds for reading the mask, without launch overhead.
  [[nodiscard]] double seconds(const DeviceInfo& device) const;
  /// Returns the size of the scratch memory in bytes. The memory need not be zeroed.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  /// Refuses a mask whose lists would have more than 2^31 - 1 entries.
  [[nodiscard]] std::optional<core::Lack> lack() const;

  /// Returns the arguments of the kernels, in launch order.
  [[nodiscard]] std::vector<Sm90MaskArgs> args(std::byte* memory) const;
  /// Returns the addresses of the lists that the kernels write.
  [[nodiscard]] Sm90MaskListArgs lists(std::byte* memory) const;

 private:
  /// The lists for one tile size, and their offsets in the scratch memory.
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
  std::int64_t sequences_, num_heads_;  ///< sequences and heads of the mask; 1 if they share the mask
  std::int64_t tile_rows_, tile_columns_, mask_rows_;
  std::int64_t bytes_ = 0;
  std::int64_t kinds_at_ = 0, turns_at_ = 0, patterns_at_ = 0, patterns_by_key_at_ = 0;
  Part by_keys_, by_rows_;
};

}  // namespace attend::cuda
