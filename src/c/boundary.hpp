// Boundary of the C interface. It converts exceptions to status numbers and error texts. It also converts structs of
// any ABI version to the versions that this library uses. Every function of attend/attend.h is `return guarded(error,
// [&] { ... })` around the C++ function of the same name.
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

/// Writes a one-line message to the caller's `error`. A message that is too long is cut between two characters. `error`
/// may be null.
/// @return `code`
std::int32_t tell(attend_error* error, std::int32_t code, std::string_view message) noexcept;

/// Must be called in a catch block. Writes the current exception to the caller's `error`, and returns the status
/// number.
std::int32_t tell_exception(attend_error* error) noexcept;

/// Runs the body of a function and catches all exceptions. Returns the status number.
template <class Body>
std::int32_t guarded(attend_error* error, const Body& body) noexcept {
  try {
    body();
  } catch (...) {
    return tell_exception(error);
  }
  return tell(error, ATTEND_OK, "");
}

/// Returns a reference to the caller's output variable. Throws if `place` is null.
template <class T>
T& result(const char* name, T* place) {
  if (place == nullptr) refuse("{}: null, allowed an address to write to", name);
  return *place;
}

/// Writes a text that is terminated by 0, and its size in bytes. attend_plan_explain documents the arguments.
void give_text(std::string_view text, char* place, std::size_t place_bytes, std::size_t* needed_bytes);

/// Returns a flag of a struct as a bool. Throws if it is neither 0 nor 1.
bool flag(const char* name, std::int32_t value);

/// Throws if a field that is reserved for future options is not 0.
void check_reserved(const char* name, std::int32_t value);

/// Returns the enumerator with this value. The enumeration must have the values 0 to `last`. Throws for other values.
template <class Enum>
Enum enumerator(const char* name, std::int32_t value, Enum last) {
  const auto most = static_cast<std::int32_t>(last);
  if (value < 0 || value > most) refuse("{}: {}, allowed 0 to {}", name, value, most);
  return static_cast<Enum>(value);
}

// The functions below handle structs that begin with struct_size.

/// Size of a struct in the first version of the ABI. No caller may pass a smaller size. struct_sizes.hpp states the
/// numbers as literals, so they do not change when a struct grows.
template <class T>
inline constexpr std::size_t kFirstSize = 0;

/// Upper limit for the size of any struct of attend. A larger struct_size means that the struct is uninitialised.
inline constexpr std::size_t kLargestSize = 4096;

/// Throws unless the size is between that of the first version and kLargestSize.
void check_struct_size(const char* name, std::size_t size, std::size_t first);

/// Throws if a newer caller has set a nonzero byte after the first `known` bytes. This library's version of the struct
/// has only `known` bytes.
void check_unknown_bytes(const char* name, const void* given, std::size_t size, std::size_t known);

/// Returns the caller's struct as this library's version of the struct. Fields that an older caller does not have are
/// 0.
template <class T>
T read_struct(const char* name, const T* given) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, struct_size) == 0);
  static_assert(kFirstSize<T> != 0 && kFirstSize<T> <= sizeof(T) && sizeof(T) <= kLargestSize);
  if (given == nullptr) refuse("{}: null, allowed a struct", name);
  std::size_t size = 0;  // copied by memcpy, because the caller's struct may be smaller than T
  std::memcpy(&size, given, sizeof size);
  check_struct_size(name, size, kFirstSize<T>);
  check_unknown_bytes(name, given, size, sizeof(T));
  T known = {};
  std::memcpy(static_cast<void*>(&known), given, size < sizeof(T) ? size : sizeof(T));
  return known;
}

/// Fills in the caller's struct of `size` bytes. Fields that exist in both versions of the struct are copied from
/// `values`. Other fields become 0.
template <class T>
void fill_struct(T* given, std::size_t size, T values) noexcept {
  if (given == nullptr || size < sizeof(std::size_t)) return;
  values.struct_size = size;
  std::memset(static_cast<void*>(given), 0, size);
  std::memcpy(static_cast<void*>(given), &values, size < sizeof(T) ? size : sizeof(T));
}

}  // namespace attend::c
