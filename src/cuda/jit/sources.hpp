// The source files of the kernels. They are embedded in the library, or they are read from the folder
// ATTEND_KERNEL_DIR.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/driver/nvrtc.hpp"

namespace attend::cuda {

/// One source file: its path relative to kernels/, e.g. "ladder/02_naive.cuh", and its text.
struct EmbeddedSource {
  std::string_view path;
  std::string_view text;  ///< compressed; cmake/embed_kernels.cmake describes the format
};

/// Returns all files of kernels/ as they were when the library was built, sorted by path.
[[nodiscard]] std::span<const EmbeddedSource> embedded_sources() noexcept;

/// Returns the words that single bytes represent in the compressed texts. Byte 1 represents the first word.
[[nodiscard]] std::span<const std::string_view> embedded_words() noexcept;

/// Returns 32 hexadecimal digits of the code of all kernels (core/source_digests.hpp). If two builds have the same
/// digest, their kernels differ at most in comments and white space.
[[nodiscard]] std::string kernel_digest();

/// Returns the file `path` and all files that it includes with quotes, directly or indirectly. `path` is the first
/// element, and each file occurs once. In the returned texts, every quoted include is replaced by the path relative to
/// kernels/. The compiler therefore needs no include folders.
/// @param path        path of the file relative to kernels/
/// @param kernel_dir  folder to read the files from. If it is empty, the embedded files are used
/// @throws Error if a file is missing: kIo if `kernel_dir` is given, otherwise kInternal. The message contains the
///         missing file and the file that includes it.
[[nodiscard]] std::vector<NamedSource> collect_sources(const std::string& path,
                                                       const std::filesystem::path& kernel_dir);

}  // namespace attend::cuda
