// Runs the program under mpirun if mpirun is installed.
#pragma once

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "io/attend_program.hpp"

namespace attend::test {

#ifdef ATTEND_MPIEXEC

/// Runs the program with the arguments in `line` on num_ranks ranks.
inline ProgramResult on_ranks(int num_ranks, const std::string& line) {
  std::vector<std::string> arguments = {ATTEND_MPIEXEC_NUMPROC, std::to_string(num_ranks), ATTEND_PROGRAM};
  std::istringstream stream(line);
  for (std::string word; stream >> word;) arguments.push_back(word);
  return run_program(ATTEND_MPIEXEC, arguments, [] {
    // Sets Open MPI's options --oversubscribe and --allow-run-as-root as environment variables, which other MPIs
    // ignore.
    ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    ::setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    ::setenv("ASAN_OPTIONS", "detect_leaks=0", 0);  // Open MPI does not free all memory before it exits
  });
}

#endif

/// Returns how often `part` occurs in `text`.
inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace attend::test
