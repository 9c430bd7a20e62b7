// Tests the command `attend compile`, and compiles every kernel of the library for its architectures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "attend/error.hpp"
#include "cuda/driver/nvrtc.hpp"
#include "cuda/jit_fixture.hpp"
#include "cuda/launch/family.hpp"
#include "io/attend_program.hpp"

namespace attend::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Sets an environment variable in the new process before the program starts.
void set(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 1);
}

class Compile : public NvrtcTest {
 protected:
  [[nodiscard]] ProgramResult attend(const std::vector<std::string>& arguments) const {
    return run_attend(arguments, [this] {
      set("ATTEND_CACHE_DIR", cache_.string());
      set("ATTEND_LOG", "compile");
    });
  }
};

/// Compiles kernel variants that together contain every value of every compile-time constant (covering_test.cpp).
/// ATTEND_TEST_ALL_KERNELS=1 compiles all variants, which takes twenty minutes on two cores.
TEST_F(Compile, EveryKernelForItsArchitecturesWithoutSpills) {
  const std::string path = (folder_ / "table.json").string();
  std::vector<std::string> command = {"compile", "--arch", "sm_75,sm_80,sm_90a,sm_120", "--json", path};
  if (std::getenv("ATTEND_TEST_ALL_KERNELS") == nullptr) command.emplace_back("--cover");
  const auto result = run_attend(command, [] { set("ATTEND_CACHE_DIR", ATTEND_TEST_KERNEL_CACHE); });
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  std::set<std::string> seen;
  for (const auto& row : nlohmann::json::parse(read_file(path))) {
    seen.insert(row["compute"].get<std::string>() + " " + row["arch"].get<std::string>());
    EXPECT_TRUE(row["passed"].get<bool>()) << row;
    EXPECT_GT(row["registers"].get<int>(), 0) << row;
    EXPECT_GE(row["stack_bytes"].get<int>(), 0) << row;
    EXPECT_GT(row["code_bytes"].get<int>(), 1000) << row;
    EXPECT_LT(row["seconds"].get<double>(), 30) << row;  // limit for the processor time
  }
  for (const cuda::Family* family : cuda::families()) {
    for (const char* arch : {"sm_75", "sm_80", "sm_90a", "sm_120"}) {
      EXPECT_EQ(seen.count(std::string(family->name) + " " + arch) == 1, family->supports(cuda::find_arch(arch)))
          << family->name << " " << arch;
    }
  }
}

/// sm_75 has 64 KB of shared memory per block, no cp.async and no conversion to bfloat16.
TEST_F(Compile, WhatIsNotForAnOldGpuIsTold) {
  const auto result = attend({"compile", "--arch", "sm_75", "--compute", "fa2"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("fa2                not for sm_75\n"));
}

TEST_F(Compile, TheLogSaysWhatWasCompiledAndWhatWasFound) {
  const std::vector<std::string> command = {"compile", "--compute", "naive", "--arch", "sm_90a", "--cover"};
  EXPECT_THAT(attend(command).err, AllOf(HasSubstr("compiled in"), HasSubstr("registers"), HasSubstr("spilled")));
  const auto again = attend(command);
  EXPECT_THAT(again.out, HasSubstr("cached"));
  EXPECT_THAT(again.err, AllOf(HasSubstr("found on disk"), testing::Not(HasSubstr("compiled in"))));
}

TEST_F(Compile, AFailureIsOneLineAndExitTwo) {
  std::filesystem::create_directories(folder_ / "empty");
  const auto result = run_attend({"compile"}, [this] {
    set("ATTEND_CACHE_DIR", cache_.string());
    set("ATTEND_KERNEL_DIR", (folder_ / "empty").string());
  });
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("ATTEND_KERNEL_DIR"), HasSubstr("ladder/")));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
}

TEST_F(Compile, AStackFrameWhereNoneIsClaimedFailsTheKernel) {
  std::filesystem::copy(ATTEND_KERNELS, folder_ / "planted", std::filesystem::copy_options::recursive);
  const std::filesystem::path kernel = folder_ / "planted" / "ladder" / "02_naive.cuh";
  std::string text = read_file(kernel);
  const std::string before = "  if (row >= args.seqlen_q) return;\n";
  ASSERT_THAT(text, HasSubstr(before));
  text.insert(text.find(before), "  volatile float wasted[64];\n  wasted[threadIdx.x % 64] = args.scale;\n");
  write_file(kernel, text);
  const auto result = run_attend({"compile", "--compute", "naive", "--arch", "sm_90a", "--cover"}, [this] {
    set("ATTEND_CACHE_DIR", cache_.string());
    set("ATTEND_KERNEL_DIR", (folder_ / "planted").string());
  });
  EXPECT_EQ(result.status, 1) << result.err;
  EXPECT_THAT(result.out, HasSubstr("FAIL"));
}

TEST_F(Compile, AFullDiskMeansMemoryOnlyAndOneWarning) {
  const auto result = run_attend({"compile", "--compute", "naive", "--cover"}, [this] {
    set("ATTEND_CACHE_DIR", cache_.string());
    constexpr rlimit kSmall = {4096, 4096};  // smaller than a cubin, so writing the cubin fails as on a full disk
    ::setrlimit(RLIMIT_FSIZE, &kSmall);
    std::signal(SIGXFSZ, SIG_IGN);
  });
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("in memory only"));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(entries().size(), 0U);
}

class NoNvrtc : public JitTest {};

TEST_F(NoNvrtc, WithoutItsBuiltinsLibraryIsOneLineThatNamesIt) {
  const auto result = run_attend({"compile"}, [this] {
    set("ATTEND_NVRTC_PATH", ATTEND_FAKE_LIBNVRTC);
    set("ATTEND_FAKE_NVRTC", "builtins");
    set("ATTEND_CACHE_DIR", cache_.string());
  });
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("libnvrtc-builtins.so.11.2 has to be in the folder of"),
                                HasSubstr(ATTEND_FAKE_LIBNVRTC), HasSubstr("what the log of the fake says")));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
  EXPECT_EQ(entries().size(), 0U);
}

TEST_F(NoNvrtc, TooOldForTheArchitectureIsOneLineWithItsVersion) {
  const auto result = run_attend({"compile"}, [this] {
    set("ATTEND_NVRTC_PATH", ATTEND_FAKE_LIBNVRTC);
    set("ATTEND_FAKE_NVRTC", "arch");
    set("ATTEND_CACHE_DIR", cache_.string());
  });
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("sm_80"), HasSubstr("11.2")));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
}

TEST_F(NoNvrtc, IsOneLineThatNamesTheFileAndThePlacesAndExitTwo) {
  const auto result = run_attend({"compile", "--json", (folder_ / "t.json").string()},
                                 [this] { set("ATTEND_NVRTC_PATH", (folder_ / "nothing").string()); });
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, AllOf(HasSubstr("libnvrtc"), HasSubstr((folder_ / "nothing").string()),
                                HasSubstr("pip install nvidia-cuda-nvrtc")));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "t.json"));
}

TEST_F(NoNvrtc, AFileThatIsNoLibraryIsNamedWithTheLoadersComplaint) {
  write_file(folder_ / "libnvrtc.so", "not a library");
  const auto result = run_attend({"compile"}, [this] { set("ATTEND_NVRTC_PATH", folder_.path().string()); });
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err, HasSubstr("libnvrtc.so: "));
}

TEST_F(NoNvrtc, ThePlacesSearchedFollowTheEnvironment) {
  std::filesystem::create_directories(folder_ / "lib/python3.11/site-packages");
  ::setenv("ATTEND_NVRTC_PATH", folder_.path().c_str(), 1);
  EXPECT_THAT(cuda::nvrtc_candidates(),
              testing::Contains((folder_ / "lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13").string()));
  ::unsetenv("ATTEND_NVRTC_PATH");
  ::setenv("CUDA_HOME", "/opt/cuda-test", 1);
  const auto places = cuda::nvrtc_candidates();
  ::unsetenv("CUDA_HOME");
  EXPECT_EQ(places.front(), "libnvrtc.so.13");  // the loader's default search path comes first
  EXPECT_THAT(places, AllOf(testing::Contains("/opt/cuda-test/lib64/libnvrtc.so.12"),
                            testing::Contains("/usr/local/cuda/lib64/libnvrtc.so")));
}

/// The fake NVRTC logs its options. If the library did not search the packages, the options would name a toolkit, or
/// the library would not call the compiler.
TEST_F(NoNvrtc, TheHeadersOfCuda12sPackagesAreFoundBesideItsNvrtc) {
  const std::filesystem::path nvidia = folder_ / "nvidia";
  const std::filesystem::path library = nvidia / "cuda_nvrtc" / "lib" / "libnvrtc.so.12";
  std::filesystem::create_directories(library.parent_path());
  std::filesystem::copy_file(ATTEND_FAKE_LIBNVRTC, library);
  for (const char* header : {"cuda_runtime/include/mma.h", "cuda_nvcc/include/crt/mma.h"}) {
    std::filesystem::create_directories((nvidia / header).parent_path());
    write_file(nvidia / header, "");
  }
  const auto result = run_attend({"compile", "--compute", "warp_wmma", "--arch", "sm_80"}, [&] {
    set("ATTEND_NVRTC_PATH", library.string());
    set("ATTEND_FAKE_NVRTC_ARCH", "80");  // other architectures are refused, so only the source fails to compile
    set("ATTEND_CACHE_DIR", cache_.string());
  });
  for (const char* package : {"cuda_runtime", "cuda_nvcc", "cuda_cccl"}) {
    EXPECT_THAT(result.err, HasSubstr("--include-path=" + (nvidia / package / "include").string()));
  }
}

TEST_F(NoNvrtc, NoPlaceIsSearchedTwice) {
  ::setenv("CUDA_HOME", "/usr/local/cuda/", 1);
  const auto places = cuda::nvrtc_candidates();
  ::unsetenv("CUDA_HOME");
  EXPECT_THAT(places, testing::Contains("/usr/local/cuda/lib64/libnvrtc.so.13").Times(1));
  EXPECT_THAT(places,
              testing::Each(testing::ResultOf(
                  [&](const std::string& place) { return std::count(places.begin(), places.end(), place); }, 1)));
}

}  // namespace
}  // namespace attend::test
