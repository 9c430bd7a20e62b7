// Reads complete files, and writes sets of files atomically.
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
  /// @throws Error if `path` is missing, not a regular file, or not readable.
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }  ///< in bytes, when it was opened

  /// Fills `out` with the bytes from `offset` on. @throws Error if the file is shorter.
  void read(std::int64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

/// Throws an Error (kIo) if fewer than `bytes` are free on the file system of `folder`, which need not exist yet.
void require_space(const std::filesystem::path& folder, std::uint64_t bytes);

/// Removes every trace of the unfinished transactions of this process. The process must end afterwards, because no
/// transaction can continue. For a thread that ends the process at a signal; not for signal handlers.
void abandon_unfinished_files() noexcept;

/// Files that appear together. Each file is first written without a name, or, if the file system does not support that,
/// under a temporary name next to its target. Its space is reserved in advance. commit() puts all files in their places
/// at one moment (file_set.hpp), even if the process is killed: every reader finds either all of the old files or all
/// of the new ones. Without commit() the destructor removes every trace, and no existing file has changed.
///
/// If a target is a symbolic link, the file behind the link is replaced. If a target exists and is not a regular file
/// (a pipe, /dev/stdout), commit() writes it in place, before the others change. On file systems without symbolic or
/// hard links the files are renamed one after another. Every error is an Error (kIo) that names the target. Not
/// thread-safe.
class FileTransaction {
 public:
  using Handle = std::size_t;
  enum class Temporaries { kUnnamed, kNamed };  ///< the kind that create() tries first

  explicit FileTransaction(Temporaries first = Temporaries::kUnnamed);
  ~FileTransaction();
  FileTransaction(const FileTransaction&) = delete;
  FileTransaction& operator=(const FileTransaction&) = delete;

  /// Creates `folder` and its missing parents. They are removed again unless the transaction is committed.
  void make_folders(const std::filesystem::path& folder);

  /// Makes create() refuse `file` as an output, because it is an input of the run.
  void keep_input(const std::filesystem::path& file);

  /// Makes create() refuse a link to `file`. Under its own name the file may be an output.
  void keep_from_links(const std::filesystem::path& file);

  /// Starts the file that will become `target`, and reserves `bytes` for it. A full disk or an unwritable folder is
  /// therefore reported before any work is done. Refuses a target that is another output or a kept file.
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
  std::vector<std::filesystem::path> looked_at_;  // folders in which sets left by killed processes have been finished
};

}  // namespace attend::io
