#include "cuda/driver/driver.hpp"

#include <fmt/format.h>

#include "attend/error.hpp"
#include "core/environment.hpp"
#include "cuda/driver/shared_library.hpp"

namespace attend::cuda {
namespace {

constexpr DriverResult kNoDevice = 100;

/// The driver that fail_call() uses to look up error names. It is set before any other driver call.
const Driver* loaded_driver = nullptr;

Driver load_driver() {
  const char* named = core::environment("ATTEND_LIBCUDA_PATH");
  const std::string file = named != nullptr ? named : "libcuda.so.1";
  const SharedLibrary library("libcuda (NVIDIA's driver)", {file},
                              "install the NVIDIA driver, or use a CPU backend (--compute cpu)");
  Driver d;
  d.path = library.path();
// NOLINTBEGIN(bugprone-macro-parentheses): the arguments are a member and a parameter list.
#define ATTEND_LOAD(member, symbol, parameters) \
  d.member = reinterpret_cast<DriverResult(*) parameters>(library.require(#symbol));
  ATTEND_DRIVER_FUNCTIONS(ATTEND_LOAD)
#undef ATTEND_LOAD
  // NOLINTEND(bugprone-macro-parentheses)
  d.tensor_map_encode_tiled =
      reinterpret_cast<decltype(d.tensor_map_encode_tiled)>(library.find("cuTensorMapEncodeTiled"));
  return d;
}

Driver start_driver() {
  static Driver first_load = load_driver();
  loaded_driver = &first_load;
  check_call(first_load.init(0), "cuInit", "starting the driver " + first_load.path);
  check_call(first_load.driver_version(&first_load.version), "cuDriverGetVersion", "starting the driver");
  return first_load;
}

}  // namespace

const Driver& driver() {
  static const Driver kDriver = start_driver();  // if start_driver() throws, the next call tries again
  return kDriver;
}

void fail_call(DriverResult result, const char* call, std::string_view doing) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (loaded_driver != nullptr) {
    loaded_driver->get_error_name(result, &name);
    loaded_driver->get_error_string(result, &text);
  }
  throw Error(result == kNoDevice ? ErrorCode::kMissingHardware : ErrorCode::kInternal,
              fmt::format("{}: {} ({}) while {}", call, name == nullptr ? fmt::format("error {}", result) : name,
                          text == nullptr ? "unknown to this driver" : text, doing));
}

}  // namespace attend::cuda
