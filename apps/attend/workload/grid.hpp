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
  bool causal = false;        ///< if true, the problem is causal even if --causal is not given
  std::string function = {};  ///< name of a custom mask or score in masks_grid(); empty if there is none
};

/// Returns a problem in which k and v have the same number of heads, seqlen and head_dim as q.
[[nodiscard]] GridEntry square_problem(std::int64_t batch, std::int64_t heads, std::int64_t seqlen,
                                       std::int64_t head_dim, DType dtype, bool causal = false);

/// Parses the text of a grid file. It is a JSON list of objects with the keys B, H and D, and either S or both Sq and
/// Sk. The keys Hkv, Dv and causal are optional.
/// @throws Error (kIo) if the text is not a valid grid. The message begins with `name` and names the wrong entry and
///   key.
[[nodiscard]] std::vector<GridEntry> parse_grid(std::string_view text, std::string_view name, DType dtype);

/// Returns the grid "seed", "paper" or "gpt3", or loads the grid file with that path. @throws Error if the file cannot
/// be read or is not a valid grid.
[[nodiscard]] std::vector<GridEntry> load_grid(const std::string& grid, DType dtype);

}  // namespace attend::cli
