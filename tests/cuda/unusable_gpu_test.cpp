// Tests the program on a machine with a GPU that it cannot use. The CPU must compute the result, and one line must
// explain why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/attend_program.hpp"
#include "io/temp_folder.hpp"

namespace attend::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class UnusableGpu : public testing::Test {
 protected:
  /// Runs the program with a GPU of compute capability `capability` and an NVRTC that compiles only for `nvrtc_arch`.
  /// Both numbers are 10 * major + minor. The number 0 means that the GPU or NVRTC is missing.
  [[nodiscard]] static ProgramResult attend(const std::vector<std::string>& arguments, int capability, int nvrtc_arch) {
    return run_attend(arguments, [capability, nvrtc_arch] {
      ::setenv("ATTEND_LIBCUDA_PATH", ATTEND_FAKE_LIBCUDA, 1);
      ::setenv("ATTEND_FAKE_CAPABILITY", std::to_string(capability).c_str(), 1);
      ::setenv("ATTEND_NVRTC_PATH", nvrtc_arch != 0 ? ATTEND_FAKE_LIBNVRTC : "/nowhere/libnvrtc.so", 1);
      ::setenv("ATTEND_FAKE_NVRTC_ARCH", std::to_string(nvrtc_arch).c_str(), 1);
    });
  }

  /// Runs the command `attend run --compute auto`, as `make run` does.
  [[nodiscard]] ProgramResult run(int capability, int nvrtc_arch) const {
    const auto made = run_attend({"generate", "--batch_size", "1", "--num_heads", "2", "--seq_len", "32", "--head_dim",
                                  "16", "--output_dir", folder_.path().string()});
    EXPECT_EQ(made.status, 0) << made.err;
    return attend(
        {"run", "--compute", "auto", "--mode", "both", "--data", (folder_ / "B1_H2_S32_D16").string(), "--check"},
        capability, nvrtc_arch);
  }

  TempFolder folder_;
};

TEST_F(UnusableGpu, OfAnUnknownCapabilityLeavesTheDefaultCommandToTheCpu) {
  const auto result = run(61, 75);
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("backend  cpu (chosen by auto; no GPU: device: compute capability 6.1"),
                                HasSubstr("PASS")));
}

TEST_F(UnusableGpu, ThatTheNvrtcDoesNotCompileForDoesToo) {
  const auto result = run(70, 75);
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("no GPU: device: compute capability 7.0, NVRTC 11.2"));
  EXPECT_THAT(result.out, HasSubstr("allows 7.5 and later"));
}

TEST_F(UnusableGpu, WithoutNvrtcDoesToo) {
  const auto result = run(90, 0);
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("no GPU: libnvrtc"), HasSubstr("PASS")));
}

TEST_F(UnusableGpu, AskedForByNameIsOneLineAndExitTwo) {
  const auto result = attend({"bench", "--device", "cuda"}, 61, 75);
  EXPECT_EQ(result.status, 2) << result.out;
  EXPECT_THAT(result.err, AllOf(HasSubstr("--device: 'cuda', but device: compute capability 6.1"),
                                HasSubstr("allowed those of sm_70, sm_75, sm_80")));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST_F(UnusableGpu, IsShownAsUnsupportedByInfo) {
  const auto text = attend({"info"}, 61, 75);
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("unsupported: device: compute capability 6.1"),
                              HasSubstr(std::string("libcuda   13.0, ") + ATTEND_FAKE_LIBCUDA),
                              HasSubstr(std::string("NVRTC     11.2, ") + ATTEND_FAKE_LIBNVRTC)));
  const auto gpu = nlohmann::json::parse(attend({"info", "--json"}, 61, 75).out)["devices"][1];
  EXPECT_FALSE(gpu["supported"].get<bool>());
  EXPECT_THAT(gpu["lack"].get<std::string>(), HasSubstr("6.1"));
}

// Checks the statements of docs/operations.md about the RTX 4090 (8.9), the B200 (10.0) and the RTX 5090 (12.0), and
// about older and newer GPUs.
TEST_F(UnusableGpu, ComputedByWhatItsGenerationHas) {
  const auto chosen = [](int capability, const std::string& problem, const std::string& dtype, bool softcap) {
    std::vector<std::string> line = {"info", "--explain", problem, "--dtype", dtype};
    if (softcap) line.insert(line.end(), {"--softcap", "30"});
    const std::string text = attend(line, capability, capability).out;
    std::string names;
    for (std::size_t at = text.find("\n* "); at != std::string::npos; at = text.find("\n* ", at + 1)) {
      names += (names.empty() ? "" : " ") + text.substr(at + 3, text.find(' ', at + 3) - at - 3);
    }
    return names;  // the names of the forward family and of the backward family
  };
  for (const int capability : {80, 89, 100, 120}) {
    EXPECT_EQ(chosen(capability, "2,16,8192,128", "bf16", false), "mma_qreg_async sm80_backward") << capability;
    EXPECT_EQ(chosen(capability, "2,16,8192,128", "f16", true), "sm80_forward sm80_backward") << capability;
    EXPECT_EQ(chosen(capability, "2,16,2048,96", "bf16", false), "sm80_forward sm80_backward") << capability;
    EXPECT_EQ(chosen(capability, "1,2,2048,512", "bf16", false), "sm80_forward simt") << capability;
    EXPECT_EQ(chosen(capability, "2,16,2048,128", "f32", false), "fa2 fa2") << capability;
    EXPECT_EQ(chosen(capability, "2,16,2048,128", "f32", true), "simt simt") << capability;
  }
  EXPECT_EQ(chosen(90, "2,16,8192,128", "bf16", true), "sm90_forward sm90_backward");
  for (const int capability : {70, 75}) {
    EXPECT_EQ(chosen(capability, "2,16,2048,64", "f16", false), "simt simt") << capability;
    EXPECT_EQ(chosen(capability, "2,16,2048,128", "f32", false), "simt simt") << capability;
  }
}

TEST_F(UnusableGpu, TheseKernelsRunBeforeCpAsync) {
  const auto text = attend({"info"}, 75, 75).out;
  const std::string line = text.substr(std::min(text.find("can use:"), text.size()));
  EXPECT_THAT(line.substr(0, line.find('\n')), AllOf(HasSubstr("naive"), HasSubstr("scalar2d_row_tile"),
                                                     HasSubstr("simt"), Not(HasSubstr("fa2,")), Not(HasSubstr("mma"))));
}

TEST_F(UnusableGpu, WithoutADriverInfoSaysSo) {
  const auto text = run_attend({"info"}, [] { ::setenv("ATTEND_NVRTC_PATH", "/nowhere/libnvrtc.so", 1); });
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("libcuda   none: libcuda"), HasSubstr("NVRTC     none: libnvrtc")));
}

}  // namespace
}  // namespace attend::test
