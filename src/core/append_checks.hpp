// Checks of append that read arrays in host memory, and checks of a combined call of append and decode.
#pragma once

#include "core/append_problem.hpp"
#include "core/decode_problem.hpp"

namespace attend::core {

/// Checks that every query row has a new row. This is required if `positions` is given, because a query row uses the
/// position of its new row. Throws Error naming the first sequence in which a query row has no new row.
void check_query_rows(const AppendProblem& p);

/// Checks that run only with ATTEND_CHECK=1. They detect lengths, pages, slots and positions that do not exist, and two
/// new rows with the same destination. Throws Error naming the first invalid entry.
void check_append_entries(const AppendProblem& p);

/// Checks that both calls use the same cache and the same number of sequences. Throws Error naming the first argument
/// that differs.
void check_one_cache(const AppendCall& append, const DecodeCall& decode);

/// Checks that neither call writes memory that the other one reads. The check ignores the cache. Throws Error naming
/// the argument.
void check_outputs_apart(const DecodeProblem& decode, const AppendProblem& append);

}  // namespace attend::core
