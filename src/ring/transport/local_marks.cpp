#include "ring/transport/local_marks.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "attend/error.hpp"

namespace attend::ring {
namespace {

struct Published {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<LocalMarks>> marks;
};

Published& published() {
  static auto* instance = new Published;  // never freed, because rings may be destroyed while the process exits
  return *instance;
}

}  // namespace

void publish_marks(const std::string& name, const std::shared_ptr<LocalMarks>& marks) {
  Published& all = published();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.marks, [](const auto& entry) { return entry.second.expired(); });
  all.marks.emplace(name, marks);
}

std::shared_ptr<LocalMarks> marks_of(const std::string& name) {
  Published& all = published();
  const std::lock_guard lock(all.mutex);
  const auto found = all.marks.find(name);
  std::shared_ptr<LocalMarks> marks = found == all.marks.end() ? nullptr : found->second.lock();
  if (marks == nullptr) {
    throw Error(ErrorCode::kInternal, fmt::format("ring: the rank of {} has left this process", name));
  }
  return marks;
}

}  // namespace attend::ring
