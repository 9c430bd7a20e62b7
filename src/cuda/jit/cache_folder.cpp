#include "cuda/jit/cache_folder.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/environment.hpp"

namespace attend::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKeyDigits = 32;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Returns whether the text is a version number, e.g. "0.1.0".
bool is_version(std::string_view text) {
  return !text.empty() && is_digit(text.front()) && is_digit(text.back()) &&
         std::count(text.begin(), text.end(), '.') == 2 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c == '.' || is_digit(c); });
}

/// If the file name has the form NAME-ARCH-KEY.bin or NAME-ARCH-KEY.cu, returns NAME and ARCH. Otherwise returns
/// nothing.
std::optional<std::pair<std::string, std::string>> parse_name(const fs::path& file) {
  if (file.extension() != ".bin" && file.extension() != ".cu") return std::nullopt;
  const std::string stem = file.stem().string();
  const std::size_t before_key = stem.rfind('-');
  if (before_key == std::string::npos || stem.size() - before_key - 1 != kKeyDigits) return std::nullopt;
  if (stem.find_first_not_of("0123456789abcdef", before_key + 1) != std::string::npos) return std::nullopt;
  const std::size_t before_arch = stem.rfind('-', before_key - 1);
  if (before_key == 0 || before_arch == std::string::npos || before_arch == 0) return std::nullopt;
  const std::string arch = stem.substr(before_arch + 1, before_key - before_arch - 1);
  if (!arch.starts_with("sm_")) return std::nullopt;
  return std::pair(stem.substr(0, before_arch), arch);
}

/// Returns all folders in `root` whose name is a version number.
std::vector<fs::path> version_folders(const fs::path& root) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (fs::directory_iterator at(root, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    if (is_version(at->path().filename().string()) && at->is_directory(gone)) folders.push_back(at->path());
  }
  return folders;
}

CacheTotals sum(const std::vector<CacheFile>& files) {
  CacheTotals totals;
  for (const CacheFile& file : files) totals = {totals.files + 1, totals.bytes + file.bytes};
  return totals;
}

/// Removes the file. Returns false if the file still exists.
bool remove_file(const CacheFile& file) {
  std::error_code error;
  fs::remove(file.path, error);  // does not fail if another process has already removed the file
  return !error;
}

std::string age_text(std::chrono::nanoseconds last_used) {
  using namespace std::chrono;
  const auto age = duration_cast<minutes>(system_clock::now().time_since_epoch() - last_used).count();
  if (age < 60) return "within the hour";
  if (age < 2 * 24 * 60) return fmt::format("{} hour{} ago", age / 60, age < 120 ? "" : "s");
  return fmt::format("{} days ago", age / (24 * 60));
}

std::string files_text(const CacheTotals& totals) {
  return fmt::format("{} in {} file{}", core::bytes_text(totals.bytes), totals.files, totals.files == 1 ? "" : "s");
}

std::string root_text(const CacheInfo& info) {
  return info.root.empty() ? "none: set HOME or ATTEND_CACHE_DIR" : info.root.string();
}

}  // namespace

std::vector<CacheFile> cache_files(const fs::path& root) {
  std::vector<CacheFile> files;
  for (const fs::path& folder : version_folders(root)) {
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      const auto name = parse_name(at->path().filename());
      struct stat status = {};
      if (!name || ::lstat(at->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
      const auto used = std::chrono::seconds(status.st_atim.tv_sec) + std::chrono::nanoseconds(status.st_atim.tv_nsec);
      files.push_back({at->path(), name->first, name->second, static_cast<std::uint64_t>(status.st_size), used});
    }
  }
  return files;
}

CacheTotals keep_within(const fs::path& root, std::uint64_t limit) {
  std::vector<CacheFile> files = cache_files(root);
  CacheTotals left = sum(files);
  if (left.bytes <= limit) return left;
  std::sort(files.begin(), files.end(), [](const CacheFile& a, const CacheFile& b) {
    return std::pair(a.last_used, a.path) < std::pair(b.last_used, b.path);
  });
  const std::uint64_t wanted = limit / 8 * 7;
  for (const CacheFile& file : files) {
    if (left.bytes <= wanted || (left.files == 1 && left.bytes <= limit)) break;
    if (remove_file(file)) left = {left.files - 1, left.bytes - file.bytes};
  }
  return left;
}

CacheCleared clear_cache(const fs::path& root) {
  CacheCleared cleared;
  for (const CacheFile& file : cache_files(root)) {
    CacheTotals& totals = remove_file(file) ? cleared.removed : cleared.left;
    totals = {totals.files + 1, totals.bytes + file.bytes};
  }
  for (const fs::path& folder : version_folders(root)) {
    remove_stale_temporaries(folder);
    std::error_code not_empty;
    fs::remove(folder, not_empty);
  }
  return cleared;
}

void remove_stale_temporaries(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!at->path().filename().string().starts_with(kTemporaryPrefix)) continue;
    std::error_code gone;  // ignored, because another process may remove the same file
    const auto written = at->last_write_time(gone);
    if (!gone && fs::file_time_type::clock::now() - written > std::chrono::hours(1)) fs::remove(at->path(), gone);
  }
}

fs::path cache_root_from_environment() {
  if (const char* own = core::environment("ATTEND_CACHE_DIR")) return own;
  if (const char* xdg = core::environment("XDG_CACHE_HOME"); xdg != nullptr && fs::path(xdg).is_absolute()) {
    return fs::path(xdg) / "attend";
  }
  if (const char* home = core::environment("HOME"); home != nullptr && fs::path(home).is_absolute()) {
    return fs::path(home) / ".cache" / "attend";
  }
  return {};
}

std::uint64_t cache_limit_from_environment() {
  return core::environment_bytes("ATTEND_CACHE_LIMIT").value_or(kDefaultCacheLimit);
}

CacheInfo cache_info() {
  CacheInfo info = {.root = cache_root_from_environment(),
                    .limit = cache_limit_from_environment(),
                    .limit_is_default = core::environment("ATTEND_CACHE_LIMIT") == nullptr,
                    .totals = {},
                    .kernels = {}};
  if (info.root.empty()) return info;
  const std::vector<CacheFile> files = cache_files(info.root);
  info.totals = sum(files);
  std::map<std::pair<std::string, std::string>, CachedKernel> kernels;
  for (const CacheFile& file : files) {
    CachedKernel& kernel = kernels[{file.name, file.arch}];
    kernel = {file.name,
              file.arch,
              {kernel.totals.files + 1, kernel.totals.bytes + file.bytes},
              std::max(kernel.last_used, file.last_used)};
  }
  for (auto& [key, kernel] : kernels) info.kernels.push_back(std::move(kernel));
  std::stable_sort(info.kernels.begin(), info.kernels.end(),
                   [](const CachedKernel& a, const CachedKernel& b) { return a.totals.bytes > b.totals.bytes; });
  return info;
}

std::string describe(const CacheInfo& info) {
  std::string text =
      fmt::format("folder    {}\nlimit     {}{}\nholds     {}\n", root_text(info), core::bytes_text(info.limit),
                  info.limit_is_default ? " (the default)" : "", files_text(info.totals));
  if (info.kernels.empty()) return text;
  text += fmt::format("\n{:<28} {:<8} {:>6} {:>12}  {}\n", "kernel", "arch", "files", "size", "last used");
  for (const CachedKernel& kernel : info.kernels) {
    text += fmt::format("{:<28} {:<8} {:>6} {:>12}  {}\n", kernel.name, kernel.arch, kernel.totals.files,
                        core::bytes_text(kernel.totals.bytes), age_text(kernel.last_used));
  }
  return text;
}

std::string describe_limit(const CacheInfo& info) {
  return fmt::format(
      "{}{}\nATTEND_CACHE_LIMIT sets it: a number of bytes, 512MiB, 2GiB, unlimited, or 0 to keep nothing on disk.\n"
      "Beyond the limit the least recently used kernels are removed when a new one is stored.\n",
      core::bytes_text(info.limit), info.limit_is_default ? " (the default)" : " (ATTEND_CACHE_LIMIT)");
}

}  // namespace attend::cuda
