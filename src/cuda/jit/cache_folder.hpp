// The cache folder of compiled kernels: the files in it and its size limit.
//
// Cache files have the names ROOT/VERSION/NAME-ARCH-KEY.bin and .cu. VERSION consists of three numbers, and KEY
// consists of 32 hexadecimal digits. All other files are ignored: they are neither counted nor removed.
// The folder has no lock. If several processes remove files at the same time, all of them start with the oldest file. A
// process can still read a file that it has opened, even after another process has removed the file. A kernel whose
// file was removed too early is compiled again.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace attend::cuda {

/// Size limit in bytes if ATTEND_CACHE_LIMIT is not set. The 551 kernels of results/h200/compile.json need 81 MB, so
/// the limit has room for about 7000 kernels. The largest cache measured so far had 412 MB.
inline constexpr std::uint64_t kDefaultCacheLimit = std::uint64_t{1} << 30;

/// Prefix of temporary files. Such a file is being written, or a process was killed while it wrote the file.
inline constexpr std::string_view kTemporaryPrefix = ".tmp-";

/// One file in the cache folder.
struct CacheFile {
  std::filesystem::path path;
  std::string name;  ///< kernel name, e.g. "sm90_forward"
  std::string arch;  ///< e.g. "sm_90a"
  std::uint64_t bytes = 0;
  std::chrono::nanoseconds last_used{};  ///< time since the epoch
};

/// The number of files and the sum of their sizes.
struct CacheTotals {
  std::uint64_t files = 0, bytes = 0;
};

/// All files of one kernel for one architecture.
struct CachedKernel {
  std::string name, arch;
  CacheTotals totals;
  std::chrono::nanoseconds last_used{};  ///< latest time of use of these files, since the epoch
};

/// Contents of the cache folder, as shown by `attend cache` and attend.cache_info().
struct CacheInfo {
  /// Path of the cache folder. Empty if there is none, because neither HOME nor ATTEND_CACHE_DIR is set.
  std::filesystem::path root;
  std::uint64_t limit = kDefaultCacheLimit;
  bool limit_is_default = true;  ///< true if ATTEND_CACHE_LIMIT is not set
  CacheTotals totals;
  std::vector<CachedKernel> kernels;  ///< sorted by size, largest first
};

/// Returns all cache files, for all versions of the library. Returns an empty list if the folder cannot be read.
[[nodiscard]] std::vector<CacheFile> cache_files(const std::filesystem::path& root);

/// If the files together have more than `limit` bytes, removes the least recently used files until at most 7/8 of the
/// limit is used. The next files then have room. Skips files that cannot be removed. Returns the number and size of the
/// remaining files. This function runs after each file is stored. It takes a few microseconds for each file in the
/// cache. A compilation takes about a second.
CacheTotals keep_within(const std::filesystem::path& root, std::uint64_t limit);

/// The files that were removed, and the files that could not be removed.
struct CacheCleared {
  CacheTotals removed, left;
};

/// Removes all cache files, the temporary files of killed processes, and all folders that are then empty.
CacheCleared clear_cache(const std::filesystem::path& root);

/// Removes temporary files that are older than one hour. Writing a file never takes this long.
void remove_stale_temporaries(const std::filesystem::path& folder);

/// Returns $ATTEND_CACHE_DIR if it is set, otherwise $XDG_CACHE_HOME/attend, otherwise $HOME/.cache/attend. Returns an
/// empty path if none of these variables is set.
[[nodiscard]] std::filesystem::path cache_root_from_environment();

/// Returns $ATTEND_CACHE_LIMIT in bytes, or kDefaultCacheLimit if the variable is not set. The value 0 disables the
/// cache folder.
/// @throws Error if the value is invalid.
[[nodiscard]] std::uint64_t cache_limit_from_environment();

/// Returns the contents of the cache folder that the environment variables select. @throws Error like
/// cache_limit_from_environment().
[[nodiscard]] CacheInfo cache_info();

/// Returns the output of `attend cache show`, with a line break at the end.
[[nodiscard]] std::string describe(const CacheInfo& info);
/// Returns the output of `attend cache limit`, with a line break at the end.
[[nodiscard]] std::string describe_limit(const CacheInfo& info);

}  // namespace attend::cuda
