// Flags that say a problem, shared by the commands that take one: the options of attention, and its sizes in one line.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options/options.hpp"

namespace attend::cli {

/// The element types that commands take, and their names, in one order.
[[nodiscard]] const std::vector<DType>& flag_dtypes();
[[nodiscard]] std::vector<std::string> dtype_names();

/// The pieces of `text` between commas.
[[nodiscard]] std::vector<std::string> split_at_commas(std::string_view text);

/// The options of attention. Values that are absent until read are put where they belong by finish().
struct AttentionFlags {
  std::array<std::optional<double>, core::kScoreNumbers.size()> score_numbers;

  void add(CLI::App& app, AttentionOptions& options);
  void finish(AttentionOptions& options) const;
};

/// --problem B,H,S,D (or another flag) and what it leaves open.
struct ProblemFlags {
  AttentionFlags attention;
  std::string sizes;
  std::size_t dtype = 2;                                    // bf16, if the command has no other before add()
  std::int64_t heads_kv = 0, seqlen_k = 0, head_dim_v = 0;  // 0: as the other one

  void add(CLI::App& app, const char* flag, AttentionOptions& options);
  /// @throws Error (kInvalidArgument) naming the flag, the value found and what is allowed.
  [[nodiscard]] io::FolderSpec finish(const char* flag, AttentionOptions& options) const;
  /// Where the command goes without `flag`: refuses what only a problem has.
  void finish_without_sizes(const char* flag, AttentionOptions& options) const;
};

}  // namespace attend::cli
