#!/usr/bin/env bash
# Tests tools/remote.sh with a folder that replaces the remote machine. The fake `ssh` runs the command in that folder,
# and the fake `make` returns a program that is already built. The script must copy the files that are needed and no
# others, and must report failures.
#
#     tests/tools/remote_test.sh SOURCE ATTEND
# shellcheck disable=SC2016,SC2034 # conditions are for eval
set -euo pipefail
source=$1
attend=$2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/home" "$work/checkout/tools"

cat >"$work/bin/ssh" <<EOF
#!/bin/bash
[[ \$1 == user@host ]] || { echo "ssh to \$1" >&2; exit 9; }
cd "$work/home" && exec bash -c "\$2"
EOF
cat >"$work/bin/make" <<EOF
#!/bin/bash
echo "make \$*"
[[ \$1 != gpu-test ]] || exit 3
mkdir -p build/release && ln -sf "$attend" build/release/attend
EOF
printf '#!/bin/bash\n' >"$work/bin/nvidia-smi"
chmod +x "$work"/bin/*
export PATH=$work/bin:$PATH

cd "$work/checkout"
cp "$source/tools/remote.sh" tools/
git init -q . && echo ignored >.gitignore && touch ignored "a name with blanks" gone
git add -A
rm gone

check() {
  if ! eval "$2"; then
    echo "FAILED: $1" >&2
    exit 1
  fi
}

tools/remote.sh user@host ring >"$work/out" 2>&1 || { cat "$work/out"; exit 1; }
check "tracked files travel" '[[ -e $work/home/attend/"a name with blanks" ]]'
check "ignored files stay" '[[ ! -e $work/home/attend/ignored ]]'
check "the build is there, not here" '[[ -e $work/home/attend/build/release/attend && ! -e build ]]'
check "results come back" 'grep -q share_of_ideal results/remote/ring_cpu.json'
check "so does what was printed" 'grep -q "% of ideal" results/remote/ring.log'

status=0
RESULTS=results/other tools/remote.sh user@host test ring >"$work/out" 2>&1 || status=$?
check "a step that fails is told" '[[ $status -eq 1 ]] && grep -q "failed: test; see results/other" "$work/out"'
check "the others go on" '[[ -e results/other/ring_cpu.json ]]'

status=0
tools/remote.sh local ring >"$work/out" 2>&1 || status=$?
check "the same script runs here" '[[ $status -eq 0 && -e results/remote/ring_cpu.json && -e build/release/attend ]]'

for bad in "" "local nonsense"; do
  status=0
  # shellcheck disable=SC2086 # two words
  tools/remote.sh $bad >"$work/out" 2>&1 || status=$?
  check "bad usage is one line" '[[ $status -eq 2 && $(wc -l <"$work/out") -eq 1 ]]'
done
status=0
RESULTS='a b' tools/remote.sh local >"$work/out" 2>&1 || status=$?
check "a folder that is no word is refused" '[[ $status -eq 2 ]]'
echo "remote: ok"
