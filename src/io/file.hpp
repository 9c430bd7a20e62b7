// Reads files, and writes groups of files atomically.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attend::io {

/// A regular file that is open for reading. All errors are Error (kIo) and name the path.
class InputFile {
 public:
  /// @throws Error if `path` is missing, not a regular file, or not readable.
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }  ///< size in bytes when the file was opened

  /// Fills `out` with the bytes that start at `offset`. @throws Error if the file is too short.
  void read(std::int64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

/// Throws Error (kIo) if fewer than `bytes` bytes are free on the file system of `folder`. The folder need not exist.
void require_space(const std::filesystem::path& folder, std::uint64_t bytes);

/// Removes all files and folders of the unfinished transactions of this process. No transaction can continue
/// afterwards, so the process must end. A thread that ends the process after a signal may call this function, but a
/// signal handler must not.
void abandon_unfinished_files() noexcept;

/// A group of files that become visible together. Each file is first written without a name. If the file system does
/// not support files without names, the new file has a temporary name next to its target. Disk space for the file is
/// reserved in advance. commit() puts all files in their places at one moment (file_set.hpp), even if the process is
/// killed. A reader therefore finds either all of the old files or all of the new ones. Without commit() the destructor
/// removes all new files and folders, and no existing file has changed.
///
/// If a target is a symbolic link, the file that it leads to is replaced. If a target exists and is not a regular file
/// (for example a pipe or /dev/stdout), commit() writes the contents to the target, and then replaces the other files.
/// On file systems without symbolic or hard links the files are renamed one after another. All errors are Error (kIo)
/// and name the target. Not thread-safe.
class FileTransaction {
 public:
  using Handle = std::size_t;
  enum class Temporaries { kUnnamed, kNamed };  ///< type of temporary file that create() tries first

  explicit FileTransaction(Temporaries first = Temporaries::kUnnamed);
  ~FileTransaction();
  FileTransaction(const FileTransaction&) = delete;
  FileTransaction& operator=(const FileTransaction&) = delete;

  /// Creates `folder` and its missing parents. If the transaction is not committed, they are removed again.
  void make_folders(const std::filesystem::path& folder);

  /// Marks `file` as an input. create() then refuses it as an output.
  void keep_input(const std::filesystem::path& file);

  /// Makes create() refuse every link that leads to `file`. The path of `file` itself remains allowed.
  void keep_from_links(const std::filesystem::path& file);

  /// Opens a file that will replace `target`, and reserves `bytes` for it. The caller should create all files first, so
  /// that a full disk or an unwritable folder is reported before any work is done. Refuses a target that is another
  /// output of the transaction or an input.
  [[nodiscard]] Handle create(const std::filesystem::path& target, std::int64_t bytes = 0);

  void append(Handle handle, std::span<const std::byte> bytes);
  void append(Handle handle, std::string_view text);

  /// Puts every file in its place. Before this call, no existing file has changed.
  void commit();

 private:
  struct File {
    std::filesystem::path target;
    std::filesystem::path temporary;  // empty if the file has no name yet, or if commit() writes to the target itself
    int descriptor = -1;              // -1 if commit() writes `buffer` to the target itself
    std::string buffer;
    [[nodiscard]] bool in_place() const { return descriptor < 0 && temporary.empty(); }
  };
  friend void abandon_unfinished_files() noexcept;

  void open_unfinished(File& file, const std::filesystem::path& folder, const std::filesystem::path& target);
  void put_in_place(std::vector<File*>& files);
  void remove_traces() noexcept;

  Temporaries first_;
  std::vector<File> files_;
  std::vector<std::filesystem::path> folders_;  // created by this transaction, the outermost folder first
  std::vector<std::filesystem::path> inputs_, kept_from_links_;
  // Folders in which this transaction has already finished the sets of killed processes.
  std::vector<std::filesystem::path> looked_at_;
};

}  // namespace attend::io
