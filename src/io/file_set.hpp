// Replaces several files at one moment, for every reader, even if the process is killed.
//
// A rename replaces one file at a time. A set therefore has a folder, .attend-set-<id>, with a link `now` that selects
// the old or the new files:
//
//   before    O.bin                                   the old file                  dV.bin           the old file
//   1         O.bin  -> .attend-set-<id>/now/0        now -> old: the old file      dV.bin -> .../1  the old file
//   2         O.bin  -> .attend-set-<id>/now/0        now -> new: the new file      dV.bin -> .../1  the new file
//   after     O.bin                                   the new file                  dV.bin           the new file
//
// Steps 1 and 3 replace names one after another, but no such replacement changes the content behind a name. Step 2 is a
// single rename. A process killed at any time leaves names that lead either all to the old files or all to the new
// ones. The next set in the folder finishes the work: it rolls back if step 2 was not reached, and forward otherwise.
// This protects against killed processes; after a power failure the file system decides which changes have reached the
// disk.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <vector>

namespace attend::io {

/// Excludes other processes' sets from a folder. A reader that opens several files of a folder holds a shared lock. Has
/// no effect on file systems that cannot lock folders.
class FolderLock {
 public:
  enum class Kind { kShared, kExclusive };
  FolderLock(const std::filesystem::path& folder, Kind kind);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  FolderLock& operator=(FolderLock&&) = delete;

 private:
  int descriptor_;
};

/// Locks each folder of these files, in an order that is the same for every process.
[[nodiscard]] std::vector<FolderLock> lock_folders_of(const std::vector<std::filesystem::path>& files);

/// Finish the sets that killed processes have left in the folder, or the set that `target` points to. Wait for sets of
/// living processes.
void finish_left_sets(const std::filesystem::path& folder);
void finish_left_set_of(const std::filesystem::path& target);

/// A set under construction. The caller holds lock_folders_of(targets), puts the new content at fresh(i) for each
/// target i, and calls switch_over(). Without that, the destructor undoes everything.
class FileSet {
 public:
  /// @throws std::system_error if the file system does not support symbolic and hard links. In that case nothing has
  ///   changed.
  explicit FileSet(std::vector<std::filesystem::path> targets);
  ~FileSet();
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;

  /// Returns the path for the new content of target i: a hidden name in the target's folder, which does not exist yet.
  [[nodiscard]] std::filesystem::path fresh(std::size_t i) const;

  /// Switches all targets to the new content. @throws std::system_error before any change is visible to a reader.
  void switch_over();

 private:
  std::vector<std::filesystem::path> targets_;
  std::filesystem::path folder_;
};

}  // namespace attend::io
