// Digests of the source code from which this library was built. Each folder of the code has one digest. Benchmark
// results include the digests.
#pragma once

#include <span>
#include <string_view>

namespace attend::core {

struct SourceDigest {
  /// A folder of the repository, such as "kernels/sm90" or "src/cpu"; the text is null-terminated.
  std::string_view part;
  std::string_view digest;  ///< 16 hexadecimal digits, computed from the folder's code without comments and white space
};

/// Returns the digests of every folder of kernels/, of src/cuda/launch and of src/cpu, sorted.
/// cmake/source_digests.cmake generates them.
[[nodiscard]] std::span<const SourceDigest> source_digests() noexcept;

}  // namespace attend::core
