// Tests the allowed values of environment variables. For other values, a call on a GPU must fail with a one-line
// message. The GPU is a fake driver that runs simt's kernels on the host (fake_gpu.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "attend/attention.hpp"
#include "attend/error.hpp"
#include "core/environment.hpp"
#include "io/temp_folder.hpp"

namespace attend::test {
namespace {

using testing::ElementsAre;

constexpr const char* kName = "ATTEND_TEST_VARIABLE";

std::string refusal(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "nothing was refused";
}

TEST(Environment, UnsetAndEmptySayNothing) {
  constexpr std::string_view kAllowed[] = {"0", "1"};
  ::unsetenv(kName);
  EXPECT_EQ(core::environment(kName), nullptr);
  ::setenv(kName, "", 1);
  EXPECT_EQ(core::environment(kName), nullptr);
  EXPECT_EQ(core::environment_choice(kName, kAllowed), std::nullopt);
  EXPECT_TRUE(core::environment_list(kName, kAllowed).empty());
  EXPECT_EQ(core::environment_bytes(kName), std::nullopt);
}

TEST(Environment, ValuesAreTakenToTheLetterOrRefused) {
  constexpr std::string_view kAllowed[] = {"off", "on"};
  ::setenv(kName, "on", 1);
  EXPECT_EQ(core::environment_choice(kName, kAllowed), 1U);
  ::setenv(kName, "On", 1);
  EXPECT_EQ(refusal([&] { (void)core::environment_choice(kName, kAllowed, " here"); }),
            "ATTEND_TEST_VARIABLE: 'On', allowed here: off, on");
  ::setenv(kName, "on,off", 1);
  EXPECT_THAT(core::environment_list(kName, kAllowed), ElementsAre("on", "off"));
  ::setenv(kName, "on, off", 1);
  EXPECT_EQ(refusal([&] { (void)core::environment_list(kName, kAllowed); }),
            "ATTEND_TEST_VARIABLE: ' off', allowed: off, on, comma-separated");
}

TEST(Environment, BytesAsPeopleWriteThem) {
  EXPECT_EQ(core::bytes_text(0), "0 bytes");
  EXPECT_EQ(core::bytes_text(1), "1 byte");
  EXPECT_EQ(core::bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(core::bytes_text(std::uint64_t{1} << 30), "1.0 GiB");
  EXPECT_EQ(core::bytes_text(core::kUnlimitedBytes), "unlimited");
}

/// Makes a call on the fake GPU and exits. Runs in a separate process, because the library reads each variable only
/// once. The exit status is 0 if o is right. If the call is refused, prints the message to stderr and exits with 3.
[[noreturn]] void call_with(const char* name, const char* value) {
  const TempFolder cache;
  ::setenv("ATTEND_LIBCUDA_PATH", ATTEND_FAKE_GPU, 1);
  ::setenv("ATTEND_NVRTC_PATH", ATTEND_FAKE_GPU, 1);
  ::setenv("ATTEND_CACHE_DIR", cache.path().c_str(), 1);
  ::setenv(name, value, 1);
  float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, o[4] = {}, lse[1] = {};
  const auto on_gpu = [](float* data, std::int64_t rows) {
    Tensor t = Tensor::bhsd(data, DType::kF32, {1, 1, rows, 4});
    t.device = {DeviceType::kCUDA, 0};
    return t;
  };
  Tensor lse_view = Tensor::bhsd(lse, DType::kF32, {1, 1, 1, 1});
  lse_view.device = {DeviceType::kCUDA, 0};
  try {
    forward(on_gpu(x, 1), on_gpu(x, 2), on_gpu(x, 2), on_gpu(o, 1), &lse_view, {.scale = 0, .compute = "simt"});
  } catch (const Error& error) {
    std::fputs((error.what() + std::string("\n")).c_str(), stderr);
    std::_Exit(3);
  }
  std::_Exit(std::abs(o[0] - 3) < 1e-5F ? 0 : 1);  // 3 is the mean of the values 1 and 5
}

TEST(GpuEnvironmentDeathTest, AllowedValuesCompute) {
  for (const auto& [name, value] : {std::pair{"ATTEND_CHECK", "1"},
                                    {"ATTEND_CHECK", "0"},
                                    {"ATTEND_CHECK", ""},
                                    {"ATTEND_LOG", "compile"},
                                    {"ATTEND_LINE_INFO", "1"},
                                    {"ATTEND_CACHE_LIMIT", "0"},
                                    {"ATTEND_CACHE_LIMIT", "1MiB"},
                                    {"ATTEND_CACHE_LIMIT", "unlimited"}}) {
    EXPECT_EXIT(call_with(name, value), testing::ExitedWithCode(0), "") << name << "=" << value;
  }
}

TEST(GpuEnvironmentDeathTest, OtherValuesAreRefusedInOneLine) {
  EXPECT_EXIT(call_with("ATTEND_CHECK", "yes"), testing::ExitedWithCode(3), "^ATTEND_CHECK: 'yes', allowed: 0, 1\n$");
  EXPECT_EXIT(call_with("ATTEND_LOG", "all"), testing::ExitedWithCode(3),
              "^ATTEND_LOG: 'all', allowed: compile, comma-separated\n$");
  EXPECT_EXIT(call_with("ATTEND_LINE_INFO", "yes"), testing::ExitedWithCode(3),
              "^ATTEND_LINE_INFO: 'yes', allowed: 0, 1\n$");
  EXPECT_EXIT(call_with("ATTEND_CACHE_LIMIT", "big"), testing::ExitedWithCode(3),
              "^ATTEND_CACHE_LIMIT: 'big', allowed: 0, unlimited, [^\n]*\n$");
}

}  // namespace
}  // namespace attend::test
