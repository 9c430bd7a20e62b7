// The folder of compiled kernels: its contents and its size limit.
//
// Cache files are ROOT/VERSION/NAME-ARCH-KEY.bin and .cu. VERSION is three numbers and KEY is 32 hexadecimal digits.
// All other files are foreign and are neither counted nor removed. The folder has no lock. Processes that remove files
// at the same time agree on the oldest ones. An open file stays readable until it is closed. A kernel whose file was
// removed too early is compiled again.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace attend::cuda {

/// Default limit if ATTEND_CACHE_LIMIT is not set. It has room for about 7000 kernels: the 551 kernels of
/// results/h200/compile.json take 81 MB. The largest cache seen so far took 412 MB.
inline constexpr std::uint64_t kDefaultCacheLimit = std::uint64_t{1} << 30;

/// Prefix of temporary files. They are being written, or a killed process has left them.
inline constexpr std::string_view kTemporaryPrefix = ".tmp-";

/// One file of the cache.
struct CacheFile {
  std::filesystem::path path;
  std::string name;  ///< kernel name, e.g. "sm90_forward"
  std::string arch;  ///< e.g. "sm_90a"
  std::uint64_t bytes = 0;
  std::chrono::nanoseconds last_used{};  ///< time since the epoch
};

/// Number of files and their total size.
struct CacheTotals {
  std::uint64_t files = 0, bytes = 0;
};

/// The files of one kernel for one architecture.
struct CachedKernel {
  std::string name, arch;
  CacheTotals totals;
  std::chrono::nanoseconds last_used{};  ///< the latest of its files
};

/// Contents of the cache, as shown by `attend cache` and attend.cache_info().
struct CacheInfo {
  /// Empty if there is no folder, because neither HOME nor ATTEND_CACHE_DIR is set.
  std::filesystem::path root;
  std::uint64_t limit = kDefaultCacheLimit;
  bool limit_is_default = true;  ///< ATTEND_CACHE_LIMIT is not set
  CacheTotals totals;
  std::vector<CachedKernel> kernels;  ///< largest first
};

/// Returns all cache files, of all versions of the library. Returns an empty list if the folder cannot be read.
[[nodiscard]] std::vector<CacheFile> cache_files(const std::filesystem::path& root);

/// Removes the least recently used files if all files together exceed `limit` bytes. Continues until at most 7/8 of the
/// limit is used, so that the next files have room. Returns the remaining files. Skips files that cannot be removed.
/// Called after every stored file; the cost is a few microseconds per file in the cache, compared with a second for a
/// compilation.
CacheTotals keep_within(const std::filesystem::path& root, std::uint64_t limit);

/// The removed files, and the files that could not be removed.
struct CacheCleared {
  CacheTotals removed, left;
};

/// Removes all cache files, temporary files of killed processes, and folders that are empty afterwards.
CacheCleared clear_cache(const std::filesystem::path& root);

/// Removes temporary files that are older than an hour. No writer takes that long.
void remove_stale_temporaries(const std::filesystem::path& folder);

/// Returns $ATTEND_CACHE_DIR, otherwise $XDG_CACHE_HOME/attend, otherwise $HOME/.cache/attend. Empty if none is set.
[[nodiscard]] std::filesystem::path cache_root_from_environment();

/// Returns $ATTEND_CACHE_LIMIT in bytes, or kDefaultCacheLimit if it is not set. 0 disables the disk cache. @throws
/// Error for an invalid value.
[[nodiscard]] std::uint64_t cache_limit_from_environment();

/// Returns the contents of the cache that the environment selects. @throws Error like cache_limit_from_environment().
[[nodiscard]] CacheInfo cache_info();

/// Return the output of `attend cache show` and `attend cache limit`, with a final line break.
[[nodiscard]] std::string describe(const CacheInfo& info);
[[nodiscard]] std::string describe_limit(const CacheInfo& info);

}  // namespace attend::cuda
