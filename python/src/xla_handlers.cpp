#include "xla_handlers.hpp"

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "arguments.hpp"
#include "attend/attention.hpp"
#include "cpu/parallel.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "xla_call.hpp"
#include "xla_ffi.hpp"

namespace attend::python {
namespace {

thread_local bool runs_for_xla = false;

/// Records that the current thread runs a custom call, as long as the object exists.
class ThreadOfXla {
 public:
  ThreadOfXla() : outer_(std::exchange(runs_for_xla, true)) {}
  ~ThreadOfXla() { runs_for_xla = outer_; }
  ThreadOfXla(const ThreadOfXla&) = delete;
  ThreadOfXla& operator=(const ThreadOfXla&) = delete;

 private:
  bool outer_;
};

/// A thread that runs the CPU calls of all other threads, one at a time. XLA may run custom calls on any of its
/// threads. OpenMP keeps a team of threads for each thread that has run a parallel region. Without this class, calls
/// from N threads would therefore create N teams of N threads. The thread runs until the process ends.
class CpuThread {
 public:
  static CpuThread& instance() {
    static auto* const only = new CpuThread();  // never destroyed, because calls may continue during process exit
    return *only;
  }

  /// Runs `work` on the thread and waits until it is complete. Throws the exception that `work` throws.
  void run(const std::function<void()>& work) {
    const std::lock_guard lock(one_at_a_time_);
    const std::uint32_t before = finished_.load(std::memory_order_relaxed);
    Job job = {.work = &work};
    waiting_.store(&job, std::memory_order_release);
    waiting_.notify_one();
    finished_.wait(before, std::memory_order_acquire);
    if (job.failure) std::rethrow_exception(job.failure);
  }

 private:
  struct Job {
    const std::function<void()>* work;
    std::exception_ptr failure = {};
  };

  CpuThread() {
    std::thread([this] { serve(); }).detach();
  }

  [[noreturn]] void serve() {
    runs_for_xla = true;
    while (true) {
      waiting_.wait(nullptr, std::memory_order_acquire);
      Job* const job = waiting_.exchange(nullptr, std::memory_order_acquire);
      try {
        (*job->work)();
      } catch (...) {
        job->failure = std::current_exception();
      }
      finished_.fetch_add(1, std::memory_order_release);
      finished_.notify_one();
    }
  }

  std::mutex one_at_a_time_;
  std::atomic<Job*> waiting_ = nullptr;
  std::atomic<std::uint32_t> finished_ = 0;  // number of calls that have finished
};

void run_on_cpu(const std::function<void()>& work) {
  const ThreadOfXla mark;
  if (cpu::forked()) return work();  // the thread does not exist in a forked process
  CpuThread::instance().run(work);
}

/// Returns the GPU that XLA has made current for the call. Interface version 0.1 does not pass the index of the GPU.
Device current_gpu() {
  cuda::ContextHandle context = nullptr;
  cuda::check_call(cuda::driver().context_get(&context), "cuCtxGetCurrent", "a custom call of XLA");
  if (context == nullptr && cuda::device_count() == 1) return {DeviceType::kCUDA, 0};
  cuda::DeviceIndex handle = {};
  cuda::check_call(cuda::driver().context_device(&handle), "cuCtxGetDevice", "a custom call of XLA");
  for (int index = 0; index < cuda::device_count(); ++index) {
    if (cuda::device_handle(index) == handle) return {DeviceType::kCUDA, index};
  }
  throw Error(ErrorCode::kInternal, "custom call of attend: the current GPU is none of this process");
}

Stream stream_of(const xla::CallFrame& frame) {
  xla::StreamGetArgs args = {.struct_size = sizeof args, .extension = nullptr, .context = frame.context, .stream = {}};
  if (frame.api->stream_get(&args) != nullptr) {
    throw Error(ErrorCode::kInternal, "custom call of attend: XLA gives no stream");
  }
  return args.stream;
}

enum class Pass { kForward, kBackward };

template <Pass pass>
void compute_on_cpu(const xla::CallFrame& frame) {
  const xla::FrameCall call(frame, {});
  run_on_cpu([&] {
    if constexpr (pass == Pass::kForward) {
      attend::forward(call.forward(nullptr));
    } else {
      attend::backward(call.backward(nullptr));
    }
  });
}

/// Runs a call on a GPU. The kernels are compiled in a stage before execution, because XLA may record the execution in
/// a CUDA graph.
template <Pass pass>
void compute_on_cuda(const xla::CallFrame& frame) {
  const ThreadOfXla mark;
  const bool runs = frame.stage == xla::Stage::kExecute;
  const xla::FrameCall call(frame, current_gpu());
  // The buffers have no addresses yet, so the kernels are compiled during execution.
  if (!runs && call.frame.array("q").data == nullptr) return;
  const Stream stream = runs ? stream_of(frame) : nullptr;
  const Plan plan = [&] {
    if constexpr (pass == Pass::kForward) {
      return attend::plan(call.forward(stream));
    } else {
      return attend::plan(call.backward(stream));
    }
  }();
  if (!runs) return plan.prepare();
  // The front end computes the size of the workspace for the first GPU. If another GPU needs a larger workspace, the
  // library allocates it from its memory pool.
  const bool fits = call.workspace.bytes >= plan.workspace_bytes();
  plan.run(fits ? call.workspace : WorkspaceView{});
}

xla::ErrorCode code_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
      return xla::ErrorCode::kInvalidArgument;
    case ErrorCode::kUnsupported:
      return xla::ErrorCode::kUnimplemented;
    default:
      return xla::ErrorCode::kInternal;
  }
}

xla::Error* refused(const xla::CallFrame& frame, const char* message, xla::ErrorCode code) {
  xla::ErrorCreateArgs args = {.struct_size = sizeof args, .extension = nullptr, .message = message, .code = code};
  return frame.api->error_create(&args);
}

/// An XLA handler that runs `compute`. It catches all exceptions and returns them as errors.
template <void (*compute)(const xla::CallFrame&), std::uint32_t traits>
xla::Error* handler(xla::CallFrame* frame) {
  if (frame->extension != nullptr && frame->extension->type == xla::MetadataExtension::kType) {
    xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(frame->extension)->metadata;
    metadata.version = {sizeof(xla::Version), nullptr, xla::kMajor, xla::kMinor};
    metadata.traits = traits;
    return nullptr;
  }
  if (frame->stage != xla::Stage::kExecute && frame->stage != xla::Stage::kInitialize) return nullptr;
  try {
    compute(*frame);
    return nullptr;
  } catch (const Error& error) {
    return refused(*frame, in_pythons_words(error.what()).c_str(), code_of(error));
  } catch (const std::exception& error) {
    return refused(*frame, error.what(), xla::ErrorCode::kInternal);
  } catch (...) {
    return refused(*frame, "custom call of attend: failed", xla::ErrorCode::kInternal);
  }
}

template <Pass pass>
nb::dict handlers_of() {
  const auto capsule = [](xla::Handler* function) { return nb::capsule(reinterpret_cast<void*>(function)); };
  xla::Handler* const on_cuda = handler<compute_on_cuda<pass>, xla::kCommandBufferCompatible>;
  nb::dict of_cuda, handlers;
  of_cuda["initialize"] = capsule(on_cuda);
  of_cuda["execute"] = capsule(on_cuda);
  handlers["cpu"] = capsule(handler<compute_on_cpu<pass>, 0>);
  handlers["CUDA"] = of_cuda;
  return handlers;
}

/// Returns the handlers as {"forward": {"cpu": capsule, "CUDA": {stage: capsule}}, "backward": ...}.
nb::dict xla_handlers() {
  nb::dict handlers;
  handlers["forward"] = handlers_of<Pass::kForward>();
  handlers["backward"] = handlers_of<Pass::kBackward>();
  return handlers;
}

/// Returns the size in bytes of the workspace for a call. The arguments are those of `explain`.
std::size_t workspace_bytes(nb::handle q_in, nb::handle k_in, nb::handle v_in, nb::handle o_in, nb::handle lse_in,
                            nb::handle gradients, nb::handle extras, nb::handle settings) {
  const Call call(q_in, k_in, v_in, o_in, lse_in, gradients, extras, settings);
  return (call.gradients ? plan(call.backward()) : plan(call.forward())).workspace_bytes();
}

}  // namespace

bool is_thread_of_xla() {
  return runs_for_xla;
}

void add_xla_handlers(nb::module_& m) {
  m.def("xla_handlers", &xla_handlers);
  m.def("workspace_bytes", &workspace_bytes, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("o"),
        nb::arg("lse").none(), nb::arg("gradients").none(), nb::arg("extras"), nb::arg("settings"));
}

}  // namespace attend::python
