#!/usr/bin/env bash
# The static checks. `make lint` runs all of them. A pre-commit hook runs single steps on the files that it names.
#
#   tools/lint.sh [STEP [FILE...]]
#
#   format   clang-format of C++, C and CUDA
#   ruff     ruff's rules and format of Python
#   shell    shellcheck of every shell script
#   source   columns of C++ and CUDA; allowed includes between folders (tests/columns.cmake, tests/rooms.cmake)
#   ends     no blanks at the ends of lines, one newline at the end of each file
#   types    mypy and basedpyright on the package, its typing tests and the examples. They read the types of torch, JAX
#            and ONNX from .venv. If .venv does not have one of them, the step is skipped with a message
#
# The tools are those of tools/requirements-lint.txt, in .venv-lint (tools/setup.sh lint). All steps run, even after a
# failure. Exit status: 0 no findings, 1 findings.
set -euo pipefail
cd "$(dirname "$0")/.."
steps=(format ruff shell source ends types)
bin=.venv-lint/bin

# Lists files that match the patterns, including untracked files, excluding links.
files_of() {
  git ls-files --cached --others --exclude-standard -z -- "$@" | while IFS= read -r -d '' file; do
    if [[ -f $file && ! -L $file ]]; then printf '%s\0' "$file"; fi
  done
}

format() {
  if (($#)); then printf '%s\0' "$@"; else files_of '*.cpp' '*.hpp' '*.cuh' '*.c' '*.h'; fi |
    xargs -0 -n 100 -P "$(nproc)" "$bin/clang-format" --dry-run -Werror
}

ruff() {
  "$bin/ruff" check --quiet --force-exclude "$@" && "$bin/ruff" format --quiet --check --diff --force-exclude "$@"
}

shell() {
  if (($#)); then printf '%s\0' "$@"; else files_of .ci tools tests '*.sh' | xargs -0 grep -lZE '^#!.*[/ ](ba)?sh$'; fi |
    xargs -0 "$bin/shellcheck"
}

source_tree() {
  cmake -DROOT="$PWD" -P tests/columns.cmake && cmake -DROOT="$PWD" -P tests/rooms.cmake
}

# Excludes pictures and measurements, which are generated, and corpora, which contain unusual bytes.
ends() {
  if (($#)); then printf '%s\0' "$@"; else files_of; fi | python3 -c '
import pathlib, re, sys
left_out = re.compile(r"results/|tests/fuzz/corpus/|.*\.(svg|png|json|csv)$")
found = 0
for name in filter(None, sys.stdin.read().split("\0")):
    text = b"" if left_out.match(name) else pathlib.Path(name).read_bytes()
    if b"\0" in text:
        continue
    for number, line in enumerate(text.splitlines(), 1):
        if line != line.rstrip():
            found = print(f"{name}:{number}: blanks at the end of a line") or 1
    if text and (not text.endswith(b"\n") or text.endswith(b"\n\n")):
        found = print(f"{name}: wants exactly one newline at its end") or 1
sys.exit(found)'
}

types() {
  local modules="numpy, torch, jax, onnx"
  if ! .venv/bin/python -c "import importlib.util as u, sys
sys.exit(not all(map(u.find_spec, '$modules'.split(', '))))" 2>/dev/null; then
    echo "left out: types: .venv lacks one of $modules. Downloads (large): tools/setup.sh pytest torch jax onnx" >&2
    return
  fi
  "$bin/python" -m mypy --python-executable .venv/bin/python --no-error-summary &
  local mypy=$! found=0
  "$bin/basedpyright" --pythonpath .venv/bin/python --level error || found=1
  wait $mypy || found=1
  return $found
}

call() {
  local step=$1
  shift
  case $step in
    format) format "$@" ;;
    ruff) ruff "$@" ;;
    shell) shell "$@" ;;
    source) source_tree ;;
    ends) ends "$@" ;;
    types) types ;;
  esac
}

run() {
  local begun=$SECONDS
  if call "$@"; then
    echo "lint: $1: $((SECONDS - begun)) s" >&2
  else
    echo "lint: $1: found something" >&2
    return 1
  fi
}

if (($#)); then
  [[ " ${steps[*]} " == *" $1 "* ]] || { echo "tools/lint.sh: '$1', allowed ${steps[*]}" >&2; exit 2; }
  answer=$(tools/setup.sh lint) && [[ $answer == ready ]] || { echo "$answer" >&2; exit 2; }
  run "$@"
  exit
fi
failed=0
for step in "${steps[@]}"; do run "$step" || failed=1; done
exit $failed
