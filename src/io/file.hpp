// Files read whole, and sets of files written all or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
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

/// Throws an Error (kIo) where fewer than `bytes` are free on the file system of `folder`, which need not exist yet.
void require_space(const std::filesystem::path& folder, std::uint64_t bytes);

/// Removes every trace of the unfinished transactions of this process, which has to end now: no transaction goes on
/// after this. For a thread that ends the process at a signal; not for signal handlers.
void abandon_unfinished_files() noexcept;

/// Files that appear together: each is written without a name, or where the file system knows no such files under a
/// temporary name beside its target, with its space set aside first. commit() puts all in their places at one moment
/// (file_set.hpp), also where the process is killed: every reader finds all of the old files or all of the new ones.
/// Without commit() the destructor removes every trace, and no existing file has changed.
///
/// A target that is a symbolic link stays one: the file that it leads to is replaced. A target that exists and is not a
/// regular file (a pipe, /dev/stdout) is written in place at commit(), before the others change. On file systems
/// without symbolic or hard links the files are renamed one after another. Every error is an Error (kIo) that names the
/// target. Not thread-safe.
class FileTransaction {
 public:
  using Handle = std::size_t;
  enum class Temporaries { kUnnamed, kNamed };  ///< what create() tries first

  explicit FileTransaction(Temporaries first = Temporaries::kUnnamed);
  ~FileTransaction();
  FileTransaction(const FileTransaction&) = delete;
  FileTransaction& operator=(const FileTransaction&) = delete;

  /// Creates `folder` and its parents where missing; they go again unless committed.
  void make_folders(const std::filesystem::path& folder);

  /// Makes create() refuse `file` as the place of an output: an input of the run, which has to stay.
  void keep_input(const std::filesystem::path& file);

  /// Makes create() refuse a link that leads to `file`; by its own name it may be an output.
  void keep_from_links(const std::filesystem::path& file);

  /// Starts the file that will be `target`, and sets `bytes` aside for it: a full disk or an unwritable folder shows
  /// here, before any work is done. Refuses a target that leads to another output or to a kept file.
  [[nodiscard]] Handle create(const std::filesystem::path& target, std::int64_t bytes = 0);

  void append(Handle handle, std::span<const std::byte> bytes);
  void append(Handle handle, std::string_view text);

  /// Puts every file in its place.
  void commit();

 private:
  struct File {
    std::filesystem::path target;
    std::filesystem::path temporary;  // empty: the file has no name yet, or is written in place
    int descriptor = -1;              // -1: written in place, from `buffer`
    std::string buffer;
    [[nodiscard]] bool in_place() const { return descriptor < 0 && temporary.empty(); }
  };
  friend void abandon_unfinished_files() noexcept;

  void open_unfinished(File& file, const std::filesystem::path& folder, const std::filesystem::path& target);
  void put_in_place(std::vector<File*>& files);
  void remove_traces() noexcept;

  Temporaries first_;
  std::vector<File> files_;
  std::vector<std::filesystem::path> folders_;  // created here, outermost first
  std::vector<std::filesystem::path> inputs_, kept_from_links_;
  std::vector<std::filesystem::path> looked_at_;  // folders without sets that killed processes left
};

}  // namespace attend::io
