#!/usr/bin/env bash
# clang-tidy (checks: .clang-tidy) over the sources of the library, the program and the benchmarks.
#
#   tools/tidy.sh BUILD [JOBS]     BUILD holds compile_commands.json
set -euo pipefail

build=$1
jobs=${2:-1}
# clang does not know GCC's precompiled headers and some of its warnings.
git ls-files -z 'src/*.cpp' 'apps/*.cpp' 'bench/*.cpp' |
  xargs -0 -n 1 -P "$jobs" clang-tidy --quiet -p "$build" --extra-arg=-Wno-unknown-warning-option 2>/dev/null
