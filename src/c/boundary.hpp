// The boundary of the C interface: exceptions become numbers and lines, structs of any version become this library's.
// Every function of attend/attend.h is `return guarded(error, [&] { ... })` of the C++ function of its name.
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

/// Puts a line into the caller's memory, cut between characters if it is too long. `error` may be null.
/// @return `code`
std::int32_t tell(attend_error* error, std::int32_t code, std::string_view message) noexcept;

/// For a catch block: the number of what was thrown, told to the caller.
std::int32_t tell_exception(attend_error* error) noexcept;

/// Runs what a function does. Whatever it throws ends here.
template <class Body>
std::int32_t guarded(attend_error* error, const Body& body) noexcept {
  try {
    body();
  } catch (...) {
    return tell_exception(error);
  }
  return tell(error, ATTEND_OK, "");
}

/// Where a function puts its result.
template <class T>
T& result(const char* name, T* place) {
  if (place == nullptr) refuse("{}: null, allowed an address to write to", name);
  return *place;
}

/// Gives a text that ends in 0, and the bytes that it takes, as attend_plan_explain describes it.
void give_text(std::string_view text, char* place, std::size_t place_bytes, std::size_t* needed_bytes);

/// A flag of a struct.
bool flag(const char* name, std::int32_t value);

/// Room for options that are still to come.
void check_reserved(const char* name, std::int32_t value);

/// A number of an enumeration whose enumerators are 0 to `last`.
template <class Enum>
Enum enumerator(const char* name, std::int32_t value, Enum last) {
  const auto most = static_cast<std::int32_t>(last);
  if (value < 0 || value > most) refuse("{}: {}, allowed 0 to {}", name, value, most);
  return static_cast<Enum>(value);
}

// Structs that begin with struct_size.

/// Its bytes in the first version of the ABI, below which no caller's can be: a literal in struct_sizes.hpp. A struct
/// that grows keeps it.
template <class T>
inline constexpr std::size_t kFirstSize = 0;

/// No struct of attend comes near it: what is larger is memory that nobody has set.
inline constexpr std::size_t kLargestSize = 4096;

/// A size between the first version's and kLargestSize.
void check_struct_size(const char* name, std::size_t size, std::size_t first);

/// Bytes that a newer caller has set and this library does not know.
void check_unknown_bytes(const char* name, const void* given, std::size_t size, std::size_t known);

/// The caller's struct as this library knows it. Fields that an older caller does not have are 0.
template <class T>
T read_struct(const char* name, const T* given) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, struct_size) == 0);
  static_assert(kFirstSize<T> != 0 && kFirstSize<T> <= sizeof(T) && sizeof(T) <= kLargestSize);
  if (given == nullptr) refuse("{}: null, allowed a struct", name);
  std::size_t size = 0;  // by memcpy: there may be less memory than a T
  std::memcpy(&size, given, sizeof size);
  check_struct_size(name, size, kFirstSize<T>);
  check_unknown_bytes(name, given, size, sizeof(T));
  T known = {};
  std::memcpy(static_cast<void*>(&known), given, size < sizeof(T) ? size : sizeof(T));
  return known;
}

/// Fills a struct of `size` bytes with what both sides know of `values`, and with 0.
template <class T>
void fill_struct(T* given, std::size_t size, T values) noexcept {
  if (given == nullptr || size < sizeof(std::size_t)) return;
  values.struct_size = size;
  std::memset(static_cast<void*>(given), 0, size);
  std::memcpy(static_cast<void*>(given), &values, size < sizeof(T) ? size : sizeof(T));
}

}  // namespace attend::c
