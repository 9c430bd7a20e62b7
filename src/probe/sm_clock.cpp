#include "probe/sm_clock.hpp"

#include <array>

#include "cuda/driver/device.hpp"
#include "cuda/driver/kernel.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/jit/jit.hpp"

namespace attend::cuda {

double sm_clock_mhz(int device, StreamHandle stream) {
  struct {
    DevicePointer cycles_and_ns;
    std::int64_t least_ns;
  } args = {0, 200'000};  // must match ClockArgs of kernels/probe/sm_clock.cuh
  const KernelSpec spec = {.name = "sm_clock",
                           .source = "probe/sm_clock.cuh",
                           .function = "sm_clock",
                           .args = "ClockArgs",
                           .config = {{"kThreads", 1}},
                           .arch = device_info(device).arch().target};
  const auto kernel = Jit::instance().load(spec, device);
  std::array<std::int64_t, 2> cycles_and_ns = {};
  const Scratch result(sizeof(cycles_and_ns), stream);
  args.cycles_and_ns = result.data();
  void* parameters[] = {&args};
  kernel->launch({}, parameters, stream);
  result.copy_to_host(cycles_and_ns.data(), sizeof(cycles_and_ns));
  synchronize(stream);
  return 1000.0 * static_cast<double>(cycles_and_ns[0]) / static_cast<double>(cycles_and_ns[1]);
}

}  // namespace attend::cuda
