#include "cuda/jit_fixture.hpp"

#include <algorithm>
#include <cstdlib>

#include "attend/error.hpp"
#include "cuda/driver/nvrtc.hpp"

namespace attend::test {
namespace {

namespace fs = std::filesystem;

std::string look_for_nvrtc() {
  try {
    (void)cuda::Nvrtc::instance();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

std::string why_no_nvrtc() {
  std::string why = look_for_nvrtc();
  if (!why.empty() && std::getenv("ATTEND_NVRTC_PATH") == nullptr && fs::exists(ATTEND_TEST_VENV)) {
    // Installed by `tools/setup.sh nvrtc`; child processes inherit the variable.
    ::setenv("ATTEND_NVRTC_PATH", ATTEND_TEST_VENV, 1);
    why = look_for_nvrtc();
    if (!why.empty()) ::unsetenv("ATTEND_NVRTC_PATH");
  }
  return why;
}

JitTest::JitTest() {
  fs::create_directories(kernels_ / "common");
  write_file(kernels_ / "common" / "config_enums.cuh",
             "#pragma once\nnamespace attend {\nenum class MaskKind { kFull, kCausal };\n}\n");
  write_file(kernels_ / "common" / "tiny_args.cuh",
             "#pragma once\nnamespace attend {\nstruct TinyArgs { int* out; };\n}\n");
  write_file(kernels_ / "tiny.cuh",
             "#pragma once\n#include \"common/tiny_args.cuh\"\nnamespace attend {\ntemplate <class Config>\n"
             "__device__ void tiny(const TinyArgs& args) { *args.out = Config::kValue; }\n}\n");
}

cuda::KernelSpec JitTest::tiny_spec(int value, const std::string& arch) {
  return {.name = "tiny",
          .source = "tiny.cuh",
          .function = "tiny",
          .args = "TinyArgs",
          .config = {{"kThreads", std::int64_t{32}}, {"kValue", std::int64_t{value}}},
          .arch = arch};
}

std::unique_ptr<cuda::Jit> JitTest::new_jit() {
  return new_jit(cache_);
}

std::unique_ptr<cuda::Jit> JitTest::new_jit(const fs::path& cache_root) {
  return std::make_unique<cuda::Jit>(
      cuda::JitOptions{.cache_root = cache_root, .kernel_dir = kernels_, .print = [this](const std::string& line) {
                         printed_.push_back(line);
                       }});
}

std::vector<fs::path> JitTest::entries() const {
  std::vector<fs::path> paths;
  if (!fs::exists(cache_)) return paths;
  for (const auto& entry : fs::recursive_directory_iterator(cache_)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

cuda::Resources compiled_without_warnings(const cuda::KernelSpec& spec) {
  const cuda::Program program = cuda::make_program(spec, {});
  const cuda::CompileOutput output =
      cuda::Nvrtc::instance().compile(program.name, program.text, program.headers, program.options);
  EXPECT_FALSE(output.cubin.empty()) << output.log;
  const cuda::Resources resources = cuda::parse_ptxas_log(output.log, program.entry);
  for (const std::string& warning : resources.warnings) ADD_FAILURE() << spec.name << ": " << warning;
  return resources;
}

}  // namespace attend::test
