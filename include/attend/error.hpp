// The one exception type that the library throws.
#pragma once

#include <stdexcept>
#include <string>

#include "attend/export.hpp"

namespace attend {

/// What kind of error it is.
enum class ErrorCode {
  kInvalidArgument,  ///< a shape, stride, dtype or parameter that attention does not define
  kUnsupported,      ///< well defined, but the chosen backend does not do it
  kMissingHardware,  ///< the chosen backend needs a device or driver that is not here
  kIo,               ///< a file is missing, malformed, or cannot be written
  kInternal,         ///< a defect of the library
};

/// Thrown by every public function. `what()` is one line: the argument, the value found, the values allowed.
/// No output has been written when it is thrown by a check of the arguments.
class ATTEND_API Error : public std::runtime_error {
 public:
  /// An error of this kind, with the line that what() gives.
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  ~Error() override;  // in the library: one vtable, so that exceptions are caught across shared objects
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }  ///< what kind of error it is

 private:
  ErrorCode code_;
};

}  // namespace attend
