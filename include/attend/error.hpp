// The only exception type that the library throws.
#pragma once

#include <stdexcept>
#include <string>

#include "attend/export.hpp"

namespace attend {

/// Category of an error.
enum class ErrorCode {
  kInvalidArgument,  ///< a shape, stride, dtype or parameter for which attention is not defined
  kUnsupported,      ///< a valid call that the chosen backend does not support
  kMissingHardware,  ///< the chosen backend needs a device or driver that is missing
  kIo,               ///< a file is missing, malformed, or cannot be written
  kInternal,         ///< a defect of the library
};

/// The exception that public functions throw. `what()` is one line with the argument, the value found and the allowed
/// values. If a check of the arguments throws, no output has been written.
class ATTEND_API Error : public std::runtime_error {
 public:
  /// Makes an error with this code and with `message` as what().
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  // The destructor is defined in the library. The class then has a single vtable, so that other shared objects can
  // catch the exception.
  ~Error() override;
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }  ///< category of the error

 private:
  ErrorCode code_;
};

}  // namespace attend
