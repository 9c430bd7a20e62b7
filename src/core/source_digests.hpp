// Which code this library was built from, part by part: what results of measurements carry.
#pragma once

#include <span>
#include <string_view>

namespace attend::core {

struct SourceDigest {
  std::string_view part;    ///< a folder of the repository: "kernels/sm90", "src/cpu"; ends with a null
  std::string_view digest;  ///< 16 hexadecimal digits of its code, without comments and white space
};

/// Of every folder of kernels/, of src/cuda/launch and src/cpu, sorted (cmake/source_digests.cmake makes them).
[[nodiscard]] std::span<const SourceDigest> source_digests() noexcept;

}  // namespace attend::core
