// The flags for custom scores and masks: --score TEXT, --block_mask TEXT and --tensor NAME=FILE.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "options/options.hpp"

namespace attend::cli {

struct ScoreFlags {
  std::optional<std::string> text, mask_text;
  std::vector<std::string> tensors;  // values of --tensor; each has the form NAME=FILE

  void add(CLI::App& app);
  void finish(RunOptions& options) const;
};

}  // namespace attend::cli
