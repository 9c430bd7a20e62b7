// Stubs of every driver function that the library may call. fake_libcuda.cpp replaces some of them.
#include "cuda/driver/driver.hpp"
#include "cuda/fake_libcuda.hpp"

using namespace attend::cuda;

attend::test::FakeCuda* attend_fake_cuda() {
  static attend::test::FakeCuda state;
  return &state;
}

#define ATTEND_FAKE(member, symbol, parameters)                     \
  extern "C" __attribute__((weak)) DriverResult symbol parameters { \
    return attend_fake_cuda()->failing == #symbol ? 1 : 0;          \
  }
ATTEND_DRIVER_FUNCTIONS(ATTEND_FAKE)
