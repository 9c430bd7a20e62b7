// Compiled kernels on disk. Whatever is found there that is not exactly what was written is treated as absent, whatever
// cannot be written stays in memory: no state of the disk makes a call fail.
//
// An entry is ROOT/VERSION/NAME-ARCH-KEY.bin, VERSION being the library's:
//   magic 8 | format 4 | reserved 4 | log bytes 8 | cubin bytes 8 | compile seconds 8 | key 32 | checksum 16 | log |
//   cubin
// All numbers are little-endian; the checksum is XXH3-128 over everything before and after it.
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

/// What a compile gave and an entry holds.
struct CacheEntry {
  std::string log;  ///< the compiler's
  std::vector<std::byte> cubin;
  double seconds = 0;  ///< of a processor that the compile took
};

/// The bytes of the file that holds `entry` under `key` (32 characters).
[[nodiscard]] std::string encode_entry(const std::string& key, const CacheEntry& entry);

/// The entry in `bytes`, or nothing and the reason in `why` where they are not one, or that of another key.
[[nodiscard]] std::optional<CacheEntry> decode_entry(std::string_view bytes, const std::string& key, std::string& why);

/// One folder of entries. Any number of processes may share it. Thread-safe.
class DiskCache {
 public:
  using Warn = std::function<void(const std::string&)>;

  /// @param root     made when the first entry is stored; empty: nothing is kept
  /// @param version  the library's, whose entries lie in a folder of their own
  /// @param limit    bytes that the files of all versions may take; 0: nothing is kept, and nothing looked for
  /// @param warn     told, in one line, of an entry that was damaged and of a folder that cannot be written
  DiskCache(const std::filesystem::path& root, std::string_view version, std::uint64_t limit, Warn warn);

  /// The entry of `key`, or nothing.
  [[nodiscard]] std::optional<CacheEntry> load(const std::string& file_name, const std::string& key);

  /// Writes the entry to a temporary name, syncs it, and renames it: readers see all of it or nothing. Removes the
  /// least recently used entries where there are too many then; of an entry beyond the limit by itself nothing is
  /// written.
  void store(const std::string& file_name, const std::string& key, const CacheEntry& entry);

  /// Writes a text for people beside the entries; where that fails, nothing happens.
  void leave_text(const std::string& file_name, const std::string& text);

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }

 private:
  std::filesystem::path root_, folder_;
  std::uint64_t limit_;
  Warn warn_;
};

}  // namespace attend::cuda
