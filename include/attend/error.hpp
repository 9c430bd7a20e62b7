// The one exception type that the library throws.
#pragma once

#include <stdexcept>
#include <string>

#include "attend/export.hpp"

namespace attend {

/// Kind of error.
enum class ErrorCode {
  kInvalidArgument,  ///< a shape, stride, dtype or parameter that attention does not define
  kUnsupported,      ///< well defined, but not supported by the chosen backend
  kMissingHardware,  ///< the chosen backend needs a missing device or driver
  kIo,               ///< a file is missing, malformed, or cannot be written
  kInternal,         ///< a defect of the library
};

/// Thrown by every public function. `what()` is one line: the argument, the value found, the allowed values. If a check
/// of the arguments throws, no output has been written.
class ATTEND_API Error : public std::runtime_error {
 public:
  /// Makes an error of this kind; what() returns `message`.
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  ~Error() override;  // defined in the library: a single vtable lets exceptions be caught across shared objects
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }  ///< kind of error

 private:
  ErrorCode code_;
};

}  // namespace attend
