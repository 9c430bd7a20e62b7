#!/bin/sh
# Runs GPU tests on the CPU with a software driver (tests/emulator/emulated_gpu.cpp). A test takes about half a minute.
#
#     tools/emulated_gpu.sh build/release FILTER     GoogleTest's filter of attend_gpu_tests
#
# ATTEND_EMULATED_MULTIPROCESSORS=N: default 4, so that a persistent block has several items even in small problems.
# ATTEND_EMULATED_SEED=N: another order of threads. ATTEND_EMULATED_VERBOSE=1: prints each launch.
set -eu
gpu=$(cd "$1" && pwd)/tests/emulator/libemulated_gpu.so
export ATTEND_LIBCUDA_PATH="$gpu" ATTEND_NVRTC_PATH="$gpu" ATTEND_CACHE_LIMIT=0 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$1/attend_gpu_tests" --gtest_filter="$2"
