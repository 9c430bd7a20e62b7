// Before a call sends anything else, the ranks tell each other what they are about to do, and all find the same fault.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "ring/transport.hpp"

namespace attend::ring {

/// One thing that a rank says about its call.
struct Field {
  std::string name;   ///< of the argument
  std::string value;  ///< printed on one line
};

using Fields = std::vector<Field>;

/// Every rank's fields, by rank. A rendezvous: no rank returns before all have called.
[[nodiscard]] std::vector<Fields> exchange_fields(Transport& transport, const Fields& mine);

/// @throws Error (kInvalidArgument), the same on every rank, where a rank's fields differ from rank 0's.
void require_same(const std::vector<Fields>& by_rank);

/// For a rank that cannot say its fields, given what is no argument of a call: a rendezvous in their place.
/// @throws Error as throw_refusal.
void refuse(Transport& transport, const Error& error);

/// @throws Error, the same on every rank: what the first rank said to refuse(), if one did.
void throw_refusal(const std::vector<Fields>& by_rank);

/// Runs `check`, which throws Error where this rank refuses its arguments, and says what all have to say alike.
/// @throws Error, the same on every rank: the first refusing rank's, else as require_same.
void agree(Transport& transport, const std::function<Fields()>& check);

}  // namespace attend::ring
