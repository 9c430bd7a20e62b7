// The commands of the program. Each prints to stdout and returns the exit status. A command that fails throws Error.
#pragma once

#include "options/options.hpp"

namespace attend::cli {

constexpr int kExitDone = 0;
constexpr int kExitCheckFailed = 1;
constexpr int kExitRefused = 2;  // status after bad usage, bad input, missing hardware, or a full disk

int generate(const GenerateOptions& options);  // generate.cpp
int run(const RunOptions& options);            // run.cpp
int bench(const BenchOptions& options);        // bench.cpp
int compile(const CompileOptions& options);    // compile.cpp
int ladder(const LadderOptions& options);      // ladder.cpp
int sweep(const SweepOptions& options);        // sweep.cpp
int info(const InfoOptions& options);          // info.cpp
int explain(const ExplainOptions& options);    // explain.cpp
int show_ring(const RingOptions& options);     // ring.cpp
int cache(const CacheOptions& options);        // cache.cpp

}  // namespace attend::cli
