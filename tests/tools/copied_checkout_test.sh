#!/usr/bin/env bash
# Tests tools/configure.sh and tools/setup.sh in a checkout that was copied together with its build folder. The build
# must use the sources of the copy, the original must not change, and no step may repeat endlessly. The test project
# only copies a file.
#
#     tests/tools/copied_checkout_test.sh SOURCE
set -euo pipefail
source=$1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $1" >&2
  exit 1
}

# built FOLDER TEXT: runs make's two steps in FOLDER. They must produce a file that contains TEXT.
built() {
  (cd "$1" && tools/configure.sh release && timeout 60 cmake --build --preset release) >"$work/log" 2>&1 ||
    fail "building $1: $(cat "$work/log")"
  [[ $(cat "$1/build/release/result") == "$2" ]] || fail "$1 was built of '$(cat "$1/build/release/result")', not '$2'"
}

says() {
  grep -qF -- "$1" "$work/log" || fail "'$1' was not said: $(cat "$work/log")"
}

mkdir -p "$work/original/tools"
cd "$work/original"
cp "$source/tools/configure.sh" "$source/tools/setup.sh" tools/
echo 'original' >text
cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.25)
project(toy LANGUAGES NONE)
add_custom_command(OUTPUT result COMMAND ${CMAKE_COMMAND} -E copy ${PROJECT_SOURCE_DIR}/text result
                   DEPENDS ${PROJECT_SOURCE_DIR}/text)
add_custom_target(toy ALL DEPENDS result)
END
cat >CMakePresets.json <<'END'
{"version": 6,
 "configurePresets": [{"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build/release"}],
 "buildPresets": [{"name": "release", "configurePreset": "release"}]}
END
built "$work/original" original
mkdir build/release/kernel_cache
echo kernel >build/release/kernel_cache/entry
before=$(stat -c %Y%Z build/release/CMakeCache.txt)

# A second build must have no work.
built "$work/original" original
[[ $(head -n 1 "$work/log") == *'ninja: '* ]] || fail "a second build said: $(cat "$work/log")"

# All files of the copy have new times.
cp -r "$work/original" "$work/copy"
echo 'copy' >"$work/copy/text"
built "$work/copy" copy
says "was configured for $work/original"
[[ -e $work/copy/build/release/kernel_cache/entry ]] || fail 'compiled kernels were thrown away'
built "$work/copy" copy
! grep -q 'was configured for' "$work/log" || fail 'configured anew twice'
[[ $(stat -c %Y%Z "$work/original/build/release/CMakeCache.txt") == "$before" ]] || fail 'the original was configured'
[[ $(cat "$work/original/build/release/result") == original ]] || fail 'the original was built'

# Moves the copy, so that its previous folder no longer exists.
mv "$work/copy" "$work/moved"
built "$work/moved" copy

# A link to the same folder must not be treated as a copy.
ln -s "$work/moved" "$work/link"
built "$work/link" copy
! grep -q 'was configured for' "$work/log" || fail 'a link was taken for a copy'

# The files have times in the future, as if another machine's clock had set them.
touch -d '+1 day' "$work/moved/CMakeLists.txt" "$work/moved/text"
built "$work/moved" copy
says '2 files were newer than the clock'
built "$work/moved" copy
! grep -q 'newer than the clock' "$work/log" || fail 'the times were set twice'

# The error messages of CMake must be shown.
echo 'message(FATAL_ERROR "no such compiler")' >>"$work/moved/CMakeLists.txt"
rm "$work/moved/build/release/configured"
(cd "$work/moved" && ! tools/configure.sh release >"$work/log" 2>&1) || fail 'a failure was not told'
says 'no such compiler'

# If there is no virtual environment, setup.sh must change nothing.
(cd "$work/original" && tools/setup.sh) >"$work/log" 2>&1 || fail "setup.sh: $(cat "$work/log")"
[[ $(cat "$work/log") == ready ]] || fail "without .venv setup.sh said: $(cat "$work/log")"

# The scripts of a virtual environment contain the path of its folder, so setup.sh must adapt them.
mkdir -p "$work/original/.venv/bin"
printf 'VIRTUAL_ENV="%s/.venv"\nexport VIRTUAL_ENV\n' "$work/original" >"$work/original/.venv/bin/activate"
printf '#!%s/.venv/bin/python3\n' "$work/original" >"$work/original/.venv/bin/pip"
ln "$work/original/.venv/bin/pip" "$work/linked_pip"
cp -al "$work/original" "$work/third"
(cd "$work/third" && tools/setup.sh) >"$work/log" 2>&1 || fail "setup.sh: $(cat "$work/log")"
says "came from $work/original/.venv"
[[ $(cat "$work/third/.venv/bin/pip") == "#!$work/third/.venv/bin/python3" ]] || fail "pip is the original's"
[[ $(cat "$work/linked_pip") == "#!$work/original/.venv/bin/python3" ]] || fail "the original's pip was changed"
(cd "$work/third" && tools/setup.sh) >"$work/log" 2>&1
[[ $(cat "$work/log") == ready ]] || fail "a second time setup.sh said: $(cat "$work/log")"
