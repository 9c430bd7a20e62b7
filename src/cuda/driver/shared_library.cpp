#include "cuda/driver/shared_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include "attend/error.hpp"

namespace attend::cuda {
namespace {

/// The loader's complaint about a file that is there but cannot be used says more than "not found".
bool file_exists(const std::string& candidate) {
  std::error_code error;
  return candidate.find('/') != std::string::npos && std::filesystem::exists(candidate, error);
}

std::string loaded_path(void* handle, const std::string& asked) {
  const link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0 || map == nullptr) return asked;
  return map->l_name;
}

}  // namespace

SharedLibrary::SharedLibrary(const std::string& what, const std::vector<std::string>& candidates,
                             const std::string& advice) {
  std::string complaint;
  for (const std::string& candidate : candidates) {
    handle_ = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      path_ = loaded_path(handle_, candidate);
      return;
    }
    const char* message = dlerror();
    if (complaint.empty() && message != nullptr && file_exists(candidate)) complaint = fmt::format(" ({})", message);
  }
  throw Error(ErrorCode::kMissingHardware,
              fmt::format("{}: not found{}; searched {}; {}", what, complaint, fmt::join(candidates, ", "), advice));
}

void* SharedLibrary::find(const char* name) const noexcept {
  return dlsym(handle_, name);
}

void* SharedLibrary::require(const char* name) const {
  void* address = find(name);
  if (address == nullptr) {
    throw Error(ErrorCode::kMissingHardware,
                fmt::format("{}: has no {}: it is too old, install a newer one", path_, name));
  }
  return address;
}

std::filesystem::path own_folder() {
  static const char kMark = 0;  // any address in this file
  Dl_info info = {};
  if (dladdr(&kMark, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const auto path = std::filesystem::canonical(info.dli_fname, error);
  return error ? std::filesystem::path() : path.parent_path();
}

}  // namespace attend::cuda
