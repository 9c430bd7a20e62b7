// Replaces several files at one moment. Every reader finds either all old files or all new ones, even if the process is
// killed.
//
// A rename replaces only one file. A set of files therefore has a folder, .attend-set-<id>. A link `now` in it selects
// the old or the new files:
//
//   before    O.bin                                   the old file                  dV.bin           the old file
//   1         O.bin  -> .attend-set-<id>/now/0        now -> old: the old file      dV.bin -> .../1  the old file
//   2         O.bin  -> .attend-set-<id>/now/0        now -> new: the new file      dV.bin -> .../1  the new file
//   after     O.bin                                   the new file                  dV.bin           the new file
//
// Step 3 changes the names from the state in line 2 to the state in the last line. Steps 1 and 3 replace names one
// after another, but each name leads to the same content as before. Step 2 is a single rename. If a process is killed
// at any time, either all names lead to the old files, or all lead to the new ones. The next set in the folder
// completes the work. It restores the old files if step 2 was not reached, and otherwise puts the new files in place.
// The method protects only against killed processes. After a power failure, the file system determines which changes
// have reached the disk.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <vector>

namespace attend::io {

/// A lock that keeps sets of other processes out of a folder. A reader that opens several files of a folder holds a
/// shared lock. The lock has no effect on file systems that cannot lock folders.
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

/// Locks the folder of each of these files. The order is the same in every process, so that processes cannot deadlock.
[[nodiscard]] std::vector<FolderLock> lock_folders_of(const std::vector<std::filesystem::path>& files);

/// Both functions complete sets that killed processes have left. The first function completes all sets in a folder, and
/// the second completes the set to which `target` leads. If the process of a set is alive, the functions wait for that
/// process.
void finish_left_sets(const std::filesystem::path& folder);
void finish_left_set_of(const std::filesystem::path& target);

/// A set that is being prepared. The caller must hold lock_folders_of(targets). It puts the new content of each target
/// i at fresh(i) and then calls switch_over(). Without switch_over(), the destructor undoes all changes.
class FileSet {
 public:
  /// @throws std::system_error if the file system does not support symbolic and hard links. Nothing has changed then.
  explicit FileSet(std::vector<std::filesystem::path> targets);
  ~FileSet();
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;

  /// Returns the path at which the caller must put the new content of target i. It is a hidden name in the target's
  /// folder. No file with that name exists yet.
  [[nodiscard]] std::filesystem::path fresh(std::size_t i) const;

  /// Switches all targets to their new content. @throws std::system_error before a reader can see any change.
  void switch_over();

 private:
  std::vector<std::filesystem::path> targets_;
  std::filesystem::path folder_;
};

}  // namespace attend::io
