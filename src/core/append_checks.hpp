// Checks of append that read arrays on the host, and of a combined append and decode call.
#pragma once

#include "core/append_problem.hpp"
#include "core/decode_problem.hpp"

namespace attend::core {

/// With `positions` every query row needs a new row, whose position it uses. Throws Error naming the first sequence
/// with a query row that has none.
void check_query_rows(const AppendProblem& p);

/// Checks for ATTEND_CHECK=1: lengths, pages, slots and positions that do not exist, and two new rows with the same
/// destination. Throws Error naming the first invalid entry.
void check_append_entries(const AppendProblem& p);

/// Checks that both calls name the same cache and the same number of sequences. Throws Error naming the first argument
/// that differs.
void check_one_cache(const AppendCall& append, const DecodeCall& decode);

/// Checks that neither call writes memory that the other one reads, except the cache. Throws Error naming the argument.
void check_outputs_apart(const DecodeProblem& decode, const AppendProblem& append);

}  // namespace attend::core
