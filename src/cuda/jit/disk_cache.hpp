// The cache of compiled kernels on disk. A damaged file is treated as missing. If a kernel cannot be written to disk,
// it stays in memory. Problems with the disk never make a call fail.
//
// An entry is a file with the name ROOT/VERSION/NAME-ARCH-KEY.bin, where VERSION is the version of the library. The
// file has these fields with these sizes in bytes:
//   magic 8 | format 4 | reserved 4 | log bytes 8 | cubin bytes 8 | compile seconds 8 | key 32 | checksum 16 | log |
//   cubin
// All numbers are little-endian. The checksum is the XXH3-128 hash of all bytes of the file except the checksum.
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

/// The results of one compilation.
struct CacheEntry {
  std::string log;  ///< the compiler's log
  std::vector<std::byte> cubin;
  double seconds = 0;  ///< processor time of the compilation
};

/// Returns the contents of the file for `entry` and `key`. The key has 32 characters.
[[nodiscard]] std::string encode_entry(const std::string& key, const CacheEntry& entry);

/// Reads an entry from the contents of a file. If the contents are invalid or have a different key, returns nothing and
/// stores the reason in `why`.
[[nodiscard]] std::optional<CacheEntry> decode_entry(std::string_view bytes, const std::string& key, std::string& why);

/// A folder of entries. Several processes can share it. Thread-safe.
class DiskCache {
 public:
  using Warn = std::function<void(const std::string&)>;

  /// @param root     cache folder, created when the first entry is stored. If empty, nothing is stored
  /// @param version  version of the library. Each version has a separate folder in `root`
  /// @param limit    size limit in bytes for the files of all versions. If 0, entries are neither stored nor loaded
  /// @param warn     function that receives a message of one line if an entry is damaged or a folder cannot be written
  DiskCache(const std::filesystem::path& root, std::string_view version, std::uint64_t limit, Warn warn);

  /// Returns the entry with this file name and key, or nothing if there is none.
  [[nodiscard]] std::optional<CacheEntry> load(const std::string& file_name, const std::string& key);

  /// Stores an entry. The entry is written to a temporary file, synced and renamed, so a reader finds either a complete
  /// entry or none. If the size limit is then exceeded, removes the least recently used entries. Does not store an
  /// entry that is larger than the limit.
  void store(const std::string& file_name, const std::string& key, const CacheEntry& entry);

  /// Writes a text file for human readers next to the entries. Ignores errors.
  void leave_text(const std::string& file_name, const std::string& text);

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }

 private:
  std::filesystem::path root_, folder_;
  std::uint64_t limit_;
  Warn warn_;
};

}  // namespace attend::cuda
