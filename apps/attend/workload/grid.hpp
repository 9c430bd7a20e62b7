// The problems that `attend bench` times.
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
  bool causal = false;        ///< also if --causal is not given
  std::string function = {};  ///< name of a custom mask or score in masks_grid(); empty: none
};

/// Returns a problem with equal numbers of rows and keys, of query heads and key heads, and one head_dim.
[[nodiscard]] GridEntry square_problem(std::int64_t batch, std::int64_t heads, std::int64_t seqlen,
                                       std::int64_t head_dim, DType dtype, bool causal = false);

/// Parses the text of a grid file: a JSON list of objects with the keys B, H, D, and S or Sq and Sk; optional Hkv, Dv
/// and causal.
/// @throws Error (kIo) that begins with `name` and says which entry and key is wrong.
[[nodiscard]] std::vector<GridEntry> parse_grid(std::string_view text, std::string_view name, DType dtype);

/// Loads "seed", "paper", "gpt3", or the grid file of that path. @throws Error as parse_grid, or if the file cannot be
/// read.
[[nodiscard]] std::vector<GridEntry> load_grid(const std::string& grid, DType dtype);

}  // namespace attend::cli
