// Compiled kernels on disk. An entry that differs from what was written counts as missing. A kernel that cannot be
// written stays in memory. No state of the disk makes a call fail.
//
// An entry is ROOT/VERSION/NAME-ARCH-KEY.bin, where VERSION is the version of the library:
//   magic 8 | format 4 | reserved 4 | log bytes 8 | cubin bytes 8 | compile seconds 8 | key 32 | checksum 16 | log |
//   cubin
// All numbers are little-endian. The checksum is XXH3-128 over everything before and after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attend::cuda {

/// The results of a compilation, stored in an entry.
struct CacheEntry {
  std::string log;  ///< the compiler's log
  std::vector<std::byte> cubin;
  double seconds = 0;  ///< processor time of the compilation
};

/// Returns the bytes of a file that holds `entry` under `key` (32 characters).
[[nodiscard]] std::string encode_entry(const std::string& key, const CacheEntry& entry);

/// Returns the entry in `bytes`. If the bytes are not an entry or have another key, returns nothing and writes the
/// reason to `why`.
[[nodiscard]] std::optional<CacheEntry> decode_entry(std::string_view bytes, const std::string& key, std::string& why);

/// A folder of entries. Any number of processes can share it. Thread-safe.
class DiskCache {
 public:
  using Warn = std::function<void(const std::string&)>;

  /// @param root     created when the first entry is stored; empty: nothing is stored
  /// @param version  version of the library; each version has a separate folder
  /// @param limit    largest total size of the files of all versions in bytes; 0: nothing is stored or searched
  /// @param warn     called with one line for a damaged entry or a folder that cannot be written
  DiskCache(const std::filesystem::path& root, std::string_view version, std::uint64_t limit, Warn warn);

  /// Returns the entry of `key`, or nothing.
  [[nodiscard]] std::optional<CacheEntry> load(const std::string& file_name, const std::string& key);

  /// Writes the entry to a temporary file, syncs it and renames it, so that readers see a complete entry or none.
  /// Removes the least recently used entries if the limit is exceeded. Does not write an entry that alone exceeds the
  /// limit.
  void store(const std::string& file_name, const std::string& key, const CacheEntry& entry);

  /// Writes a text for human readers next to the entries. Ignores failures.
  void leave_text(const std::string& file_name, const std::string& text);

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }

 private:
  std::filesystem::path root_, folder_;
  std::uint64_t limit_;
  Warn warn_;
};

}  // namespace attend::cuda
