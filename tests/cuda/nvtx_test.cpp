// Tests the NVTX ranges of the library's calls. A fake NVTX library records them.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "attend/attention.hpp"
#include "cuda/driver/nvtx.hpp"

namespace attend::test {
namespace {

/// Calls forward on the CPU with one query row, two keys and head_dim 4.
void call(std::int64_t columns_of_v = 4) {
  float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, o[4] = {};
  const Tensor q = Tensor::bhsd(x, DType::kF32, {1, 1, 1, 4}), k = Tensor::bhsd(x, DType::kF32, {1, 1, 2, 4});
  forward(q, k, Tensor::bhsd(x, DType::kF32, {1, 1, 2, columns_of_v}), Tensor::bhsd(o, DType::kF32, {1, 1, 1, 4}));
}

/// Returns whether the fake NVTX library is loaded in this process.
bool is_loaded() {
  return dlopen(ATTEND_FAKE_LIBNVTX, RTLD_NOW | RTLD_NOLOAD) != nullptr;
}

// These tests run first, each in a separate process, because the library keeps the NVTX library that it finds at the
// first range.
TEST(NvtxDeathTest, WithoutAToolNothingIsLoaded) {
  EXPECT_EXIT(
      {
        ::unsetenv("NVTX_INJECTION64_PATH");
        ::unsetenv("ATTEND_NVTX_PATH");
        bool asked = false;
        const cuda::NvtxRange range([&] {
          asked = true;
          return std::string("nobody listens");
        });
        call();
        std::_Exit(asked || is_loaded() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(NvtxDeathTest, AToolWithoutTheLibraryCostsNothing) {
  EXPECT_EXIT(
      {
        ::setenv("NVTX_INJECTION64_PATH", "/nowhere/libtool.so", 1);
        ::unsetenv("ATTEND_NVTX_PATH");
        call();
        std::_Exit(is_loaded() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(NvtxDeathTest, ANamedLibraryThatIsNotThereIsRefusedInOneLine) {
  EXPECT_EXIT(
      {
        ::setenv("ATTEND_NVTX_PATH", "/nowhere/libnvtx.so", 1);
        try {
          call();
          std::_Exit(1);
        } catch (const Error& error) {
          const std::string line = error.what();
          const bool good = line.find("ATTEND_NVTX_PATH: not found; searched /nowhere/libnvtx.so; unset it") == 0;
          std::_Exit(good && line.find('\n') == std::string::npos ? 0 : 2);
        }
      },
      testing::ExitedWithCode(0), "");
}

TEST(Nvtx, EachCallIsARangeThatEndsWithItAlsoWhereItIsRefused) {
  ::setenv("ATTEND_NVTX_PATH", ATTEND_FAKE_LIBNVTX, 1);
  call();
  EXPECT_THROW(call(3), Error);
  void* library = dlopen(ATTEND_FAKE_LIBNVTX, RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto text = reinterpret_cast<const char* (*)()>(dlsym(library, "attend_fake_nvtx_log"));
  const auto depth = reinterpret_cast<int (*)()>(dlsym(library, "attend_fake_nvtx_depth"));
  const std::string line = "attend::forward (1, 1, 1, 4) f32, 2 keys, auto\n";
  EXPECT_EQ(text(), line + line);
  float x[8] = {}, o[4] = {};
  const Tensor q = Tensor::bhsd(x, DType::kF32, {1, 1, 1, 4}), k = Tensor::bhsd(x, DType::kF32, {1, 1, 2, 4});
  const Plan planned = plan(ForwardCall{.q = q, .k = k, .v = k, .o = Tensor::bhsd(o, DType::kF32, {1, 1, 1, 4})});
  EXPECT_EQ(text(), line + line) << "a plan runs nothing";
  planned.run();
  EXPECT_EQ(text(), line + line + "attend::forward (1, 1, 1, 4) f32, 2 keys, cpu\n");
  EXPECT_EQ(depth(), 0);
}

}  // namespace
}  // namespace attend::test
