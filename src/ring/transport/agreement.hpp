// Before a call sends anything else, the ranks exchange descriptions of the call, and all detect the same error.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "attend/error.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// One property of a rank's call.
struct Field {
  std::string name;   ///< name of the argument; values of a name that starts with kOwn may differ between ranks
  std::string value;  ///< printed on one line
};

inline constexpr char kOwn = '#';

using Fields = std::vector<Field>;

/// Runs `check`, which throws if this rank refuses its arguments, and otherwise returns the fields that must be equal
/// on all ranks. No rank returns before all have called.
/// @returns the fields of every rank, in the order of ranks
/// @throws Error, the same on every rank: that of the first rank that refuses, otherwise (kInvalidArgument) the first
///   difference between a rank's fields and those of rank 0.
std::vector<Fields> agree(Transport& transport, const std::function<Fields()>& check);

/// Does the same for the first exchange of a call, which also carries the call's number. If the numbers differ, the
/// ranks are in different calls, and all ranks throw that error, whatever other errors there are.
std::vector<Fields> agree_on_next_call(Transport& transport, const std::function<Fields()>& check);

/// For a rank that refuses a call before it can describe the call. Takes the place of agree_on_next_call() and returns
/// when all ranks have called.
/// @throws Error as agree_on_next_call() does.
[[noreturn]] void refuse(Transport& transport, const Error& error);

/// Returns a rank's value of a field that all ranks have.
[[nodiscard]] const std::string& value_of(const Fields& fields, std::string_view name);

}  // namespace attend::ring
