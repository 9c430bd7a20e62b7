#include "io/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "attend/error.hpp"
#include "io/file_set.hpp"

namespace attend::io {
namespace {

namespace fs = std::filesystem;

// Limit in bytes of one call, because Linux transfers less than 2^31 bytes at once.
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;

[[noreturn]] void fail(const fs::path& path, std::string_view what, int error) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}: {}", path.string(), what, std::strerror(error)));
}

void write_all(int descriptor, const fs::path& target, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), std::min(bytes.size(), kMaxTransfer));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(target, "cannot write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

/// Returns the file to which a chain of symbolic links leads, so that writing keeps the link. Returns the path itself
/// if the link is broken.
fs::path resolve_links(const fs::path& target) {
  std::error_code error;
  if (!fs::is_symlink(target, error)) return target;
  const fs::path resolved = fs::canonical(target, error);
  return error ? target : resolved;
}

/// Returns a canonical path, in which the links in the path of the folder are resolved.
fs::path place_of(const fs::path& file) {
  std::error_code error;
  const fs::path place = fs::weakly_canonical(file, error);
  return error ? file : place;
}

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

/// Returns the number of bytes that this process may still write to the file system of a folder. Returns nothing if the
/// file system does not report it.
std::optional<std::int64_t> free_bytes(const fs::path& folder) {
  struct statvfs status = {};
  if (::statvfs(folder.c_str(), &status) != 0 || status.f_blocks == 0) return std::nullopt;
  // Some blocks are reserved for root. f_bfree includes them, f_bavail does not.
  const auto blocks = ::geteuid() == 0 ? status.f_bfree : status.f_bavail;
  std::int64_t bytes = 0;
  const bool is_huge = __builtin_mul_overflow(blocks, status.f_frsize, &bytes);
  return is_huge ? std::nullopt : std::optional(bytes);
}

/// Returns whether an unnamed file can be given a name. This requires /proc.
bool can_name_files() {
  static const bool has_proc = ::access("/proc/self/fd", X_OK) == 0;
  return has_proc;
}

/// Gives a name to the unnamed file that the descriptor refers to.
int name_file(int descriptor, const fs::path& name) {
  const std::string file = fmt::format("/proc/self/fd/{}", descriptor);
  return ::linkat(AT_FDCWD, file.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW);
}

fs::path temporary_name(const fs::path& target, int attempt) {
  return folder_of(target) / fmt::format(".{}.{}.{}.tmp", target.filename().string(), ::getpid(), attempt);
}

bool contains(const std::vector<fs::path>& paths, const fs::path& path) {
  return std::find(paths.begin(), paths.end(), path) != paths.end();
}

struct Descriptor {
  explicit Descriptor(int descriptor) : number(descriptor) {}
  ~Descriptor() { ::close(number); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number;
};

bool means_not_supported(const std::error_code& code) {
  const auto found = {EPERM, EOPNOTSUPP, ENOSYS, EINVAL, EMLINK, EACCES};
  return std::find(found.begin(), found.end(), code.value()) != found.end();
}

/// All existing transactions, which abandon_unfinished_files() needs. A transaction holds the mutex while it changes
/// names. The object is never destroyed, because the thread that handles signals may still use it while the process
/// exits.
struct Unfinished {
  std::mutex mutex;
  std::set<FileTransaction*> transactions;
};

Unfinished& unfinished() {
  static auto* all = new Unfinished;
  return *all;
}

}  // namespace

InputFile::InputFile(fs::path path) : path_(std::move(path)) {
  struct stat status = {};
  // Checks the type before it opens the file, because opening a pipe would wait for a writer.
  if (::stat(path_.c_str(), &status) != 0) fail(path_, "cannot read", errno);
  if (!S_ISREG(status.st_mode))
    throw Error(ErrorCode::kIo, path_.string() + ": not a regular file, allowed regular files");
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail(path_, "cannot read", errno);
  if (::fstat(descriptor_, &status) != 0) fail(path_, "cannot read", errno);
  size_ = status.st_size;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void InputFile::read(std::int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), std::min(out.size(), kMaxTransfer), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, "cannot read", errno);
    if (got == 0) throw Error(ErrorCode::kIo, fmt::format("{}: ends {} bytes early", path_.string(), out.size()));
    out = out.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
}

void require_space(const fs::path& folder, std::uint64_t bytes) {
  std::error_code error;
  fs::path there = fs::absolute(folder, error).lexically_normal();
  while (!fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  const auto available = free_bytes(there);
  if (!available || bytes <= static_cast<std::uint64_t>(*available)) return;
  throw Error(ErrorCode::kIo,
              fmt::format("{}: needs {} bytes, allowed {}, which are free there", folder.string(), bytes, *available));
}

void abandon_unfinished_files() noexcept {
  Unfinished& all = unfinished();
  all.mutex.lock();  // The mutex is never unlocked, because afterwards no transaction may name or rename a file.
  for (FileTransaction* transaction : all.transactions) transaction->remove_traces();
}

FileTransaction::FileTransaction(Temporaries first) : first_(first) {
  const std::lock_guard lock(unfinished().mutex);
  unfinished().transactions.insert(this);
}

FileTransaction::~FileTransaction() {
  const std::lock_guard lock(unfinished().mutex);
  unfinished().transactions.erase(this);
  for (const File& file : files_) {
    if (file.descriptor >= 0) ::close(file.descriptor);
  }
  remove_traces();
}

void FileTransaction::remove_traces() noexcept {
  for (const File& file : files_) {
    if (!file.temporary.empty()) ::unlink(file.temporary.c_str());
  }
  // Removes the innermost folder first. rmdir fails, and the folder stays, if another process has put a file into it.
  for (auto folder = folders_.rbegin(); folder != folders_.rend(); ++folder) ::rmdir(folder->c_str());
}

void FileTransaction::make_folders(const fs::path& folder) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path at = folder.lexically_normal(); !at.empty() && !fs::exists(at, error); at = at.parent_path()) {
    if (!at.has_filename()) continue;  // the path ends in a slash
    missing.push_back(at);
  }
  for (auto at = missing.rbegin(); at != missing.rend(); ++at) {
    const std::lock_guard lock(unfinished().mutex);
    if (::mkdir(at->c_str(), 0777) == 0) {
      folders_.push_back(*at);
    } else if (errno != EEXIST) {
      fail(*at, "cannot create the folder", errno);
    }
  }
  if (!fs::is_directory(folder, error))
    throw Error(ErrorCode::kIo, folder.string() + ": not a folder, allowed a folder");
}

void FileTransaction::keep_input(const fs::path& file) {
  inputs_.push_back(place_of(file));
}

void FileTransaction::keep_from_links(const fs::path& file) {
  kept_from_links_.push_back(place_of(folder_of(file)) / file.filename());
}

FileTransaction::Handle FileTransaction::create(const fs::path& target, std::int64_t bytes) {
  if (const fs::path folder = folder_of(target); !contains(looked_at_, folder)) {
    finish_left_sets(folder);
    looked_at_.push_back(folder);
  }
  finish_left_set_of(target);
  File file;
  file.target = resolve_links(target);
  const bool is_link = file.target != target;
  const std::string name = target.string() + (is_link ? ": a link to " + file.target.string() : "");
  const fs::path place = place_of(file.target);
  for (const File& other : files_) {
    if (place_of(other.target) == place) throw Error(ErrorCode::kIo, name + ": named for two outputs, allowed one");
  }
  if (contains(inputs_, place)) {
    throw Error(ErrorCode::kIo, name + ": an input of this run, allowed a separate file");
  }
  if (is_link && contains(kept_from_links_, place)) {
    throw Error(ErrorCode::kIo, name + ": another tensor of this folder, allowed a separate file");
  }
  std::error_code error;
  const fs::file_status status = fs::status(file.target, error);
  if (fs::is_directory(status)) throw Error(ErrorCode::kIo, target.string() + ": is a folder, allowed a file");
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    files_.push_back(std::move(file));
    return files_.size() - 1;
  }
  const fs::path folder = folder_of(file.target);
  const auto available = free_bytes(folder);
  if (available && bytes > *available) {
    throw Error(ErrorCode::kIo, fmt::format("{}: needs {} bytes, allowed {}, which are free there", target.string(),
                                            bytes, *available));
  }
  open_unfinished(file, folder, target);
  if (bytes > 0) {
    const int refused = ::posix_fallocate(files_.back().descriptor, 0, bytes);
    // If the file system cannot reserve space, a full disk is not reported here, but by later writes.
    if (refused != 0 && refused != EOPNOTSUPP && refused != EINVAL && refused != ENOSYS) {
      fail(target, fmt::format("cannot reserve {} bytes", bytes), refused);
    }
  }
  return files_.size() - 1;
}

/// Opens a file in `folder` that will replace `target`, and adds it to files_.
void FileTransaction::open_unfinished(File& file, const fs::path& folder, const fs::path& target) {
  const std::lock_guard lock(unfinished().mutex);
  if (first_ == Temporaries::kUnnamed && can_name_files()) {
    file.descriptor = ::open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  }
  for (int attempt = 0; file.descriptor < 0; ++attempt) {
    const fs::path temporary = temporary_name(folder / file.target.filename(), attempt);
    file.descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.descriptor < 0 && errno != EEXIST) fail(target, "cannot create", errno);
    if (file.descriptor >= 0) file.temporary = temporary;
  }
  files_.push_back(std::move(file));
}

void FileTransaction::append(Handle handle, std::span<const std::byte> bytes) {
  File& file = files_.at(handle);
  if (file.in_place()) {
    file.buffer.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  } else {
    write_all(file.descriptor, file.target, bytes);
  }
}

void FileTransaction::append(Handle handle, std::string_view text) {
  append(handle, std::as_bytes(std::span(text)));
}

void FileTransaction::commit() {
  std::vector<File*> replacing;
  for (File& file : files_) {
    if (!file.in_place()) {
      replacing.push_back(&file);
      continue;
    }
    const int descriptor = ::open(file.target.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) fail(file.target, "cannot write", errno);
    const Descriptor closed_at_the_end(descriptor);
    write_all(descriptor, file.target, std::as_bytes(std::span(file.buffer)));
  }
  for (File* file : replacing) {
    if (file->temporary.empty()) continue;
    // Some file systems do not report a full disk before close().
    if (::close(std::exchange(file->descriptor, -1)) != 0) fail(file->target, "cannot write", errno);
  }
  if (!replacing.empty()) put_in_place(replacing);
  for (const File& file : files_) {
    if (file.descriptor >= 0) ::close(file.descriptor);
  }
  files_.clear();
  folders_.clear();
}

void FileTransaction::put_in_place(std::vector<File*>& files) {
  std::vector<fs::path> targets;
  for (const File* file : files) targets.push_back(file->target);
  const auto locks = lock_folders_of(targets);
  const std::lock_guard lock(unfinished().mutex);
  // Returns false if a file with that name exists.
  const auto move_to = [](File& file, const fs::path& name) {
    const bool is_named = !file.temporary.empty();
    const int failed = is_named ? ::rename(file.temporary.c_str(), name.c_str()) : name_file(file.descriptor, name);
    if (failed != 0 && errno == EEXIST) return false;
    if (failed != 0) fail(file.target, "cannot replace", errno);
    file.temporary = name;
    return true;
  };
  std::optional<FileSet> set;
  try {
    if (files.size() > 1) set.emplace(targets);
  } catch (const std::system_error& error) {
    if (!means_not_supported(error.code())) fail(targets.front(), "cannot replace", error.code().value());
  }
  if (!set) {
    for (File* file : files) {
      // linkat() cannot replace an existing file, so the new file first gets an unused name.
      for (int attempt = 0; file->temporary.empty(); ++attempt)
        (void)move_to(*file, temporary_name(file->target, attempt));
      (void)move_to(*file, file->target);
      file->temporary.clear();
      folders_.clear();  // once a file is in place, its folders must be kept
    }
    return;
  }
  for (std::size_t i = 0; i < files.size(); ++i) (void)move_to(*files[i], set->fresh(i));
  try {
    set->switch_over();
  } catch (const std::system_error& error) {
    fail(targets.front(), "cannot replace", error.code().value());
  }
  // From here on, these files belong to the set, whose destructor puts them in place.
  for (File* file : files) file->temporary.clear();
  folders_.clear();
}

}  // namespace attend::io
