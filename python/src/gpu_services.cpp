// GPU functions for the Python package: they allocate memory, synchronise streams, and list the GPUs.
#include "gpu_services.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attend/error.hpp"
#include "baseline/scaled_softmax.hpp"
#include "core/dtype_traits.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/found_libraries.hpp"
#include "cuda/driver/memory_pool.hpp"
#include "cuda/driver/stream.hpp"
#include "cuda/jit/sources.hpp"
#include "cuda/launch/family.hpp"

namespace attend::python {
namespace {

/// GPU memory from the library's pool. A Python array owns it.
struct OwnedMemory {
  cuda::DevicePointer data = 0;
  int index = 0;
  cuda::StreamHandle stream = nullptr;
  // Python object that keeps the stream alive, if the memory is freed in the order of that stream. Otherwise None.
  nb::object stream_owner;

  ~OwnedMemory() {
    if (data == 0) return;
    try {
      const cuda::ContextGuard context(index);
      // Waits for all streams, because the array does not record which streams use its memory.
      if (stream_owner.is_none()) cuda::driver().context_synchronize();
      cuda::driver().mem_free_async(data, stream);
    } catch (const Error&) {
      // The driver has already shut down. In this case the driver has freed the memory too.
    }
  }
};

DType named(const char* caller, const std::string& dtype) {
  if (const std::optional<DType> found = core::find_dtype(dtype)) return *found;
  throw Error(ErrorCode::kInvalidArgument, std::string(caller) + ": dtype '" + dtype + "' is unknown");
}

nb::dlpack::dtype dlpack_type(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto of = [dtype](Code code) {
    return nb::dlpack::dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * dtype_bytes(dtype)), 1};
  };
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kF64:
      return of(Code::Float);
    case DType::kBF16:
      return of(Code::Bfloat);
    case DType::kBool:
      return of(Code::Bool);
    case DType::kI8:
    case DType::kI32:
    case DType::kI64:
      return of(Code::Int);
    case DType::kF8E4M3:  // no tensor that Python passes to the GPU has this dtype
      break;
  }
  throw Error(ErrorCode::kInternal, std::string("DLPack has no dtype ") + dtype_name(dtype));
}

/// Allocates `bytes` bytes of GPU memory in the order of `stream`. The elements are uninitialised. If `stream_owner` is
/// given, the memory is freed in the order of the stream. Otherwise it is freed after all work on the GPU is complete.
nb::object cuda_empty(const std::vector<std::size_t>& shape, const std::string& dtype, std::size_t bytes, int index,
                      std::uintptr_t stream, nb::object stream_owner) {
  const nb::dlpack::dtype type = dlpack_type(named("cuda_empty", dtype));
  const cuda::ContextGuard guard(index);
  auto memory = std::make_unique<OwnedMemory>();
  memory->index = index;
  memory->stream = reinterpret_cast<cuda::StreamHandle>(stream);
  memory->stream_owner = std::move(stream_owner);
  if (bytes > 0) memory->data = cuda::Scratch(bytes, memory->stream).release();
  auto* const data = reinterpret_cast<void*>(memory->data);  // NOLINT(performance-no-int-to-ptr)
  const nb::capsule owner(memory.release(), [](void* held) noexcept { delete static_cast<OwnedMemory*>(held); });
  nb::ndarray<nb::array_api> array(data, shape.size(), shape.data(), owner, nullptr, type, nb::device::cuda::value,
                                   index);
  return nb::cast(array);  // nanobind does not copy an lvalue that has an owner; it would copy an rvalue
}

/// Waits until all work on `stream` is complete.
void synchronize(int index, std::uintptr_t stream) {
  const nb::gil_scoped_release release;
  const cuda::ContextGuard guard(index);
  cuda::synchronize(reinterpret_cast<cuda::StreamHandle>(stream));
}

/// Makes later work on the stream `second` wait for all work that is already on the stream `first`.
void order_streams(int index, std::uintptr_t first, std::uintptr_t second) {
  if (first == second) return;
  const cuda::ContextGuard guard(index);
  cuda::Event event;
  event.record(reinterpret_cast<cuda::StreamHandle>(first));
  event.make_wait(reinterpret_cast<cuda::StreamHandle>(second));
}

/// Returns the usage of the library's memory pool on a GPU, in bytes. If `reset` is true, resets the peaks afterwards.
nb::dict memory(int index, bool reset) {
  const cuda::PoolUsage usage = cuda::memory_pool_usage(index);
  if (reset) cuda::reset_memory_pool_peaks(index);
  nb::dict entry;
  entry["used"] = usage.used;
  entry["peak"] = usage.used_peak;
  entry["reserved"] = usage.reserved;
  entry["reserved_peak"] = usage.reserved_peak;
  return entry;
}

/// Launches only the softmax of attention. The measuring tools call it between two batched matrix products. The result
/// is a baseline for the library. The addresses are those of contiguous matrices (num_matrices, seqlen_q, seqlen_k) in
/// float16 or bfloat16. `p` is 0 in a forward pass.
void scaled_softmax(std::uintptr_t in, std::uintptr_t p, std::uintptr_t out, const std::string& dtype,
                    const std::tuple<std::int64_t, std::int64_t, std::int64_t>& shape, double scale, bool causal,
                    int index, std::uintptr_t stream) {
  const cuda::ContextGuard guard(index);
  const auto& [num_matrices, seqlen_q, seqlen_k] = shape;
  cuda::scaled_softmax({.dtype = named("scaled_softmax", dtype),
                        .in = reinterpret_cast<const void*>(in),  // NOLINT(performance-no-int-to-ptr)
                        .p = reinterpret_cast<const void*>(p),    // NOLINT(performance-no-int-to-ptr)
                        .out = reinterpret_cast<void*>(out),      // NOLINT(performance-no-int-to-ptr)
                        .num_matrices = num_matrices,
                        .seqlen_q = seqlen_q,
                        .seqlen_k = seqlen_k,
                        .scale = static_cast<float>(scale),
                        .causal = causal},
                       index, reinterpret_cast<cuda::StreamHandle>(stream));
}

/// Loads the driver and returns the GPUs of this machine. Returns an empty list if there is no driver.
nb::list gpu_list() {
  nb::list list;
  try {
    for (int index = 0; index < cuda::device_count(); ++index) {
      const cuda::DeviceInfo& gpu = cuda::device_info(index);
      nb::dict entry;
      entry["name"] = gpu.name;
      entry["compute_capability"] = std::to_string(gpu.major) + "." + std::to_string(gpu.minor);
      entry["multiprocessors"] = gpu.num_multiprocessors;
      entry["memory_bytes"] = gpu.memory_bytes;
      const auto lack = cuda::unusable_gpu(index);
      entry["lack"] = lack ? nb::cast(*lack) : nb::none();
      entry["backends"] = nb::cast(lack ? std::vector<std::string>() : cuda::families_on(gpu.arch()));
      list.append(entry);
    }
  } catch (const Error&) {
    // An error means that the machine has no GPU.
  }
  return list;
}

/// Returns {"path", "version"} of an NVIDIA library. If the library is missing, returns {"lack"}, the reason.
nb::dict library_entry(const cuda::FoundLibrary& library) {
  nb::dict entry;
  if (library.lack.empty()) {
    entry["path"] = library.path;
    entry["version"] = library.version;
  } else {
    entry["lack"] = library.lack;
  }
  return entry;
}

nb::dict libraries() {
  nb::dict found;
  found["libcuda"] = library_entry(cuda::found_libcuda());
  found["nvrtc"] = library_entry(cuda::found_nvrtc());
  return found;
}

}  // namespace

void add_gpu_services(nb::module_& m) {
  using namespace nb::literals;
  m.def("cuda_empty", &cuda_empty, "shape"_a, "dtype"_a, "bytes"_a, "index"_a, "stream"_a, "stream_owner"_a.none());
  m.def("synchronize", &synchronize);
  m.def("order_streams", &order_streams);
  m.def("memory", &memory, "index"_a, "reset"_a);
  m.def("gpus", &gpu_list);
  m.def("libraries", &libraries);
  m.def("kernel_digest", [] { return cuda::kernel_digest(); });
  m.def("scaled_softmax", &scaled_softmax, "in_"_a, "p"_a, "out"_a, "dtype"_a, "shape"_a, "scale"_a, "causal"_a,
        "index"_a, "stream"_a);
}

}  // namespace attend::python
