#!/usr/bin/env bash
# Configures build/PRESET unless it is already configured for this folder. Otherwise it is silent and fast.
#
#   tools/configure.sh PRESET
#
# A copied or moved checkout contains a build folder that was configured elsewhere. Ninja would then build the
# original's sources, so the folder is emptied and configured again. Ninja also reconfigures endlessly if a CMake file
# is newer than the clock. Such files get the current time.
#
# Messages are written to stderr. If a configuration fails, its full output is shown.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
build=build/$preset
log=build/$preset.log

# Prints the source folder of build/PRESET, or nothing if there is none.
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
  # Compiled GPU kernels are kept: they do not depend on the folder, and compiling them takes a quarter of an hour.
  find "$build" -mindepth 1 -maxdepth 1 ! -name kernel_cache -exec rm -rf {} +
fi

[[ -e $build/configured && -e $build/build.ninja ]] && exit
mkdir -p build
cmake --preset "$preset" >"$log" 2>&1 || {
  cat "$log" >&2
  exit 1
}
touch "$build/configured"
