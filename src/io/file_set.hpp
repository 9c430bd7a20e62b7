// New files that take the places of old ones all at one moment, for every reader, also where the process is killed.
//
// A rename replaces one file at a time. Here a folder of the set's own, .attend-set-<id>, holds one link, `now`, which
// says whether the old files or the new ones count:
//
//   before    O.bin                                   the old file                  dV.bin           the old file
//   1         O.bin  -> .attend-set-<id>/now/0        now -> old: the old file      dV.bin -> .../1  the old file
//   2         O.bin  -> .attend-set-<id>/now/0        now -> new: the new file      dV.bin -> .../1  the new file
//   after     O.bin                                   the new file                  dV.bin           the new file
//
// Steps 1 and 3 replace names one after another, but none of these replacements changes what a name leads to; step 2 is
// one rename. A process killed at any time leaves names that all lead to the old files or all to the new ones, and the
// next set in the folder finishes what it left: it rolls back before step 2, and forward after it. This is about
// processes: after a power failure the file system decides what has reached the disk.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <vector>

namespace attend::io {

/// Keeps other processes' sets out of a folder, and sets out while a reader opens several files of one. Without effect
/// on file systems that lock no folders.
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

/// The lock of each folder in which one of these files lies, in an order that is the same for every process.
[[nodiscard]] std::vector<FolderLock> lock_folders_of(const std::vector<std::filesystem::path>& files);

/// Finishes the sets that killed processes have left in the folder, and the one that `target` leads to, if it does.
/// Waits for those of living ones.
void finish_left_sets(const std::filesystem::path& folder);
void finish_left_set_of(const std::filesystem::path& target);

/// A set in the making. The caller holds lock_folders_of(targets), puts the new content at fresh(i) for each target i,
/// and calls switch_over(). Without that, the destructor takes everything back.
class FileSet {
 public:
  /// @throws std::system_error where the file system does not have what this takes: symbolic and hard links. Nothing
  /// has changed then.
  explicit FileSet(std::vector<std::filesystem::path> targets);
  ~FileSet();
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;

  /// Where the new content of target i belongs: a hidden name in the target's folder, which does not exist yet.
  [[nodiscard]] std::filesystem::path fresh(std::size_t i) const;

  /// @throws std::system_error before anything has changed for a reader.
  void switch_over();

 private:
  std::vector<std::filesystem::path> targets_;
  std::filesystem::path folder_;
};

}  // namespace attend::io
