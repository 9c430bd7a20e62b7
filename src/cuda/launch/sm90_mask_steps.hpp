// The first steps of a sm90 launch with a boolean mask: they make lists of tiles of it, as block masks have them, so
// that the kernels behind them know block masks only.
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

/// Lists as kernels take them.
struct Sm90MaskListArgs {
  BlockMaskArgs by_keys = {}, by_rows = {};
};

/// Which lists the kernels of a launch walk over.
struct Sm90MaskLists {
  int by_rows_rows = 0, by_rows_keys = 0;  ///< BlockMaskLists::of(); 0: none
  int by_keys_keys = 0;                    ///< BlockMaskLists::by_keys(); 0: none
  bool has_order = false;                  ///< by keys: of additions
  bool is_persistent = false;              ///< by keys: of the kernel

  [[nodiscard]] std::size_t num_steps() const {
    return 1 + static_cast<std::size_t>(has_order) + static_cast<std::size_t>(by_keys_keys > 0) +
           static_cast<std::size_t>(by_rows_rows > 0);
  }
  /// Their specs, before those of the family.
  void add_specs(const Arch& arch, std::vector<KernelSpec>& specs) const;
  /// The lists for a launch: of its boolean mask, which runs the launch's first steps, or of its block mask alone,
  /// which keeps them; else none. memory: of Sm90MaskSteps::bytes().
  [[nodiscard]] Sm90MaskListArgs args(const Launch& launch, std::byte* memory) const;
};

/// The steps for one problem, which has a mask.
class Sm90MaskSteps {
 public:
  Sm90MaskSteps(const core::Problem& p, const Sm90MaskLists& lists);

  /// Before those of the family.
  void add_steps(Choice& choice) const;
  /// For the estimate, beside the launches: reading the mask.
  [[nodiscard]] double seconds(const DeviceInfo& device) const;
  /// Of scratch memory, which nobody clears.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  /// Kernels count places in lists by keys in ints.
  [[nodiscard]] std::optional<core::Lack> lack() const;

  /// What the steps take, in their order, and what comes out.
  [[nodiscard]] std::vector<Sm90MaskArgs> args(std::byte* memory) const;
  [[nodiscard]] Sm90MaskListArgs lists(std::byte* memory) const;

 private:
  /// The lists of one shape, and where they lie in the memory.
  struct Part {
    MaskListShape shape = {};  ///< heads = 0: there are none
    std::int64_t lists = 0;    ///< of the heads that share them
    std::int64_t heads = 0;    ///< that share them, of a sequence: so many times
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
  std::int64_t sequences_, num_heads_;  ///< of the mask, as far as they differ
  std::int64_t tile_rows_, tile_columns_, mask_rows_;
  std::int64_t bytes_ = 0;
  std::int64_t kinds_at_ = 0, turns_at_ = 0, patterns_at_ = 0, patterns_by_key_at_ = 0;
  Part by_keys_, by_rows_;
};

}  // namespace attend::cuda
