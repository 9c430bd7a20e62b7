// Tests the driver's wrappers with a fake driver: which functions they call, in which context, and how they report
// errors.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "attend/attention.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/kernel.hpp"
#include "cuda/driver/memory_pool.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/fake_libcuda.hpp"

namespace attend::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

// Must be the first test, because the library keeps the fake driver once it is loaded.
TEST(NoDriver, IsOneLineAndNotRememberedAsFinal) {
  ::setenv("ATTEND_LIBCUDA_PATH", "/nowhere/libcuda.so.1", 1);
  const std::string line = refusal([] { (void)cuda::device_count(); });
  EXPECT_THAT(line, AllOf(HasSubstr("libcuda"), HasSubstr("/nowhere/libcuda.so.1"), HasSubstr("--compute cpu")));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  ::setenv("ATTEND_LIBCUDA_PATH", ATTEND_FAKE_LIBCUDA, 1);
  EXPECT_EQ(cuda::device_count(), 2);
}

class DriverTest : public testing::Test {
 protected:
  DriverTest() {
    ::setenv("ATTEND_LIBCUDA_PATH", ATTEND_FAKE_LIBCUDA, 1);
    void* library = dlopen(ATTEND_FAKE_LIBCUDA, RTLD_NOW);
    EXPECT_NE(library, nullptr) << dlerror();
    fake_ = reinterpret_cast<decltype(&attend_fake_cuda)>(dlsym(library, "attend_fake_cuda"))();
    *fake_ = {};
  }
  ~DriverTest() override { EXPECT_EQ(fake_->pushes, fake_->pops) << "a context was left current"; }

  [[nodiscard]] static cuda::Kernel kernel(unsigned dynamic_smem_bytes = 0) {
    static constexpr std::array<std::byte, 4> kCubin = {};
    return {0, kCubin, "attend_x", "x<kHeadDim=64> sm_90a", dynamic_smem_bytes};
  }

  FakeCuda* fake_;
};

TEST_F(DriverTest, Device) {
  EXPECT_EQ(cuda::device_count(), 2);
  const cuda::DeviceInfo& info = cuda::device_info(0);
  EXPECT_EQ(info.name, "Fake GPU");
  EXPECT_EQ(info.num_multiprocessors, 132);
  EXPECT_EQ(info.max_smem_per_block, 232448);
  EXPECT_STREQ(info.arch().target, "sm_90a");
  // The library's table does not contain capability 9.7.
  EXPECT_THAT(refusal([] { (void)cuda::device_info(1).arch(); }), HasSubstr("9.7"));
  EXPECT_THAT(refusal([] { (void)cuda::device_info(2); }), AllOf(HasSubstr("device: 2"), HasSubstr("0 to 1")));
  EXPECT_THAT(refusal([] { (void)cuda::device_info(-1); }), HasSubstr("device: -1"));
}

TEST_F(DriverTest, GuardsNestAndRestore) {
  {
    const cuda::ContextGuard outer(1);
    EXPECT_EQ(fake_->current, 2);
    {
      const cuda::ContextGuard inner(0);
      EXPECT_EQ(fake_->current, 1);
    }
    EXPECT_EQ(fake_->current, 2);
    EXPECT_THROW(cuda::ContextGuard(5), Error);
    EXPECT_EQ(fake_->current, 2);
  }
  EXPECT_EQ(fake_->current, 0);
}

TEST_F(DriverTest, LaunchShapes) {
  const cuda::Kernel plain = kernel();
  EXPECT_EQ(fake_->attribute_calls, 0);  // up to 48 KiB of shared memory need no attribute
  plain.launch({.grid = {7, 2, 1}, .block = {128, 1, 1}}, {}, nullptr);
  EXPECT_EQ(fake_->launch.grid_x, 7U);
  EXPECT_EQ(fake_->launch.block_x, 128U);
  EXPECT_EQ(fake_->cluster_x, 0U);
  const cuda::Kernel large = kernel(200 * 1024);
  EXPECT_EQ(fake_->max_dynamic_smem, 200 * 1024);
  large.launch({.grid = {8, 1, 1}, .block = {384, 1, 1}, .cluster = {2, 1, 1}, .dynamic_smem_bytes = 1024}, {},
               nullptr);
  large.launch({.grid = {8, 1, 1}, .block = {384, 1, 1}, .dynamic_smem_bytes = 200 * 1024}, {}, nullptr);
  // The attribute is set only once, when the kernel is loaded. If each launch set it, a launch with little shared
  // memory would lower the limit for other launches.
  EXPECT_EQ(fake_->attribute_calls, 1);
  EXPECT_EQ(fake_->launches, 3);
  EXPECT_THAT(refusal([&] { large.launch({.dynamic_smem_bytes = 201 * 1024}, {}, nullptr); }), HasSubstr("loaded for"));
}

TEST_F(DriverTest, ErrorsNameTheCallTheErrorAndTheWork) {
  fake_->failing = "cuLaunchKernelEx";
  const cuda::Kernel k = kernel();
  EXPECT_THAT(
      refusal([&] {
        k.launch({.grid = {3, 1, 1}, .block = {64, 1, 1}}, {}, nullptr);
      }),
      AllOf(HasSubstr("cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE (invalid argument) while launching x<kHeadDim=64>"),
            HasSubstr("grid (3, 1, 1)"), HasSubstr("block (64, 1, 1)")));
  fake_->failing = "cuModuleLoadData";
  EXPECT_THAT(refusal([] { (void)kernel(); }),
              AllOf(HasSubstr("cuModuleLoadData"), HasSubstr("x<kHeadDim=64> sm_90a")));
  for (const char* call : {"cuModuleGetFunction", "cuFuncSetAttribute"}) {
    fake_->failing = call;
    EXPECT_THAT(refusal([] { (void)kernel(100 * 1024); }), HasSubstr(call));
    EXPECT_EQ(fake_->modules, 1) << "leaked";  // only the module of the first kernel is loaded
  }
  fake_->failing = "cuMemAllocFromPoolAsync";
  EXPECT_THAT(refusal([] { const cuda::Scratch scratch(100, nullptr); }), HasSubstr("100 bytes of scratch"));
  fake_->failing = "";
  { const cuda::Scratch scratch(100, nullptr); }
  { const cuda::Scratch nothing(0, nullptr); }
  EXPECT_EQ(fake_->allocations, 0);
}

TEST_F(DriverTest, ThePoolIsCountedToTheByteWithItsPeak) {
  EXPECT_EQ(cuda::memory_pool_usage(1).used_peak, 0U);  // the pool of device 1 is not used yet
  {
    const cuda::Scratch first(1000, nullptr);
    { const cuda::Scratch second(234, nullptr); }
    const cuda::PoolUsage usage = cuda::memory_pool_usage(0);
    EXPECT_EQ(usage.used, 1000U);
    EXPECT_EQ(usage.used_peak, 1234U);
    cuda::reset_memory_pool_peaks(0);
    // The wrapper returns the current use, although the driver reports 0.
    EXPECT_EQ(cuda::memory_pool_usage(0).used_peak, 1000U);
  }
  EXPECT_EQ(cuda::memory_pool_usage(0).used, 0U);
  fake_->failing = "cuMemPoolGetAttribute";
  EXPECT_THAT(refusal([] { (void)cuda::memory_pool_usage(0); }), HasSubstr("cuMemPoolGetAttribute"));
  EXPECT_THAT(refusal([] { (void)cuda::memory_pool_usage(2); }), HasSubstr("device: 2"));
}

TEST_F(DriverTest, TensorMapsNeedADriverThatHasThem) {
  EXPECT_THAT(refusal([] { (void)cuda::encode_tensor_map({}); }), HasSubstr("cuTensorMapEncodeTiled"));
}

TEST(NoDriver, IsNotTouchedByTheCpuBackends) {
  ::setenv("ATTEND_LIBCUDA_PATH", "/nowhere/libcuda.so.1", 1);
  EXPECT_FALSE(backends().empty());
  float x[4] = {1, 2, 3, 4}, o[4] = {};
  const Tensor t = Tensor::bhsd(x, DType::kF32, {1, 1, 1, 4});
  const Tensor out = Tensor::bhsd(o, DType::kF32, {1, 1, 1, 4});
  forward(t, t, t, out);
  EXPECT_EQ(o[3], 4);
}

}  // namespace
}  // namespace attend::test
