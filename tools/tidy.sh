#!/usr/bin/env bash
# Runs clang-tidy (checks: .clang-tidy) on every C++ source: the library, the program, the extension module, the tests
# and the benchmarks. Nothing is built: clang reads the commands of the preset tidy, which has no precompiled headers.
#
#   tools/tidy.sh [JOBS [FILE...]]     FILE: only these sources
#
# .venv must have nanobind (tools/setup.sh pytest). Runs at low priority.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${1:-1}
(($# == 0)) || shift

# --fresh: a cache that contains clang's full path would treat the preset's name as another compiler and discard all
# other settings.
cmake --fresh --preset tidy -Dnanobind_DIR="$(.venv/bin/python -m nanobind --cmake_dir)" \
  -DPython_EXECUTABLE="$PWD/.venv/bin/python" >build/tidy.log || { cat build/tidy.log >&2; exit 2; }
# Sources that no target compiles here, such as MPI programs without MPI, have no command.
declare -A compiled
while IFS= read -r file; do
  compiled[$file]=1
done < <(sed -n -E 's|^ *"file": "(.*)",?$|\1|p' build/tidy/compile_commands.json)
if (($# == 0)); then
  readarray -t files < <(git ls-files '*.cpp')
  set -- "${files[@]}"
fi
for file; do
  if [[ -v compiled[$PWD/$file] ]]; then
    printf '%s\0' "$file"
  else
    echo "left out: $file" >&2
  fi
done | nice xargs -0 -n 1 -P "$jobs" clang-tidy --quiet -p build/tidy 2>/dev/null
