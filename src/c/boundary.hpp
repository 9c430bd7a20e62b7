// Boundary of the C interface: turns exceptions into status numbers and text, and structs of any version into those of
// this library. Every function of attend/attend.h is `return guarded(error, [&] { ... })` around the C++ function of
// the same name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "attend/attend.h"
#include "core/problem_checks.hpp"

namespace attend::c {

using core::refuse;

/// Writes a line to the caller's memory, cut between characters if it is too long. `error` may be null.
/// @return `code`
std::int32_t tell(attend_error* error, std::int32_t code, std::string_view message) noexcept;

/// For a catch block: reports the current exception to the caller, and returns its status number.
std::int32_t tell_exception(attend_error* error) noexcept;

/// Runs the body of a function. No exception leaves it.
template <class Body>
std::int32_t guarded(attend_error* error, const Body& body) noexcept {
  try {
    body();
  } catch (...) {
    return tell_exception(error);
  }
  return tell(error, ATTEND_OK, "");
}

/// Returns the destination of a function's result.
template <class T>
T& result(const char* name, T* place) {
  if (place == nullptr) refuse("{}: null, allowed an address to write to", name);
  return *place;
}

/// Writes a text, terminated by 0, and its size in bytes, as attend_plan_explain documents.
void give_text(std::string_view text, char* place, std::size_t place_bytes, std::size_t* needed_bytes);

/// Returns a flag of a struct.
bool flag(const char* name, std::int32_t value);

/// Checks that a field reserved for future options is 0.
void check_reserved(const char* name, std::int32_t value);

/// Returns an enumerator of an enumeration with the values 0 to `last`.
template <class Enum>
Enum enumerator(const char* name, std::int32_t value, Enum last) {
  const auto most = static_cast<std::int32_t>(last);
  if (value < 0 || value > most) refuse("{}: {}, allowed 0 to {}", name, value, most);
  return static_cast<Enum>(value);
}

// Structs that begin with struct_size.

/// Size of a struct in the first version of the ABI, which is the minimum for any caller. The numbers are literals in
/// struct_sizes.hpp and stay the same when a struct grows.
template <class T>
inline constexpr std::size_t kFirstSize = 0;

/// Upper limit of all structs of attend. A larger struct_size means uninitialised memory.
inline constexpr std::size_t kLargestSize = 4096;

/// Checks that a size is between that of the first version and kLargestSize.
void check_struct_size(const char* name, std::size_t size, std::size_t first);

/// Checks the bytes that a newer caller has set and this library does not know.
void check_unknown_bytes(const char* name, const void* given, std::size_t size, std::size_t known);

/// Returns the caller's struct in this library's version. Fields that an older caller does not have are 0.
template <class T>
T read_struct(const char* name, const T* given) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, struct_size) == 0);
  static_assert(kFirstSize<T> != 0 && kFirstSize<T> <= sizeof(T) && sizeof(T) <= kLargestSize);
  if (given == nullptr) refuse("{}: null, allowed a struct", name);
  std::size_t size = 0;  // by memcpy, because the caller's struct may be smaller than T
  std::memcpy(&size, given, sizeof size);
  check_struct_size(name, size, kFirstSize<T>);
  check_unknown_bytes(name, given, size, sizeof(T));
  T known = {};
  std::memcpy(static_cast<void*>(&known), given, size < sizeof(T) ? size : sizeof(T));
  return known;
}

/// Fills a struct of `size` bytes with the fields of `values` that both sides have, and with 0.
template <class T>
void fill_struct(T* given, std::size_t size, T values) noexcept {
  if (given == nullptr || size < sizeof(std::size_t)) return;
  values.struct_size = size;
  std::memset(static_cast<void*>(given), 0, size);
  std::memcpy(static_cast<void*>(given), &values, size < sizeof(T) ? size : sizeof(T));
}

}  // namespace attend::c
