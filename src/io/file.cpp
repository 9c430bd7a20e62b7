#include "io/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "attend/error.hpp"

namespace attend::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;  // bytes per call: Linux moves less than 2^31 at once

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

/// The file behind a chain of symbolic links, so that a link stays one; the path itself where it leads nowhere.
fs::path resolve_links(const fs::path& target) {
  std::error_code error;
  if (!fs::is_symlink(target, error)) return target;
  const fs::path resolved = fs::canonical(target, error);
  return error ? target : resolved;
}

}  // namespace

InputFile::InputFile(fs::path path) : path_(std::move(path)) {
  struct stat status = {};
  // The kind is looked at before opening: opening a pipe would wait for a writer.
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

FileTransaction::~FileTransaction() {
  for (File& file : files_) {
    if (file.descriptor >= 0) ::close(file.descriptor);
    if (!file.temporary.empty()) ::unlink(file.temporary.c_str());
  }
  // Innermost first; rmdir leaves a folder alone that someone else has put a file into.
  for (auto folder = folders_.rbegin(); folder != folders_.rend(); ++folder) ::rmdir(folder->c_str());
}

void FileTransaction::make_folders(const fs::path& folder) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path at = folder.lexically_normal(); !at.empty() && !fs::exists(at, error); at = at.parent_path()) {
    if (!at.has_filename()) continue;  // a trailing slash
    missing.push_back(at);
  }
  for (auto at = missing.rbegin(); at != missing.rend(); ++at) {
    if (::mkdir(at->c_str(), 0777) == 0) {
      folders_.push_back(*at);
    } else if (errno != EEXIST) {
      fail(*at, "cannot create the folder", errno);
    }
  }
  if (!fs::is_directory(folder, error))
    throw Error(ErrorCode::kIo, folder.string() + ": not a folder, allowed a folder");
}

FileTransaction::Handle FileTransaction::create(const fs::path& target, std::int64_t bytes) {
  File file;
  file.target = resolve_links(target);
  for (const File& other : files_) {
    if (other.target == file.target)
      throw Error(ErrorCode::kIo, target.string() + ": named for two outputs, allowed one");
  }
  std::error_code error;
  const fs::file_status status = fs::status(file.target, error);
  if (fs::is_directory(status)) throw Error(ErrorCode::kIo, target.string() + ": is a folder, allowed a file");
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    files_.push_back(std::move(file));
    return files_.size() - 1;
  }
  const fs::path file_folder = file.target.has_parent_path() ? file.target.parent_path() : fs::path(".");
  for (int attempt = 0; file.descriptor < 0; ++attempt) {
    const std::string name = fmt::format(".{}.{}.{}.tmp", file.target.filename().string(), ::getpid(), attempt);
    const fs::path temporary = file_folder / name;
    file.descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.descriptor < 0 && errno != EEXIST) fail(target, "cannot create", errno);
    if (file.descriptor >= 0) file.temporary = temporary;
  }
  files_.push_back(std::move(file));
  if (bytes > 0) {
    const int refused = ::posix_fallocate(files_.back().descriptor, 0, bytes);
    // A file system that cannot reserve says so, and the writes will tell.
    if (refused != 0 && refused != EOPNOTSUPP && refused != EINVAL && refused != ENOSYS) {
      const fs::space_info space = fs::space(file_folder, error);
      fail(target, fmt::format("cannot set {} bytes aside, {} are free", bytes, error ? 0 : space.available), refused);
    }
  }
  return files_.size() - 1;
}

void FileTransaction::append(Handle handle, std::span<const std::byte> bytes) {
  File& file = files_.at(handle);
  if (file.temporary.empty()) {
    file.buffer.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  } else {
    write_all(file.descriptor, file.target, bytes);
  }
}

void FileTransaction::append(Handle handle, std::string_view text) {
  append(handle, std::as_bytes(std::span(text)));
}

void FileTransaction::commit() {
  for (File& file : files_) {
    if (file.temporary.empty()) continue;
    const int descriptor = std::exchange(file.descriptor, -1);
    if (::close(descriptor) != 0)
      fail(file.target, "cannot write", errno);  // some file systems report a full disk here
  }
  for (File& file : files_) {
    if (file.temporary.empty()) {
      file.descriptor = ::open(file.target.c_str(), O_WRONLY | O_CLOEXEC);
      if (file.descriptor < 0) fail(file.target, "cannot write", errno);
      write_all(file.descriptor, file.target, std::as_bytes(std::span(file.buffer)));
    } else {
      if (::rename(file.temporary.c_str(), file.target.c_str()) != 0) fail(file.target, "cannot replace", errno);
      file.temporary.clear();
    }
    folders_.clear();  // from the first file on, the folders are to stay
  }
  for (const File& file : files_) {
    if (file.descriptor >= 0) ::close(file.descriptor);
  }
  files_.clear();
  folders_.clear();
}

}  // namespace attend::io
