// The sources of the kernels: embedded in the library, or read from the folder ATTEND_KERNEL_DIR.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/driver/nvrtc.hpp"

namespace attend::cuda {

/// A file of kernels/: its path there ("ladder/02_naive.cuh") and its text.
struct EmbeddedSource {
  std::string_view path;
  std::string_view text;  ///< packed: cmake/embed_kernels.cmake
};

/// Every file of kernels/ as it was when the library was built, sorted by path.
[[nodiscard]] std::span<const EmbeddedSource> embedded_sources() noexcept;

/// The words that bytes from 1 on stand for in their texts.
[[nodiscard]] std::span<const std::string_view> embedded_words() noexcept;

/// 32 hexadecimal digits of the files' names and code. Comments and the amount of white space do not count.
[[nodiscard]] std::string digest_of_code(std::span<const NamedSource> files);

/// digest_of_code() of all embedded sources: two builds with the same digest run the same kernels.
[[nodiscard]] std::string kernel_digest();

/// `path` and every file that it includes with quotes, directly or not, each once, `path` first. In their texts the
/// quoted includes name the path from the root, whatever they said before: the compiler needs no search order.
/// @param kernel_dir  where to read them; empty: the embedded ones
/// @throws Error (kIo with a folder, kInternal without) naming the file that is missing and the one that includes it.
[[nodiscard]] std::vector<NamedSource> collect_sources(const std::string& path,
                                                       const std::filesystem::path& kernel_dir);

}  // namespace attend::cuda
