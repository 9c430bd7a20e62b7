# make            build the library and the program                                 (build/release)
# make run        generate an example and run forward and backward on it, checked against the float64 reference
# make test       all tests; the Python package's tests of torch, JAX and ONNX run only if .venv has these packages or
#                 ATTEND_TEST_TORCH=1, ATTEND_TEST_JAX=1, ATTEND_TEST_ONNX=1 download them. Compiles an eighth of the
#                 GPU kernels' variants, which covers every value; ATTEND_TEST_ALL_KERNELS=1
#                 compiles all                                                                      (20 minutes more)
# make ring       the same example on the RANKS (4) processes of an mpirun, as a ring: attend run --ring RING (zigzag)
# make py-test    the Python package's tests: builds its wheel and installs it in .venv. The tests of torch, JAX and
#                 ONNX run only if .venv has them or the variables as for make test download them (large)
# make wheel      the wheel for .venv's Python, with its manylinux tag, in WHEELS (build/wheel). Fails if the tag would
#                 be newer than WHEEL_TAG (manylinux_2_34; empty: any)
# make gpu-test   the tests that need a GPU, also under compute-sanitizer, and those of the Python package with torch;
#                 writes GPU_RESULTS/tests.json
# make emulated-test  runs GPU kernels on the CPU, with more cases than make test                  (minutes)
# make bench-cpu  compare with PyTorch on this CPU: results/cpu/*.json and docs/benchmarks_cpu.md  (downloads PyTorch)
# make docs       the documentation site: build/docs/html/index.html; warnings are errors
# make asan       all tests with AddressSanitizer and UndefinedBehaviorSanitizer    (build/asan)
# make tsan       all tests with ThreadSanitizer                                    (build/tsan)
#                 CTEST: more arguments for ctest in both, for example to exclude tests
# make fuzz       each fuzz target for FUZZ_SECONDS (600)                           (build/fuzz)
# make lint       static checks: format, Python's rules, shell scripts, columns, includes, types (a minute or two).
#                 Types are checked only if .venv has torch, JAX and ONNX
# make format     clang-format for all C++ files, ruff format for all Python files
# make tidy       clang-tidy for all C++ source files, or for FILES                  (hours)
# make install    install below PREFIX (/usr/local)
# make clean      remove the build folder and the generated data
#
# On Debian, as root, missing packages are installed first. JOBS sets the number of parallel jobs.

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 600
BENCH_THREADS ?= $(shell nproc)
GPU_RESULTS ?= results/h200
RING ?= zigzag
RANKS ?= 4
WHEELS ?= build/wheel
WHEEL_TAG ?= manylinux_2_34

ATTEND := build/release/attend
EXAMPLE := data/B2_H8_S512_D64

.DEFAULT_GOAL := build
.PHONY: build run ring test py-test wheel gpu-test emulated-test bench-cpu docs asan tsan fuzz lint format tidy install \
  clean help

# $(call need,groups): stops make with one line if something is missing that cannot be installed here.
need = $(if $(filter-out ready,$(call setup,$1)),$(error $(setup_answer)))
setup = $(eval setup_answer := $(shell tools/setup.sh $1))$(setup_answer)

# $(call want,group): the same, but only reports what is missing.
want = @answer=$$(tools/setup.sh $1) && test "$$answer" = ready || echo "left out: $$answer" >&2

# The wheel is installed in .venv, and the tests use it, not the sources. CXX: the compiler that CMake chooses. Python
# may know it by another name, for which ccache keeps nothing.
make_wheel = CXX="$${CXX:-c++}" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) .venv/bin/python tools/wheel.py $1
install_wheel = mkdir -p build && $(call make_wheel,build/wheel) >build/wheel.log && \
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-index --force-reinstall build/wheel/*.whl
# Uses one process more than cores, because tests of signals and of ranks wait, but at most eight, because each imports
# torch. A process runs consecutive tests, since those of a file share compiled code, and later some of another's.
run_pytest = { $(install_wheel) && OMP_WAIT_POLICY=passive .venv/bin/python -m pytest --numprocesses $$(($(JOBS) + 1)) \
  --maxprocesses 8 --dist worksteal; }

# $(call compile,preset,targets): configures once, and again if the checkout has been copied (ninja reconfigures when a
# CMake file changes); then builds the targets, or everything if none are given.
define compile
@tools/configure.sh $1
@cmake --build --preset $1 --parallel $(JOBS) $(if $2,--target $2)
endef

# Makes CMake configure again if MPI was installed after the last time.
with_mpi = grep -qs attend_mpi build/release/build.ninja || rm -f build/release/configured

# Allows more ranks than cores, and root, as Open MPI's --oversubscribe and --allow-run-as-root do. Other MPIs do not know
# these flags.
mpirun = OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMPI_ALLOW_RUN_AS_ROOT=1 \
  OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun

frameworks = $(if $(filter 1,$(ATTEND_TEST_TORCH)),torch) $(if $(filter 1,$(ATTEND_TEST_JAX)),jax) \
  $(if $(filter 1,$(ATTEND_TEST_ONNX)),onnx)

# Installs Python's packages while the compiler runs.
fetch_packages = flock build/venv.lock tools/setup.sh build pytest $(frameworks) >build/venv.log 2>&1 </dev/null &
await_packages = flock --nonblock build/venv.lock true || \
  { echo "waiting for Python's packages: $$(tail -n 1 build/venv.log)" >&2; flock build/venv.lock true; }

build:
	$(call need,build)@mkdir -p build
	$(call compile,release,attend attend_shared attend_c attend_ort attend_cli)

make_example = test -f $(EXAMPLE)/V.bin || $(ATTEND) generate --batch_size 2 --num_heads 8 --seq_len 512 --head_dim 64

run: build
	@$(make_example)
	@$(ATTEND) run --compute auto --mode both --data $(EXAMPLE) --check

ring:
	$(call need,build mpi)@mkdir -p build
	@$(with_mpi)
	$(call compile,release,attend_cli)
	@$(make_example)
	@$(mpirun) -n $(RANKS) $(ATTEND) run --ring $(RING) --mode both --causal --data $(EXAMPLE) --check

test:
	$(call need,build)@mkdir -p build
	$(call want,mpi)
	@$(with_mpi)
	@$(fetch_packages)
	$(call compile,release)
	@$(await_packages)
	$(call want,nvrtc)
	$(call want,doxygen)
	$(if $(strip $(frameworks)),$(call want,pytest $(frameworks)))
	@answer=$$(tools/setup.sh build pytest) && test "$$answer" = ready || \
	  { echo "left out: python/tests: $$answer" >&2; exit 0; } && $(run_pytest)
	@ctest --preset release --parallel $(JOBS)

py-test:
	$(call need,build pytest $(frameworks))
	@$(run_pytest)

wheel:
	$(call need,build pytest)@$(call make_wheel,$(WHEELS)) $(if $(WHEEL_TAG),--newest $(WHEEL_TAG))

gpu-test:
	$(call need,build pytest torch)@mkdir -p build
	$(call compile,release,attend_gpu_tests attend_cli)
	@$(install_wheel)
	@tools/gpu_test.py build/release/attend_gpu_tests build/release/attend .venv/bin/python $(GPU_RESULTS)/tests.json

emulated-test:
	$(call need,build)@mkdir -p build
	$(call compile,release,emulated_test attend_gpu_tests emulated_gpu)
	@build/release/tests/emulator/emulated_test
	@tools/emulated_gpu.sh build/release '*Score*:*BlockMask*'

bench-cpu:
	$(call need,build python)@mkdir -p build
	$(call compile,release)
	@.venv/bin/python bench/cpu_vs_torch.py --threads $(BENCH_THREADS)
	@.venv/bin/python bench/cpu_memory.py
	@.venv/bin/python bench/plot_cpu.py

docs:
	$(call need,build pytest docs)@mkdir -p build
	$(call compile,release,attend_cli fake_libcuda fake_libnvrtc)
	@$(install_wheel)
	@.venv/bin/python docs/site/build.py build/docs build/release

asan:
	$(call need,build)@mkdir -p build
	$(call compile,asan)
	$(call want,nvrtc)
	@ctest --preset asan --parallel $(JOBS) $(CTEST)

tsan:
	$(call need,build clang)@mkdir -p build
	$(call compile,tsan)
	$(call want,nvrtc)
	@ctest --preset tsan --parallel $(JOBS) $(CTEST)

fuzz:
	$(call need,build clang)@mkdir -p build
	$(call compile,fuzz)
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tools/fuzz.sh build/fuzz

sources = $(shell git ls-files '*.cpp' '*.hpp' '*.cuh' '*.c' '*.h')

lint:
	$(call need,lint)@tools/lint.sh

format:
	$(call need,lint)@.venv-lint/bin/clang-format -i $(sources)
	@.venv-lint/bin/ruff format --quiet

tidy:
	$(call need,build clang tidy pytest)@mkdir -p build
	@tools/tidy.sh $(JOBS) $(FILES)

install: build
	@cmake --install build/release --prefix $(PREFIX)

clean:
	@rm -rf build data experiment_results

help:
	@sed -n '/^# make/s/^# //p' Makefile
