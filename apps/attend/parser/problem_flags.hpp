// Flags that describe a problem, shared by the commands that take one: the options of attention, and the sizes in one
// flag.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options/options.hpp"

namespace attend::cli {

/// Return the element types that commands take, and their names in the same order.
[[nodiscard]] const std::vector<DType>& flag_dtypes();
[[nodiscard]] std::vector<std::string> dtype_names();

/// Returns the parts of `text` between commas.
[[nodiscard]] std::vector<std::string> split_at_commas(std::string_view text);

/// The options of attention. finish() stores the values that may be absent.
struct AttentionFlags {
  std::array<std::optional<double>, core::kScoreNumbers.size()> score_numbers;

  void add(CLI::App& app, AttentionOptions& options);
  void finish(AttentionOptions& options) const;
};

/// --problem B,H,S,D (or a flag of another name) and the flags for the remaining sizes.
struct ProblemFlags {
  AttentionFlags attention;
  std::string sizes;
  std::size_t dtype = 2;                                    // bf16, unless the command sets another before add()
  std::int64_t heads_kv = 0, seqlen_k = 0, head_dim_v = 0;  // 0: as its counterpart

  void add(CLI::App& app, const char* flag, AttentionOptions& options);
  /// @throws Error (kInvalidArgument) that names the flag, the given value and the allowed values.
  [[nodiscard]] io::FolderSpec finish(const char* flag, AttentionOptions& options) const;
  /// For a command without `flag`: throws if a flag is given that needs it.
  void finish_without_sizes(const char* flag, AttentionOptions& options) const;
};

}  // namespace attend::cli
