#!/usr/bin/env bash
# Configures build/PRESET, where that has not been done for this very folder. Silent and quick where it has.
#
#   tools/configure.sh PRESET
#
# A checkout that is copied or moved brings along a build folder that was configured elsewhere, where Ninja would build the
# original's sources: it is emptied and configured anew. Ninja also configures again, without end, where a CMake file is
# newer than the clock: such files get the present time.
#
# Messages go to stderr; of a configuration that fails, all that it said.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
build=build/$preset
log=build/$preset.log

# The folder that build/PRESET was configured for, empty where there is none.
home() {
  sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt" 2>/dev/null || true
}

readarray -d '' early < <(find . \( -path ./build -o -path ./data -o -path ./.git -o -path './.venv*' \) -prune -o \
  -type f -newermt now -print0)
if ((${#early[@]})); then
  echo "${#early[@]} files were newer than the clock, ${early[0]} among them: they have the present time now" >&2
  touch -- "${early[@]}"
fi

of=$(home)
if [[ -n $of && ! $of -ef . ]]; then
  echo "$build was configured for $of: configuring it anew for this folder" >&2
  # Compiled GPU kernels do not depend on the folder, and take a quarter of an hour.
  find "$build" -mindepth 1 -maxdepth 1 ! -name kernel_cache -exec rm -rf {} +
fi

[[ -e $build/configured && -e $build/build.ninja ]] && exit
mkdir -p build
cmake --preset "$preset" >"$log" 2>&1 || {
  cat "$log" >&2
  exit 1
}
touch "$build/configured"
