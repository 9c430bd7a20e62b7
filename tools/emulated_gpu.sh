#!/bin/sh
# Runs tests of a GPU on the CPU, by a driver in software (tests/emulator/emulated_gpu.cpp). Half a minute a test.
#
#     tools/emulated_gpu.sh build/release FILTER     GoogleTest's filter of attend_gpu_tests
#
# Kernels whose blocks wait for blocks with higher numbers do not end here. ATTEND_EMULATED_SEED=N: another order of
# threads. ATTEND_EMULATED_VERBOSE=1: each launch.
set -eu
gpu=$(cd "$1" && pwd)/tests/emulator/libemulated_gpu.so
export ATTEND_LIBCUDA_PATH="$gpu" ATTEND_NVRTC_PATH="$gpu" ATTEND_CACHE_LIMIT=0 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export ATTEND_EMULATED_MULTIPROCESSORS="${ATTEND_EMULATED_MULTIPROCESSORS:-132}"
exec "$1/attend_gpu_tests" --gtest_filter="$2"
