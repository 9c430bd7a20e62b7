#include "c/boundary.hpp"

#include <algorithm>
#include <new>

#include "attend/error.hpp"

namespace attend::c {
namespace {

std::int32_t status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return ATTEND_INVALID_ARGUMENT;
    case ErrorCode::kUnsupported:
      return ATTEND_UNSUPPORTED;
    case ErrorCode::kMissingHardware:
      return ATTEND_MISSING_HARDWARE;
    case ErrorCode::kIo:
      return ATTEND_IO;
    case ErrorCode::kInternal:
      return ATTEND_INTERNAL;
  }
  return ATTEND_INTERNAL;
}

}  // namespace

std::int32_t tell(attend_error* error, std::int32_t code, std::string_view message) noexcept {
  if (error == nullptr) return code;
  std::size_t size = std::min(message.size(), sizeof error->message - 1);
  // Cuts the text before the first byte of a UTF-8 character. All other bytes of a character have the form 10xxxxxx.
  if (size < message.size()) {
    while (size > 0 && (static_cast<unsigned char>(message[size]) & 0xc0U) == 0x80U) --size;
  }
  std::memcpy(error->message, message.data(), size);
  error->message[size] = '\0';
  error->code = code;
  return code;
}

std::int32_t tell_exception(attend_error* error) noexcept {
  try {
    throw;
  } catch (const Error& thrown) {
    return tell(error, status_of(thrown.code()), thrown.what());
  } catch (const std::bad_alloc&) {
    return tell(error, ATTEND_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& thrown) {
    return tell(error, ATTEND_INTERNAL, thrown.what());
  } catch (...) {
    return tell(error, ATTEND_INTERNAL, "an exception of unknown type");
  }
}

void give_text(std::string_view text, char* place, std::size_t place_bytes, std::size_t* needed_bytes) {
  const std::size_t needed = text.size() + 1;
  if (place == nullptr && place_bytes != 0) refuse("text: null, allowed with text_bytes 0, not {}", place_bytes);
  if (needed_bytes != nullptr) *needed_bytes = needed;
  if (place == nullptr) return;
  if (place_bytes < needed) refuse("text_bytes: {}, allowed {} or more", place_bytes, needed);
  std::memcpy(place, text.data(), text.size());
  place[text.size()] = '\0';
}

bool flag(const char* name, std::int32_t value) {
  if (value != 0 && value != 1) refuse("{}: {}, allowed 0 or 1", name, value);
  return value == 1;
}

void check_reserved(const char* name, std::int32_t value) {
  if (value != 0) refuse("{}.reserved: {}, allowed 0", name, value);
}

void check_struct_size(const char* name, std::size_t size, std::size_t first) {
  if (size < first || size > kLargestSize) {
    refuse("{}.struct_size: {}, allowed {} to {}", name, size, first, kLargestSize);
  }
}

void check_unknown_bytes(const char* name, const void* given, std::size_t size, std::size_t known) {
  const auto* bytes = static_cast<const unsigned char*>(given);
  for (std::size_t n = known; n < size; ++n) {
    if (bytes[n] == 0) continue;
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}.struct_size: {} with byte {} not 0, allowed 0 beyond the {} bytes that attend {} defines", name,
                    size, n, known, ATTEND_VERSION_STRING));
  }
}

}  // namespace attend::c
