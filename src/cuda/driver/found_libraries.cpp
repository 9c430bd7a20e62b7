#include "cuda/driver/found_libraries.hpp"

#include <fmt/format.h>

#include "attend/error.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/nvrtc.hpp"

namespace attend::cuda {

FoundLibrary found_libcuda() {
  try {
    const Driver& found = driver();
    return {found.path, fmt::format("{}.{}", found.version / 1000, found.version % 1000 / 10), ""};
  } catch (const Error& error) {
    return {"", "", error.what()};
  }
}

FoundLibrary found_nvrtc() {
  try {
    const Nvrtc& found = Nvrtc::instance();
    return {found.path(), fmt::format("{}.{}", found.version_major(), found.version_minor()), ""};
  } catch (const Error& error) {
    return {"", "", error.what()};
  }
}

}  // namespace attend::cuda
