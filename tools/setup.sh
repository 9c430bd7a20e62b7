#!/usr/bin/env bash
# Ensures that the requirements of a make target are installed. Silent and fast (no dpkg, no apt) if they are.
#
#   tools/setup.sh build|clang|lint|tidy|mpi|nvrtc|python|pytest|torch|jax|onnx|doxygen|docs ...
#
#   build   compiler, CMake, and the libraries of the library, the program, the tests and the benchmarks
#   clang   clang with its OpenMP runtime: the presets tsan and fuzz
#   lint    the private virtual environment .venv-lint with clang-format, ruff, mypy, basedpyright and shellcheck, in the
#           releases of tools/requirements-lint.txt, so that a check is the same everywhere. And CMake
#   tidy    clang-tidy, in addition to clang and nanobind
#   mpi     Open MPI: rings of processes, their tests and `attend run --ring`
#   nvrtc   NVIDIA's run-time compiler, with which the tests compile the GPU kernels; needs no GPU. If the machine does
#           not have it, it is installed into the private virtual environment .venv-nvrtc
#   python  the private virtual environment .venv with torch and matplotlib, for the comparison with PyTorch
#   pytest  .venv with the requirements to build and test the Python package, without torch
#   torch   .venv with torch, transformers, diffusers and xFormers, for the tests of the Python package that need them
#   jax     .venv with JAX for CPUs, for the tests that need it
#   onnx    .venv with ONNX and ONNX Runtime, for the tests that need them
#   doxygen Doxygen, for the test that every public symbol of the headers has a comment
#   docs    Doxygen and Graphviz, and .venv with Sphinx and its requirements, for the documentation site
#
# Prints "ready" on stdout if everything is installed. Otherwise prints exactly one line on stdout: the missing packages
# and how to install them. Progress is written to stderr.
set -euo pipefail
cd "$(dirname "$0")/.."

log=build/setup.log

fail() {
  printf '%s\n' "$1"
  exit 1
}

# An unexpected failure also prints a line, because callers expect either "ready" or a message.
set -E
trap 'printf "%s\n" "tools/setup.sh: line $LINENO failed: $BASH_COMMAND"' ERR

# Each entry is Debian package=requirement: a command, or a file in an include or library folder.
declare -A packages=(
  [build]='g++=c++ cmake=cmake ninja-build=ninja libhwy-dev=hwy/highway.h libfmt-dev=fmt/format.h
           libcli11-dev=CLI/CLI.hpp nlohmann-json3-dev=nlohmann/json.hpp libxxhash-dev=xxhash.h
           libgtest-dev=gtest/gtest.h libgmock-dev=gmock/gmock.h
           libbenchmark-dev=benchmark/benchmark.h pkg-config=pkg-config'
  [clang]='clang=clang++ libomp-dev=libomp.so'
  [lint]='cmake=cmake python3-venv=ensurepip'
  [tidy]='clang-tidy=clang-tidy'
  [mpi]='libopenmpi-dev=mpicxx openmpi-bin=mpirun'
  [nvrtc]=''
  [python]='python3-venv=ensurepip'
  [pytest]='python3-venv=ensurepip python3-dev=Python.h'
  [torch]='python3-venv=ensurepip'
  [jax]='python3-venv=ensurepip'
  [onnx]='python3-venv=ensurepip'
  [doxygen]='doxygen=doxygen'
  [docs]='doxygen=doxygen graphviz=dot python3-venv=ensurepip'
)

is_present() {
  case $1 in
    Python.h) python3 -c 'import pathlib, sysconfig; (pathlib.Path(sysconfig.get_path("include")) / "Python.h").stat()' 2>/dev/null ;;
    */* | *.h) [[ -e /usr/include/$1 || -e /usr/local/include/$1 ]] ;;
    libomp.so) compgen -G '/usr/lib/llvm-*/lib/libomp.so' >/dev/null ;;
    ensurepip) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# Checks for the compiler with the headers that the wmma kernels include, in the folders that the library searches
# (src/cuda/driver/nvrtc.cpp), and in .venv-nvrtc, which the tests search too. .venv-nvrtc is a separate environment,
# because torch installs another release of the compiler into .venv, and the register count of a kernel depends on the
# release.
nvrtc_is_present() {
  [[ -n ${ATTEND_NVRTC_PATH:-} ]] && return
  local root
  for root in "${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda .venv-nvrtc/lib/python3*/site-packages/nvidia/cu13; do
    if [[ -e $root/include/crt/mma.h ]] && compgen -G "$root/lib*/libnvrtc.so*" >/dev/null; then return; fi
  done
  return 1
}

wants_nvrtc=false
if [[ " $* " == *' nvrtc '* ]] && ! nvrtc_is_present; then
  wants_nvrtc=true
  packages[nvrtc]='python3-venv=ensurepip'
fi

missing=()
for group in "$@"; do
  [[ -v packages[$group] ]] || fail "tools/setup.sh: unknown group '$group', allowed: ${!packages[*]}"
  for entry in ${packages[$group]}; do
    is_present "${entry#*=}" || missing+=("${entry%%=*}")
  done
done

# ccache is installed only together with other packages. With it, the wheel does not compile the library again.
if ((${#missing[@]})) && [[ " $* " == *' build '* ]] && ! is_present ccache; then missing+=(ccache); fi

if ((${#missing[@]})); then
  install="apt-get install --no-install-recommends ${missing[*]}"
  command -v apt-get >/dev/null || fail "missing (Debian's names): ${missing[*]}. Install them with your package manager."
  ((EUID == 0)) || fail "some packages are missing. As root: $install"
  echo "installing ${missing[*]}" >&2
  mkdir -p build
  export DEBIAN_FRONTEND=noninteractive
  {
    apt-get -qq update && apt-get -qq install --no-install-recommends "${missing[@]}"
  } >"$log" 2>&1 </dev/null || fail "cannot install packages (no network? see $log). When there is one, as root: $install"
fi

if $wants_nvrtc; then
  wheels=(nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85)
  echo "filling .venv-nvrtc: ${wheels[*]}" >&2
  mkdir -p build
  {
    python3 -m venv .venv-nvrtc && .venv-nvrtc/bin/pip install --quiet --disable-pip-version-check "${wheels[@]}"
  } >"$log" 2>&1 </dev/null ||
    fail "no libnvrtc, and cannot fill .venv-nvrtc (no network? see $log). By hand: .venv-nvrtc/bin/pip install ${wheels[*]}"
fi

# A virtual environment in a copied checkout refers to the original's folder, into which its pip would install.
adopt_venv() {
  local venv=$1 original here files
  here=$PWD/$venv
  [[ -e $venv/bin/activate ]] || return 0
  original=$(sed -n -E "s/^ *(export )?VIRTUAL_ENV=[\"']?([^\"'\$()]*)[\"']?\$/\\2/p" "$venv/bin/activate" | head -n 1)
  [[ -z $original || $original -ef $here ]] && return
  echo "$venv came from $original: it is for this folder now" >&2
  readarray -t files < <(grep -slIF -- "$original" "$venv/pyvenv.cfg" "$venv"/bin/* || true)  # a file may be missing
  sed -i -- "s|$original|$here|g" "${files[@]}"  # sed replaces the files, which may be hard links
}
adopt_venv .venv
adopt_venv .venv-lint

# fill_venv REQUIREMENTS REMARK [VENV]: the environment is ready only if its last installation step was completed and
# still matches the list of requirements. The mark is named by the list's path, because several folders have a list with
# the same name.
fill_venv() {
  local venv=${3:-.venv} done_mark
  done_mark=$venv/${1//\//-}
  if ! "$venv/bin/python" -c '' 2>/dev/null; then
    rm -rf "$venv"  # there is none, or it was made on a machine with Python in another place
  elif cmp -s "$1" "$done_mark"; then
    return
  fi
  echo "filling $venv: $(tr '\n' ' ' <"$1")$2" >&2
  mkdir -p build
  {
    python3 -m venv "$venv" && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$1"
  } >"$log" 2>&1 </dev/null || fail "cannot fill $venv (no network? see $log). By hand: $venv/bin/python -m pip install -r $1"
  cp "$1" "$done_mark"
}

for group in "$@"; do
  case $group in
    lint) fill_venv tools/requirements-lint.txt '' .venv-lint ;;
    python) fill_venv bench/requirements.txt '(a large download)' ;;
    pytest) fill_venv python/requirements-test.txt '' ;;
    torch)
      .venv/bin/python -c 'import diffusers, torch, transformers, xformers' >/dev/null 2>&1 || fill_venv python/requirements-torch.txt '(a large download)'
      ;;
    jax) .venv/bin/python -c 'import jax, flatbuffers' 2>/dev/null || fill_venv python/requirements-jax.txt '(a large download)' ;;
    onnx) .venv/bin/python -c 'import onnx, onnxruntime, onnxscript' 2>/dev/null || fill_venv python/requirements-onnx.txt '' ;;
    docs) fill_venv docs/requirements.txt '' ;;
  esac
done

echo ready
