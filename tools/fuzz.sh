#!/usr/bin/env bash
# Runs every libFuzzer target of a build for FUZZ_SECONDS (600) and prints the number of inputs that each executed.
#
#   tools/fuzz.sh build/fuzz
#
# The target npy_fuzz starts from the seeds in tests/fuzz/corpus/npy and the words of tests/fuzz/npy.dict, if they
# exist. New inputs are kept in BUILD/corpus/npy and start the next run. A finding stops the script: it shows
# libFuzzer's report, and the input is in BUILD/findings.
set -euo pipefail

build=$1
seconds=${FUZZ_SECONDS:-600}
mkdir -p "$build/findings"

found=0
for target in "$build"/tests/fuzz/*; do
  [[ -f $target && -x $target && $target == *_fuzz ]] || continue
  found=1
  name=$(basename "$target")
  stem=${name%_fuzz}
  corpus=$build/corpus/$stem
  log=$build/$name.log
  mkdir -p "$corpus"
  arguments=("$corpus")
  [[ -d tests/fuzz/corpus/$stem ]] && arguments+=("tests/fuzz/corpus/$stem")
  [[ -f tests/fuzz/$stem.dict ]] && arguments+=("-dict=tests/fuzz/$stem.dict")
  if ! "$target" -max_total_time="$seconds" -print_final_stats=1 -rss_limit_mb=4096 \
      -artifact_prefix="$build/findings/$name-" "${arguments[@]}" >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "$name: FOUND SOMETHING, see $log and $build/findings"
    exit 1
  fi
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  echo "$name: $executions executions in $seconds s, nothing found"
done
((found)) || { echo "tools/fuzz.sh: no fuzz target in $build/tests/fuzz"; exit 1; }
