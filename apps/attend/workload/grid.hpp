// The sizes that `attend bench` goes through.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/folder.hpp"

namespace attend::cli {

/// One problem of a grid.
struct GridEntry {
  io::FolderSpec spec;
  bool causal = false;        ///< whatever --causal says
  std::string function = {};  ///< a mask or score of the caller's own, by its name in masks_grid(); empty: none
};

/// As many keys as rows, as many key heads as query heads, one head_dim.
[[nodiscard]] GridEntry square_problem(std::int64_t batch, std::int64_t heads, std::int64_t seqlen,
                                       std::int64_t head_dim, DType dtype, bool causal = false);

/// A grid file's text: a JSON list of objects with the keys B, H, D, and S or Sq and Sk; optional Hkv, Dv and causal.
/// @throws Error (kIo) starting with `name`, saying which entry and key is at fault.
[[nodiscard]] std::vector<GridEntry> parse_grid(std::string_view text, std::string_view name, DType dtype);

/// "seed", "paper", "gpt3", or the path of a grid file. @throws Error as parse_grid does, and where the file cannot be
/// read.
[[nodiscard]] std::vector<GridEntry> load_grid(const std::string& grid, DType dtype);

}  // namespace attend::cli
