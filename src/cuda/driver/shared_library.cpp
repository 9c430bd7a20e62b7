#include "cuda/driver/shared_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <utility>

#include "attend/error.hpp"
#include "core/environment.hpp"

namespace attend::cuda {
namespace {

namespace fs = std::filesystem;

/// Collects the paths where a toolkit library may be.
class Candidates {
 public:
  explicit Candidates(const ToolkitLibrary& library) : library_(library) {}

  void add_folder(const fs::path& folder) {
    for (const char* name : library_.names) add((folder / name).lexically_normal().string());
  }
  /// Adds the folders of the pip packages in `site_packages`.
  void add_packages(const fs::path& site_packages) {
    add_folder(site_packages / "nvidia" / "cu13" / "lib");
    add_folder(site_packages / "nvidia" / library_.package / "lib");
  }
  /// Adds the folders of the pip packages in the Python environment with the root `prefix` (sys.prefix). They are in
  /// lib/python3.*/site-packages.
  void add_environment(const fs::path& prefix) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(prefix / "lib", error)) {
      if (entry.path().filename().string().starts_with("python")) add_packages(entry.path() / "site-packages");
    }
  }

  std::vector<std::string> found;

 private:
  /// Adds a path unless it is already there. For example, $CUDA_HOME may be /usr/local/cuda, or this library may be in
  /// $VIRTUAL_ENV.
  void add(std::string path) {
    if (std::find(found.begin(), found.end(), path) == found.end()) found.push_back(std::move(path));
  }

  const ToolkitLibrary& library_;
};

/// Returns whether the candidate is a path to an existing file. If so, the error message quotes the loader's reason
/// instead of "not found".
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

std::vector<std::string> toolkit_candidates(const ToolkitLibrary& library) {
  Candidates candidates(library);
  if (const char* path = core::environment(library.variable)) {
    std::error_code error;
    if (!fs::is_directory(path, error)) return {path};
    candidates.add_folder(path);
    candidates.add_packages(path);
    candidates.add_environment(path);
    return candidates.found;
  }
  candidates.found.assign(library.names.begin(), library.names.end());
  if (const char* home = core::environment("CUDA_HOME")) candidates.add_folder(fs::path(home) / "lib64");
  candidates.add_folder("/usr/local/cuda/lib64");
  const fs::path own = own_folder();
  if (!own.empty()) candidates.add_packages(own.parent_path());  // own_folder() is site-packages/attend in a wheel
  if (const char* environment = core::environment("VIRTUAL_ENV")) candidates.add_environment(environment);
  return candidates.found;
}

std::filesystem::path own_folder() {
  static const char kMark = 0;  // any address in this library will do
  Dl_info info = {};
  if (dladdr(&kMark, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const auto path = std::filesystem::canonical(info.dli_fname, error);
  return error ? std::filesystem::path() : path.parent_path();
}

}  // namespace attend::cuda
