#include "gpu/gpu.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/shared_library.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/jit/jit.hpp"
#include "cuda/jit/sources.hpp"
#include "cuda/launch/family.hpp"
#include "dispatch/dispatch.hpp"
#include "support/compare.hpp"

namespace attend::test {
namespace {

/// Allocates managed memory. The pages of managed memory move to the device that accesses them, so checks on the host
/// can read or poison the memory directly.
std::shared_ptr<std::byte> allocate_managed(std::size_t bytes) {
  using AllocManaged = int (*)(cuda::DevicePointer*, std::size_t, unsigned);
  using Free = int (*)(cuda::DevicePointer);
  static const cuda::SharedLibrary library("libcuda", {cuda::driver().path}, "");
  static const auto alloc = reinterpret_cast<AllocManaged>(library.require("cuMemAllocManaged"));
  static const auto release = reinterpret_cast<Free>(library.require("cuMemFree_v2"));
  constexpr unsigned kAttachGlobal = 1;
  const cuda::ContextGuard guard(0);
  cuda::DevicePointer pointer = 0;
  if (const int result = alloc(&pointer, bytes, kAttachGlobal); result != 0) {
    throw std::runtime_error("cuMemAllocManaged: error " + std::to_string(result));
  }
  return {reinterpret_cast<std::byte*>(pointer), [](std::byte* memory) {
            const cuda::ContextGuard inner(0);
            release(reinterpret_cast<cuda::DevicePointer>(memory));
          }};
}

/// Collects every comparison of the run and writes them to $ATTEND_GPU_REPORT. block_err and block_budget belong to the
/// block of rows with the largest ratio of error to budget.
class Report : public testing::Environment {
 public:
  void add(std::string_view compute, const AttentionCase& c, const std::vector<TensorCheck>& checks) {
    nlohmann::ordered_json entry = {{"compute", compute}, {"case", describe(c)}};
    bool passed = true;
    for (const TensorCheck& check : checks) {
      const Comparison& r = check.comparison;
      entry["tensors"].push_back(
          {{"name", check.name}, {"max_abs_err", r.error}, {"block_err", r.block_error}, {"block_budget", r.budget}});
      passed = passed && r.ok;
    }
    entry["passed"] = passed;
    const std::lock_guard lock(mutex_);
    cases_.push_back(std::move(entry));
  }

  void TearDown() override {
    const char* path = std::getenv("ATTEND_GPU_REPORT");
    if (path == nullptr || !missing_gpu().empty()) return;
    const nlohmann::ordered_json report = {{"device", cuda::device_info(0).name},
                                           {"driver", cuda::driver().version},
                                           {"kernel_digest", cuda::kernel_digest()},
                                           {"cases", cases_}};
    std::ofstream(path) << report.dump() << '\n';
  }

 private:
  std::mutex mutex_;
  nlohmann::ordered_json cases_ = nlohmann::ordered_json::array();
};

Report* const report = [] {
  auto* environment = new Report();
  testing::AddGlobalTestEnvironment(environment);  // GoogleTest takes ownership
  return environment;
}();

BackwardExtras extras_of(const Inputs& in, const Outputs& out) {
  BackwardExtras extras;
  if (in.dlse) extras.dlse = in.dlse->view();
  if (out.dbias) extras.dbias = out.dbias->view();
  if (out.dsinks) extras.dsinks = out.dsinks->view();
  return extras;
}

}  // namespace

const std::string& missing_gpu() {
  static const std::string why = cuda::missing_gpu().value_or("");
  return why;
}

void GpuTest::SetUp() {
  if (!missing_gpu().empty()) GTEST_SKIP() << missing_gpu();
  set_tensor_memory(allocate_managed);
}

void AmpereTest::SetUp() {
  GpuTest::SetUp();
  if (!IsSkipped() && !cuda::device_info(0).arch().cp_async) GTEST_SKIP() << "no cp.async";
}

void HopperTest::SetUp() {
  GpuTest::SetUp();
  if (!IsSkipped() && !cuda::device_info(0).arch().wgmma) GTEST_SKIP() << "no wgmma";
}

bool supports(std::string_view compute, const Inputs& in) {
  const Outputs out = make_outputs(in);
  core::Problem p = core::make_forward_problem(in.q.view(), in.k.view(), in.v.view(), out.o.view(), &out.lse.view(),
                                               in.params(compute));
  p.q.device = {DeviceType::kCUDA, 0};
  return !dispatch::lack_of(*dispatch::find_backend(compute), p).has_value();
}

void check_backend(std::string_view compute, const Inputs& in) {
  const std::vector<TensorCheck> checks = compare_with_reference(in, compute);
  std::string line = std::string(compute) + "  " + describe(in.options);
  for (const TensorCheck& check : checks) {
    char text[64];
    std::snprintf(text, sizeof(text), "  %s %.2e of %.2e", check.name.c_str(), check.comparison.block_error,
                  check.comparison.budget);
    line += text;
  }
  std::puts(line.c_str());
  report->add(compute, in.options, checks);
}

void compile_ahead(std::string_view compute, const std::vector<AttentionCase>& cases, int max_smem_per_block) {
  cuda::DeviceInfo device = cuda::device_info(0);
  if (max_smem_per_block > 0) device.max_smem_per_block = max_smem_per_block;
  std::vector<cuda::KernelSpec> specs;
  std::set<std::string> seen;
  for (const AttentionCase& c : cases) {
    const Inputs in = make_inputs(c);
    const Outputs out = make_outputs(in);
    for (const bool backward : {false, true}) {
      if (backward && !cuda::find_family(compute)->has_backward) continue;
      core::Problem p = core::make_forward_problem(in.q.view(), in.k.view(), in.v.view(), out.o.view(), &out.lse.view(),
                                                   in.params(compute));
      p.q.device = {DeviceType::kCUDA, 0};
      const bool by_itself = backward || cuda::find_family(compute)->has_forward;
      const cuda::Family& family = *cuda::find_family(by_itself ? compute : dispatch::choose("auto", p).name);
      if (backward) {
        p = core::make_backward_problem(in.dout.view(), in.q.view(), in.k.view(), in.v.view(), out.o.view(),
                                        out.lse.view(), out.dq.view(), out.dk.view(), out.dv.view(), in.params(compute),
                                        extras_of(in, out));
      }
      for (cuda::KernelSpec& spec : family.kernels(family.choose(p, device).variant, device.arch())) {
        if (seen.insert(cuda::identity(spec)).second) specs.push_back(std::move(spec));
      }
    }
  }
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> workers;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
    workers.emplace_back([&] {
      for (std::size_t at = next++; at < specs.size(); at = next++) (void)cuda::Jit::instance().compile(specs[at]);
    });
  }
  workers.clear();  // joins the threads
  std::printf("%zu kernels for %zu cases\n", specs.size(), cases.size());
}

CapturedGraph::CapturedGraph(cuda::StreamHandle stream, const std::function<void()>& submit) : stream_(stream) {
  const auto begin = driver_function<int (*)(void*, int)>("cuStreamBeginCapture_v2");
  const auto end = driver_function<int (*)(void*, void**)>("cuStreamEndCapture");
  const auto instantiate = driver_function<int (*)(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags");
  constexpr int kGlobal = 0;  // CU_STREAM_CAPTURE_MODE_GLOBAL, the strictest mode: unsafe calls fail in every thread
  EXPECT_EQ(begin(stream_, kGlobal), 0);
  submit();
  EXPECT_EQ(end(stream_, &graph_), 0);
  EXPECT_EQ(instantiate(&exec_, graph_, 0), 0);
}

CapturedGraph::~CapturedGraph() {
  driver_function<int (*)(void*)>("cuGraphExecDestroy")(exec_);
  driver_function<int (*)(void*)>("cuGraphDestroy")(graph_);
}

void CapturedGraph::launch_on(cuda::StreamHandle stream) {
  EXPECT_EQ(driver_function<int (*)(void*, void*)>("cuGraphLaunch")(exec_, stream), 0);
}

}  // namespace attend::test
