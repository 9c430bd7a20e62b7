#include "ort/status.hpp"

#include <exception>
#include <new>

#include "attend/error.hpp"

namespace attend::ort {

Status* status_of_exception(Table table) noexcept {
  const auto tell = [table](ErrorCode code, const char* line) { return CreateStatus::of(table)(code, line); };
  try {
    throw;
  } catch (const Failure& failure) {
    return failure.status;
  } catch (const Error& error) {
    switch (error.code()) {
      case attend::ErrorCode::kInvalidArgument:
        return tell(ErrorCode::kInvalidArgument, error.what());
      case attend::ErrorCode::kUnsupported:
      case attend::ErrorCode::kMissingHardware:
        return tell(ErrorCode::kNotImplemented, error.what());
      default:
        return tell(ErrorCode::kFail, error.what());
    }
  } catch (const std::bad_alloc&) {
    return tell(ErrorCode::kFail, "out of memory");
  } catch (const std::exception& error) {
    return tell(ErrorCode::kFail, error.what());
  } catch (...) {
    return tell(ErrorCode::kFail, "an exception of unknown type");
  }
}

}  // namespace attend::ort
