// Before a call sends any other message, the ranks exchange descriptions of the call. Thus all ranks detect the same
// error.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "attend/error.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// One property of a rank's call, such as a dtype or a number of heads.
struct Field {
  std::string name;   ///< name of the argument; if it starts with kOwn, the values may differ between ranks
  std::string value;  ///< the value as text on one line
};

inline constexpr char kOwn = '#';

using Fields = std::vector<Field>;

/// Runs `check`, which throws if this rank refuses its arguments. Otherwise `check` returns the rank's fields, and
/// those without kOwn must be equal on all ranks. agree() returns only after all ranks have called it.
/// @returns the fields of every rank, in the order of ranks
/// @throws Error, the same on every rank. If ranks refuse their arguments, it is the error of the first of these ranks.
///   If the fields of a rank differ from those of rank 0, it is kInvalidArgument naming the first difference.
std::vector<Fields> agree(Transport& transport, const std::function<Fields()>& check);

/// Calls agree() for the first exchange of a call, with the number of the call as an additional field. If the numbers
/// differ, the ranks are in different calls. All ranks then throw that error, even if there are other errors.
std::vector<Fields> agree_on_next_call(Transport& transport, const std::function<Fields()>& check);

/// Takes part in the exchange of agree_on_next_call() for a rank that refuses a call before it can describe the call.
/// Returns only after all ranks have called.
/// @throws Error, the same on every rank.
[[noreturn]] void refuse(Transport& transport, const Error& error);

/// Returns the value of a field that every rank's fields contain.
[[nodiscard]] const std::string& value_of(const Fields& fields, std::string_view name);

}  // namespace attend::ring
