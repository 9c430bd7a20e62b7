// Before a call sends anything else, the ranks tell each other what they are about to do, and all find the same fault.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "attend/error.hpp"
#include "ring/transport/transport.hpp"

namespace attend::ring {

/// One thing that a rank says about its call.
struct Field {
  std::string name;   ///< of the argument; one that starts with kOwn may have another value on each rank
  std::string value;  ///< printed on one line
};

inline constexpr char kOwn = '#';

using Fields = std::vector<Field>;

/// Runs `check`, which throws where this rank refuses its arguments, and says what all have to say alike. A rendezvous:
/// no rank returns before all have called.
/// @returns every rank's fields, by rank
/// @throws Error, the same on every rank: the first refusing rank's, else (kInvalidArgument) the first difference
/// between a rank's fields and rank 0's.
std::vector<Fields> agree(Transport& transport, const std::function<Fields()>& check);

/// The same for the first exchange of a call, which carries the call's number too. Ranks whose numbers differ are not
/// in the same call, and all of them say so, whatever else they have said.
std::vector<Fields> agree_on_next_call(Transport& transport, const std::function<Fields()>& check);

/// For a rank that refuses a call before it can say what it is: a rendezvous in the place of agree_on_next_call().
/// @throws Error as that does.
[[noreturn]] void refuse(Transport& transport, const Error& error);

/// What a rank has said under a name that all have used.
[[nodiscard]] const std::string& value_of(const Fields& fields, std::string_view name);

}  // namespace attend::ring
