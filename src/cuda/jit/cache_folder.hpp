// The folder of compiled kernels as a whole: what it holds, and how it stays below a limit.
//
// Files of the cache are ROOT/VERSION/NAME-ARCH-KEY.bin and .cu, VERSION being three numbers and KEY 32 hexadecimal
// digits. Every other file is foreign: it is neither counted nor removed. There is no lock: processes that remove at
// the same time agree on what is oldest, a file that somebody reads stays readable until it is closed, and a file that
// is removed just before it is wanted is compiled once more.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace attend::cuda {

/// The limit where ATTEND_CACHE_LIMIT says nothing: room for some 7000 kernels (the 551 of results/h200/compile.json
/// take 81 MB), where the largest cache that was seen took 412 MB.
inline constexpr std::uint64_t kDefaultCacheLimit = std::uint64_t{1} << 30;

/// Files named like this are being written, or were left by a process that was killed.
inline constexpr std::string_view kTemporaryPrefix = ".tmp-";

/// One file of the cache.
struct CacheFile {
  std::filesystem::path path;
  std::string name;  ///< the kernel's: "sm90_forward"
  std::string arch;  ///< "sm_90a"
  std::uint64_t bytes = 0;
  std::chrono::nanoseconds last_used{};  ///< since the epoch
};

/// How many files, and their bytes together.
struct CacheTotals {
  std::uint64_t files = 0, bytes = 0;
};

/// The files of one kernel for one architecture.
struct CachedKernel {
  std::string name, arch;
  CacheTotals totals;
  std::chrono::nanoseconds last_used{};  ///< the latest
};

/// What `attend cache` and attend.cache_info() show.
struct CacheInfo {
  std::filesystem::path root;  ///< empty: there is none, since neither HOME nor ATTEND_CACHE_DIR is set
  std::uint64_t limit = kDefaultCacheLimit;
  bool limit_is_default = true;  ///< ATTEND_CACHE_LIMIT says nothing
  CacheTotals totals;
  std::vector<CachedKernel> kernels;  ///< the largest first
};

/// Every file of the cache, of every version of the library. Empty where the folder cannot be read.
[[nodiscard]] std::vector<CacheFile> cache_files(const std::filesystem::path& root);

/// Called after every file that is stored: a few microseconds for each file that there is, beside a compile that takes
/// a second. Where the files take more than `limit` bytes: removes the least recently used until they take no more than
/// 7/8 of it, so that the next ones find room. Gives what is left. Files that cannot be removed are passed over.
CacheTotals keep_within(const std::filesystem::path& root, std::uint64_t limit);

/// What clear_cache() removed, and what it was not allowed to.
struct CacheCleared {
  CacheTotals removed, left;
};

/// Removes every file of the cache, what killed processes left in its folders, and folders that are empty then.
CacheCleared clear_cache(const std::filesystem::path& root);

/// Removes the temporary files that are older than an hour: no writer takes that long.
void remove_stale_temporaries(const std::filesystem::path& folder);

/// $ATTEND_CACHE_DIR, else $XDG_CACHE_HOME/attend, else $HOME/.cache/attend; empty where none of them is set.
[[nodiscard]] std::filesystem::path cache_root_from_environment();

/// $ATTEND_CACHE_LIMIT in bytes, else kDefaultCacheLimit. 0: nothing is kept on disk. @throws Error for another value.
[[nodiscard]] std::uint64_t cache_limit_from_environment();

/// The cache that the environment asks for. @throws Error as cache_limit_from_environment().
[[nodiscard]] CacheInfo cache_info();

/// What `attend cache show`, and `limit`, print, with a line break at the end.
[[nodiscard]] std::string describe(const CacheInfo& info);
[[nodiscard]] std::string describe_limit(const CacheInfo& info);

}  // namespace attend::cuda
