#include "io/file_set.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <utility>

namespace attend::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = ".attend-set-";

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

void check(int result) {
  if (result != 0) throw std::system_error(errno, std::generic_category());
}

std::optional<fs::path> link_text(const fs::path& link) {
  std::error_code error;
  fs::path text = fs::read_symlink(link, error);
  return error ? std::nullopt : std::optional(std::move(text));
}

/// The paths that a set uses for one of its targets. They depend only on the set's folder, on the target's path, and on
/// the target's number in the set.
struct Entry {
  fs::path target;
  // Hidden files next to the target: the new content, the old content, and the link that will replace the target.
  fs::path fresh, old, link;
  fs::path now;  // set/now/<number>; while the set is active, the target is a link to it

  Entry(const fs::path& set, std::size_t number, fs::path target_in)
      : target(std::move(target_in)), now(set / "now" / std::to_string(number)) {
    const auto hidden = [&](const char* kind) {
      return folder_of(target) / fmt::format("{}.{}.{}", set.filename().string(), number, kind);
    };
    fresh = hidden("new");
    old = hidden("old");
    link = hidden("link");
  }

  /// Returns whether the target is a link into this set. The name of the set is random, so the end of the link's text
  /// identifies it. The beginning of the text may be relative or absolute.
  [[nodiscard]] bool is_under_way() const {
    const auto text = link_text(target);
    if (!text) return false;
    const auto end_of = [](const fs::path& path) {
      const fs::path folder = folder_of(path);
      return folder_of(folder).filename() / folder.filename() / path.filename();
    };
    return end_of(*text) == end_of(now);
  }
};

/// Returns the text of a link to a file, for a link in the folders set/at, set/old or set/new. If the file is in the
/// same folder as the set, the text is a relative path, so that the folder can be moved.
fs::path text_inside(const fs::path& set, const fs::path& to) {
  return folder_of(to) == folder_of(set) ? fs::path("..") / ".." / to.filename() : fs::absolute(to);
}

/// Returns the text of the link that replaces the target while the set is active.
fs::path text_at_target(const fs::path& set, const Entry& entry) {
  const fs::path from_set = entry.now.lexically_relative(folder_of(set));
  return folder_of(entry.target) == folder_of(set) ? from_set : fs::absolute(entry.now);
}

void make_link(const fs::path& text, const fs::path& at) {
  check(::symlink(text.c_str(), at.c_str()));
}

std::vector<Entry> entries_of(const fs::path& set) {
  std::vector<Entry> entries;
  for (std::size_t i = 0;; ++i) {
    const auto text = link_text(set / "at" / std::to_string(i));
    if (!text) return entries;
    entries.emplace_back(set, i, text->is_absolute() ? *text : folder_of(set) / text->filename());
  }
}

/// Completes the set. If the set's link `now` selects the old files, restores the old content of every target. If it
/// selects the new files, puts the new files in place. Then removes all files of the set. Never throws. If a step
/// fails, a later call repeats it.
void finish(const fs::path& set) noexcept {
  try {
    const auto state = link_text(set / "now");
    for (const Entry& entry : state ? entries_of(set) : std::vector<Entry>()) {
      const bool is_new = *state == "new";
      if (entry.is_under_way()) {
        const fs::path& right = is_new ? entry.fresh : entry.old;
        struct stat status = {};
        const bool is_there = ::lstat(right.c_str(), &status) == 0;
        const bool was_new = !is_there && !is_new && entry.is_under_way();  // the target did not exist before the set
        if (is_there && ::rename(right.c_str(), entry.target.c_str()) != 0) return;
        if (was_new && ::unlink(entry.target.c_str()) != 0) return;
      }
      for (const fs::path* rest : {&entry.fresh, &entry.old, &entry.link}) ::unlink(rest->c_str());
    }
    std::error_code error;
    // Removed first; if the process is killed afterwards, only the folder remains to be removed.
    fs::remove(set / "now", error);
    fs::remove_all(set, error);
  } catch (const std::exception&) {  // for example, out of memory
  }
}

std::vector<fs::path> targets_of(const fs::path& set) {
  std::vector<fs::path> targets = {set};
  for (const Entry& entry : entries_of(set)) targets.push_back(entry.target);
  return targets;
}

void lock_and_finish(const fs::path& set) {
  const auto locks = lock_folders_of(targets_of(set));
  finish(set);
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder, Kind kind)
    : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  const int operation = kind == Kind::kShared ? LOCK_SH : LOCK_EX;
  while (descriptor_ >= 0 && ::flock(descriptor_, operation) != 0 && errno == EINTR) {
  }
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FolderLock::FolderLock(FolderLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

std::vector<FolderLock> lock_folders_of(const std::vector<fs::path>& files) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const fs::path& file : files) folders.push_back(fs::weakly_canonical(folder_of(file), error));
  std::sort(folders.begin(), folders.end());
  folders.erase(std::unique(folders.begin(), folders.end()), folders.end());
  std::vector<FolderLock> locks;
  for (const fs::path& folder : folders) locks.emplace_back(folder, FolderLock::Kind::kExclusive);
  return locks;
}

void finish_left_sets(const fs::path& folder) {
  std::vector<fs::path> sets;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const bool is_set = at->path().filename().string().starts_with(kPrefix) && at->is_directory(error);
    if (is_set) sets.push_back(folder / at->path().filename());
  }
  for (const fs::path& set : sets) lock_and_finish(set);
}

void finish_left_set_of(const fs::path& target) {
  const auto text = link_text(target);
  if (!text) return;
  const fs::path set = folder_of(folder_of(*text));  // the text has the form <set>/now/<number>
  if (!set.filename().string().starts_with(kPrefix)) return;
  lock_and_finish(text->is_absolute() ? set : folder_of(target) / set);
}

FileSet::FileSet(std::vector<fs::path> targets) : targets_(std::move(targets)) {
  std::random_device random;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const auto id = (static_cast<std::uint64_t>(random()) << 32) | random();
    const fs::path folder = folder_of(targets_.front()) / fmt::format("{}{:016x}", kPrefix, id);
    if (::mkdir(folder.c_str(), 0777) == 0) {
      folder_ = folder;
      break;
    }
    if (errno != EEXIST) check(-1);
  }
  try {
    for (const char* name : {"at", "old", "new"}) check(::mkdir((folder_ / name).c_str(), 0777));
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      const Entry entry(folder_, i, targets_[i]);
      const std::string number = std::to_string(i);
      make_link(text_inside(folder_, entry.target), folder_ / "at" / number);
      make_link(text_inside(folder_, entry.old), folder_ / "old" / number);
      make_link(text_inside(folder_, entry.fresh), folder_ / "new" / number);
    }
    make_link("old", folder_ / "now");  // if a later step fails, the changes must be undone
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      const Entry entry(folder_, i, targets_[i]);
      const int linked = ::linkat(AT_FDCWD, entry.target.c_str(), AT_FDCWD, entry.old.c_str(), 0);
      if (linked != 0 && errno != ENOENT) check(linked);  // ENOENT means that the target did not exist before
    }
  } catch (...) {
    finish(folder_);
    throw;
  }
}

FileSet::~FileSet() {
  finish(folder_);
}

fs::path FileSet::fresh(std::size_t i) const {
  return Entry(folder_, i, targets_[i]).fresh;
}

void FileSet::switch_over() {
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const Entry entry(folder_, i, targets_[i]);
    make_link(text_at_target(folder_, entry), entry.link);
    check(::rename(entry.link.c_str(), entry.target.c_str()));
  }
  make_link("new", folder_ / "next");
  check(::rename((folder_ / "next").c_str(), (folder_ / "now").c_str()));
}

}  // namespace attend::io
