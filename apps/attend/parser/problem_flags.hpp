// Flags that describe a problem: the options of attention, and the sizes in one flag. Several commands share them.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options/options.hpp"

namespace attend::cli {

/// Return the element types that commands accept, and their names in the same order.
[[nodiscard]] const std::vector<DType>& flag_dtypes();
[[nodiscard]] std::vector<std::string> dtype_names();

/// Returns the parts of `text` between commas.
[[nodiscard]] std::vector<std::string> split_at_commas(std::string_view text);

/// The flags for the options of attention. finish() stores the values of flags that may be absent.
struct AttentionFlags {
  std::array<std::optional<double>, core::kScoreNumbers.size()> score_numbers;

  void add(CLI::App& app, AttentionOptions& options);
  void finish(AttentionOptions& options) const;
};

/// The flag --problem B,H,S,D and the flags for the remaining sizes. A command may give --problem another name.
struct ProblemFlags {
  AttentionFlags attention;
  std::string sizes;
  // Index of bf16; a command may set another type before add().
  std::size_t dtype = 2;
  std::int64_t heads_kv = 0, seqlen_k = 0, head_dim_v = 0;  // 0 means the value of the corresponding size of q

  void add(CLI::App& app, const char* flag, AttentionOptions& options);
  /// @throws Error (kInvalidArgument) naming the flag, the given value and the allowed values.
  [[nodiscard]] io::FolderSpec finish(const char* flag, AttentionOptions& options) const;
  /// For a call without `flag`. Throws if another flag was given that is allowed only with it.
  void finish_without_sizes(const char* flag, AttentionOptions& options) const;
};

}  // namespace attend::cli
