#!/bin/sh
# Runs tests of a GPU on the CPU, by a driver in software (tests/emulator/emulated_gpu.cpp). Half a minute a test.
#
#     tools/emulated_gpu.sh build/release FILTER     GoogleTest's filter of attend_gpu_tests
#
# ATTEND_EMULATED_MULTIPROCESSORS=N: 4 if not given; a persistent block then has several items, with small problems too.
# ATTEND_EMULATED_SEED=N: another order of threads. ATTEND_EMULATED_VERBOSE=1: each launch.
set -eu
gpu=$(cd "$1" && pwd)/tests/emulator/libemulated_gpu.so
export ATTEND_LIBCUDA_PATH="$gpu" ATTEND_NVRTC_PATH="$gpu" ATTEND_CACHE_LIMIT=0 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$1/attend_gpu_tests" --gtest_filter="$2"
