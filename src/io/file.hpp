// Files read whole, and sets of files written all or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace attend::io {

/// A regular file, open for reading. Every error is an Error (kIo) that names the path.
class InputFile {
 public:
  /// @throws Error where `path` is missing, not a regular file, or not readable.
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }  ///< bytes, when it was opened

  /// Fills `out` with the bytes from `offset` on. @throws Error where the file ends before.
  void read(std::int64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

/// Files that appear together: each is written under a temporary name beside its target, with its space set aside
/// first, and renamed by commit(). Without commit() the destructor removes every trace, and no existing file has
/// changed. A target that exists and is not a regular file (a pipe, /dev/stdout) is written in place at commit(). Every
/// error is an Error (kIo) that names the target. Not thread-safe.
class FileTransaction {
 public:
  using Handle = std::size_t;

  FileTransaction() = default;
  ~FileTransaction();
  FileTransaction(const FileTransaction&) = delete;
  FileTransaction& operator=(const FileTransaction&) = delete;

  /// Creates `folder` and its parents where missing; they go again unless committed.
  void make_folders(const std::filesystem::path& folder);

  /// Starts the file that will be `target`, and sets `bytes` aside for it: a full disk or an unwritable folder shows
  /// here, before any work is done.
  [[nodiscard]] Handle create(const std::filesystem::path& target, std::int64_t bytes = 0);

  void append(Handle handle, std::span<const std::byte> bytes);
  void append(Handle handle, std::string_view text);

  /// Closes and renames every file, in the order of create().
  void commit();

 private:
  struct File {
    std::filesystem::path target;
    std::filesystem::path temporary;  // empty: `buffer` goes to the target at commit
    int descriptor = -1;
    std::string buffer;
  };
  std::vector<File> files_;
  std::vector<std::filesystem::path> folders_;  // created here, outermost first
};

}  // namespace attend::io
