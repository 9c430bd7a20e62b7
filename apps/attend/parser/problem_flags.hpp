// Flags that describe a problem. They set the options of attention, and one flag sets the sizes. Several commands use
// these flags.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options/options.hpp"

namespace attend::cli {

/// Returns the element types that files may have.
[[nodiscard]] const std::vector<DType>& flag_dtypes();
/// Returns the element types of problems that commands make: flag_dtypes(), followed by f8e4m3. With f8e4m3, o is bf16.
[[nodiscard]] const std::vector<DType>& problem_dtypes();
/// Returns the names of the types.
[[nodiscard]] std::vector<std::string> dtype_names(const std::vector<DType>& dtypes);

/// Splits `text` at commas.
[[nodiscard]] std::vector<std::string> split_at_commas(std::string_view text);

/// The flags for the options of attention. finish() stores the values of those flags that can be absent.
struct AttentionFlags {
  std::array<std::optional<double>, core::kScoreNumbers.size()> score_numbers;

  void add(CLI::App& app, AttentionOptions& options);
  void finish(AttentionOptions& options) const;
};

/// The flag --problem B,H,S,D and the flags for the other sizes. A command can use another name instead of --problem.
struct ProblemFlags {
  AttentionFlags attention;
  std::string sizes;
  // Index of the default element type, which is bf16. A command can set another default before it calls add().
  std::size_t dtype = 2;
  std::int64_t heads_kv = 0, seqlen_k = 0, head_dim_v = 0;  // 0 means that the size is equal to that of q

  void add(CLI::App& app, const char* flag, AttentionOptions& options,
           const std::vector<DType>& dtypes = problem_dtypes());
  /// @throws Error (kInvalidArgument) naming the flag, the given value and the allowed values.
  [[nodiscard]] io::FolderSpec finish(const char* flag, AttentionOptions& options) const;
  /// Checks a command line without `flag`. Throws if it contains a flag that is allowed only together with `flag`.
  void finish_without_sizes(const char* flag, AttentionOptions& options) const;
};

}  // namespace attend::cli
