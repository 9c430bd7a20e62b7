// attend compile, and every kernel of the library for the architectures it is for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "attend/error.hpp"
#include "cuda/driver/nvrtc.hpp"
#include "cuda/jit_fixture.hpp"
#include "cuda/launch/catalog.hpp"
#include "io/attend_program.hpp"

namespace attend::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// In the new process, before the program starts.
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

TEST_F(Compile, EveryKernelForItsArchitecturesWithoutSpills) {
  const auto result = attend({"compile", "--json", (folder_ / "table.json").string()});
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  const auto table = nlohmann::json::parse(read_file(folder_ / "table.json"));
  std::set<std::string> seen;
  for (const auto& row : table) {
    seen.insert(row["compute"].get<std::string>() + " " + row["arch"].get<std::string>());
    EXPECT_TRUE(row["passed"].get<bool>()) << row;
    EXPECT_GT(row["registers"].get<int>(), 0) << row;
    EXPECT_GE(row["stack_bytes"].get<int>(), 0) << row;
    EXPECT_GT(row["code_bytes"].get<int>(), 1000) << row;
    EXPECT_LT(row["seconds"].get<double>(), 30) << row;  // on a busy machine
  }
  for (const cuda::CatalogEntry& kernel : cuda::catalog()) {
    for (const char* arch : {"sm_80", "sm_90a", "sm_120"}) {
      EXPECT_EQ(seen.count(std::string(kernel.name) + " " + arch) == 1, kernel.supports(cuda::find_arch(arch)))
          << kernel.name << " " << arch;
    }
  }
  EXPECT_THAT(result.err, AllOf(HasSubstr("compiled in"), HasSubstr("registers"), HasSubstr("spilled")));
  const auto again = attend({"compile", "--arch", "sm_90a"});
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

class NoNvrtc : public JitTest {};

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
  EXPECT_EQ(places.front(), "libnvrtc.so.13");  // the loader's own path first
  EXPECT_THAT(places, AllOf(testing::Contains("/opt/cuda-test/lib64/libnvrtc.so.12"),
                            testing::Contains("/usr/local/cuda/lib64/libnvrtc.so")));
}

}  // namespace
}  // namespace attend::test
