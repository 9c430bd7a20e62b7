#include "cuda/jit/disk_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <utility>

#include "cuda/jit/cache_folder.hpp"
#include "cuda/jit/hash.hpp"

namespace attend::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "ATTENDK\n";
constexpr std::uint32_t kFormat = 1;
constexpr std::size_t kKeyBytes = 32;
constexpr std::size_t kChecksumBytes = sizeof(Digest);
constexpr std::size_t kChecksumAt = 8 + 4 + 4 + 8 + 8 + 8 + kKeyBytes;
constexpr std::size_t kHeaderBytes = kChecksumAt + kChecksumBytes;
// This limit is far above the size of any entry. Without it, a corrupt length field could cause a huge allocation.
constexpr std::size_t kMaxEntryBytes = std::size_t{1} << 30;
// The access time of an entry is updated only if it is older than this number of seconds.
constexpr time_t kTouchAfter = 3600;

void put(std::string& out, std::uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(number >> (8 * i));
}

std::uint64_t get(std::string_view bytes, std::size_t at, int count) {
  std::uint64_t number = 0;
  for (int i = 0; i < count; ++i) {
    number |= std::uint64_t{static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)])} << (8 * i);
  }
  return number;
}

/// Returns the checksum of a file's contents. It covers all bytes except the checksum itself.
Digest checksum(std::string_view bytes) {
  Hasher hasher;
  hasher.add(bytes.substr(0, kChecksumAt));
  hasher.add(bytes.substr(kHeaderBytes));
  return hasher.digest();
}

/// A file descriptor. The destructor closes it.
struct Descriptor {
  int value;
  explicit Descriptor(int descriptor) : value(descriptor) {}
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

/// Updates the access time of a file. File systems mounted with noatime do not update it themselves, and the cache
/// needs it to find the least recently used files. The update fails if another user owns the file. Then only uses by
/// the owner are recorded.
void mark_used(int descriptor, const struct stat& status) {
  if (std::time(nullptr) - status.st_atim.tv_sec < kTouchAfter) return;
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_NOW}, {.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
  (void)::futimens(descriptor, times);
}

/// Returns the contents of an entry's file. If the file does not exist, returns nothing and leaves `why` empty.
std::optional<std::string> read_entry(const fs::path& path, std::string& why) {
  // O_NOFOLLOW refuses symbolic links, which could point to any file. O_NONBLOCK prevents waiting if the file is a
  // pipe.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status = {};
  if (file.value < 0 || ::fstat(file.value, &status) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) why = std::strerror(errno);
    return std::nullopt;
  }
  if (!S_ISREG(status.st_mode)) why = "not a regular file";
  // Another user could have written any contents with a valid checksum.
  if (why.empty() && status.st_uid != ::geteuid() && status.st_uid != 0) why = "it belongs to another user";
  if (why.empty() && static_cast<std::size_t>(status.st_size) > kMaxEntryBytes) why = "too long";
  if (!why.empty()) return std::nullopt;
  mark_used(file.value, status);
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(file.value, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

bool write_synced(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return ::fsync(descriptor) == 0;
}

/// Writes the file so that readers see either the complete file or none. Returns 0, or errno if writing fails.
int publish(const fs::path& target, std::string_view bytes) {
  static std::atomic<unsigned> counter = 0;
  std::error_code error;
  fs::create_directories(target.parent_path(), error);
  if (error) return error.value();
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  const fs::path temporary =
      target.parent_path() / fmt::format("{}{}-{}-{:x}", kTemporaryPrefix, ::getpid(), counter++, now);
  constexpr mode_t kMode = 0644;
  const Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kMode));
  if (file.value < 0) return errno;
  int failure = write_synced(file.value, bytes) ? 0 : errno;
  if (failure == 0 && ::rename(temporary.c_str(), target.c_str()) != 0) failure = errno;
  // If the path of the entry is an empty folder, removes the folder. A folder with files in it is left alone.
  if (failure == EISDIR && ::rmdir(target.c_str()) == 0) {
    failure = ::rename(temporary.c_str(), target.c_str()) == 0 ? 0 : errno;
  }
  if (failure != 0) ::unlink(temporary.c_str());
  return failure;
}

}  // namespace

std::string encode_entry(const std::string& key, const CacheEntry& entry) {
  std::string out(kMagic);
  put(out, kFormat, 4);
  put(out, 0, 4);
  put(out, entry.log.size(), 8);
  put(out, entry.cubin.size(), 8);
  put(out, std::bit_cast<std::uint64_t>(entry.seconds), 8);
  out += key;
  out.append(kChecksumBytes, '\0');
  out += entry.log;
  out.append(reinterpret_cast<const char*>(entry.cubin.data()), entry.cubin.size());
  const Digest sum = checksum(out);
  std::memcpy(out.data() + kChecksumAt, sum.data(), sum.size());
  return out;
}

std::optional<CacheEntry> decode_entry(std::string_view bytes, const std::string& key, std::string& why) {
  const auto refuse = [&why](const char* reason) {
    why = reason;
    return std::nullopt;
  };
  if (bytes.size() < kHeaderBytes) return refuse("shorter than its header");
  if (!bytes.starts_with(kMagic)) return refuse("not a cache entry");
  if (get(bytes, 8, 4) != kFormat) return refuse("another format");
  const std::uint64_t log_bytes = get(bytes, 16, 8);
  const std::uint64_t cubin_bytes = get(bytes, 24, 8);
  const std::uint64_t rest = bytes.size() - kHeaderBytes;
  if (log_bytes > rest || cubin_bytes != rest - log_bytes) return refuse("wrong length");
  const Digest sum = checksum(bytes);
  if (std::memcmp(bytes.data() + kChecksumAt, sum.data(), sum.size()) != 0) return refuse("wrong checksum");
  if (bytes.substr(kChecksumAt - kKeyBytes, kKeyBytes) != key) return refuse("the entry of another kernel");
  if (cubin_bytes == 0) return refuse("empty");
  CacheEntry entry;
  entry.seconds = std::bit_cast<double>(get(bytes, 32, 8));
  entry.log = bytes.substr(kHeaderBytes, log_bytes);
  const auto cubin = std::as_bytes(std::span(bytes.substr(kHeaderBytes + log_bytes)));
  entry.cubin.assign(cubin.begin(), cubin.end());
  return entry;
}

DiskCache::DiskCache(const fs::path& root, std::string_view version, std::uint64_t limit, Warn warn)
    : root_(root),
      folder_(root.empty() || limit == 0 ? fs::path() : root / version),
      limit_(limit),
      warn_(std::move(warn)) {}

std::optional<CacheEntry> DiskCache::load(const std::string& file_name, const std::string& key) {
  if (folder_.empty()) return std::nullopt;
  const fs::path path = folder_ / file_name;
  std::string why;
  std::optional<CacheEntry> entry;
  if (const auto bytes = read_entry(path, why)) entry = decode_entry(*bytes, key, why);
  if (!why.empty()) warn_(fmt::format("{}: damaged cache entry ({}): compiling again", path.string(), why));
  return entry;
}

void DiskCache::store(const std::string& file_name, const std::string& key, const CacheEntry& entry) {
  if (folder_.empty()) return;
  const std::string bytes = encode_entry(key, entry);
  if (bytes.size() > limit_) return;
  const int failure = publish(folder_ / file_name, bytes);
  if (failure == 0) {
    remove_stale_temporaries(folder_);
    (void)keep_within(root_, limit_);
  } else {
    warn_(fmt::format("{}: cannot write ({}): compiled kernels stay in memory only", folder_.string(),
                      std::strerror(failure)));
  }
}

void DiskCache::leave_text(const std::string& file_name, const std::string& text) {
  if (folder_.empty() || text.size() > limit_) return;
  if (publish(folder_ / file_name, text) == 0) (void)keep_within(root_, limit_);
}

}  // namespace attend::cuda
