// What the checks of append find in arrays on the host, and in a call of append and decode together.
#pragma once

#include "core/append_problem.hpp"
#include "core/decode_problem.hpp"

namespace attend::core {

/// With `positions` every query row needs a new row, whose position it has. Throws Error naming the first sequence
/// without.
void check_query_rows(const AppendProblem& p);

/// What ATTEND_CHECK=1 looks for: lengths, pages, slots and positions that do not exist, and places that two new rows
/// go to. Throws Error naming the first entry at fault.
void check_append_entries(const AppendProblem& p);

/// Both calls name the same cache, and as many sequences. Throws Error naming the first argument that differs.
void check_one_cache(const AppendCall& append, const DecodeCall& decode);

/// Neither call writes what the other one reads, but for the cache. Throws Error naming the argument.
void check_outputs_apart(const DecodeProblem& decode, const AppendProblem& append);

}  // namespace attend::core
