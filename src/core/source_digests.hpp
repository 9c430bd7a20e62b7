// Digests of the source code from which this library was built, one per part. Benchmark results include them.
#pragma once

#include <span>
#include <string_view>

namespace attend::core {

struct SourceDigest {
  std::string_view part;    ///< a folder of the repository: "kernels/sm90", "src/cpu"; ends with a null
  std::string_view digest;  ///< 16 hexadecimal digits of its code, without comments and white space
};

/// Returns the digests of every folder of kernels/, of src/cuda/launch and of src/cpu, sorted.
/// cmake/source_digests.cmake generates them.
[[nodiscard]] std::span<const SourceDigest> source_digests() noexcept;

}  // namespace attend::core
