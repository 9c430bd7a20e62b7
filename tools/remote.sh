#!/usr/bin/env bash
# Runs all GPU measurements on a rented machine in one command: copies this checkout over ssh, builds it there, runs the
# GPU tests, the ladder and the rings, and copies the results back.
#
#   tools/remote.sh user@host [STEP...]   on that machine, which needs only a shell, an ssh server and tar
#   tools/remote.sh local [STEP...]       on this machine
#
#   STEP      test (make gpu-test), ladder (attend ladder), ring (attend ring over all GPUs, if there are at least 2).
#             Default: all three. The build always runs first.
#
# Environment:
#   RESULTS   folder of the results, default results/remote. The output of a step is in RESULTS/STEP.log
#   REMOTE_DIR  folder of the copy on the other machine, below its home, default attend. It keeps builds, so the next
#             run is faster
#   SSH       the command that precedes user@host, default ssh: SSH='ssh -p 2222 -i key' tools/remote.sh root@1.2.3.4
#
# If a step fails, the other steps still run. The last line lists the failed steps, and the exit status is 1. Files that
# git ignores are not copied. docs/ring.md has an example with a vendor's machine.
set -euo pipefail
cd "$(dirname "$0")/.."

results=${RESULTS:-results/remote}
remote_dir=${REMOTE_DIR:-attend}
all_steps=(test ladder ring)

fail() {
  echo "tools/remote.sh: $1" >&2
  exit 2
}

[[ $# -ge 1 ]] || fail "where: not given, allowed local or user@host"
where=$1
shift
steps=("$@")
[[ ${#steps[@]} -gt 0 ]] || steps=("${all_steps[@]}")
for step in "${steps[@]}"; do
  [[ " ${all_steps[*]} " == *" $step "* ]] || fail "step: '$step', allowed ${all_steps[*]}"
done
# Both become words of a command on the other machine.
[[ $results =~ ^[A-Za-z0-9._/-]+$ && $results != /* ]] || fail "RESULTS: '$results', allowed a plain path below the checkout"
[[ $remote_dir =~ ^[A-Za-z0-9._/-]+$ ]] || fail "REMOTE_DIR: '$remote_dir', allowed a plain path"

num_gpus() {
  nvidia-smi --list-gpus 2>/dev/null | wc -l
}

run_test() {
  make gpu-test GPU_RESULTS="$results"
}

run_ladder() {
  build/release/attend ladder --json "$results/ladder.json"
}

# attend ring NAME OPTION...: writes RESULTS/ring_NAME.json. The time limit ends a ring that hangs, because the machine
# is paid by the hour.
run_one_ring() {
  local name=$1
  shift
  timeout 900 build/release/attend ring --mode both --json "$results/ring_$name.json" "$@"
}

# Lengths are those of the entire sequence.
run_ring() {
  if [[ $(num_gpus) -lt 2 ]]; then
    echo "fewer than two GPUs: ranks are threads on the CPU, at a small size"
    run_one_ring cpu --device cpu --ranks 4 --problem 1,8,1024,64 --causal --repeat 3
    return
  fi
  local tokens status=0
  for tokens in 32768 131072 524288; do
    run_one_ring "${tokens}_causal" --problem "1,16,$tokens,128" --causal || status=1
    run_one_ring "${tokens}_causal_gqa" --problem "1,32,$tokens,128" --num_heads_kv 8 --causal || status=1
    run_one_ring "${tokens}_full" --problem "1,16,$tokens,128" || status=1
    run_one_ring "${tokens}_window" --problem "1,16,$tokens,128" --causal --window_left 4096 --sharding contiguous || status=1
  done
  local algorithm
  for algorithm in exchange all_gather all_to_all; do
    run_one_ring "32768_$algorithm" --problem 1,16,32768,128 --causal --algorithm "$algorithm" || status=1
  done
  return $status
}

run_here() {
  mkdir -p "$results"
  make build
  local step failed=()
  for step in "${steps[@]}"; do
    echo "== $step"
    "run_$step" 2>&1 | tee "$results/$step.log" || failed+=("$step")
  done
  [[ ${#failed[@]} -eq 0 ]] || {
    echo "tools/remote.sh: failed: ${failed[*]}; see $results/*.log" >&2
    return 1
  }
  echo "all done: ${steps[*]}; results in $results"
}

run_there() {
  local ssh status=0
  read -ra ssh <<<"${SSH:-ssh}"
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    files() { git ls-files -z --cached --others --exclude-standard --deduplicate; }
  else
    files() { find . -path ./build -prune -o -path './.venv*' -prune -o -type f -print0; }
  fi
  echo "copying to $where:$remote_dir"
  # git's list still contains files that were deleted here. tar receives only existing files.
  files | while IFS= read -r -d '' file; do [[ -e $file || -L $file ]] && printf '%s\0' "$file"; done |
    tar --create --gzip --null --files-from=- | "${ssh[@]}" "$where" "mkdir -p $remote_dir && tar -xz -C $remote_dir"
  # RESULTS on the other machine starts empty, so that no old results are copied back.
  "${ssh[@]}" "$where" "cd $remote_dir && rm -rf $results && RESULTS=$results tools/remote.sh local ${steps[*]}" || status=1
  echo "bringing back $results"
  "${ssh[@]}" "$where" "cd $remote_dir && mkdir -p $results && tar -cz $results" | tar -xz
  return $status
}

if [[ $where == local ]]; then
  run_here
else
  run_there
fi
