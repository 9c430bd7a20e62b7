// A fake libcuda and a fake NVRTC for a software GPU that runs every kernel of the library on the host. The GPU tests
// can run on it. Kernels run one after another. Blocks of a kernel may wait for each other (grid.hpp). The fake NVRTC
// returns the program text for the host's compiler (program_text.hpp). The "machine code" is the index of the library
// that was compiled from this text.
//
// ATTEND_LIBCUDA_PATH=libemulated_gpu.so ATTEND_NVRTC_PATH=libemulated_gpu.so attend_gpu_tests --gtest_filter=...
//
// ATTEND_EMULATED_VERBOSE=1 prints each launch. ATTEND_EMULATED_SEED selects the order in which threads run.
// ATTEND_EMULATED_MULTIPROCESSORS is 4 if unset.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver/driver.hpp"
#include "emulator/late_arrays.hpp"
#include "emulator/program_text.hpp"
#include "support/host_compiler.hpp"

using namespace attend::cuda;

namespace {

constexpr int kSmemBytes = 232448, kL2Bytes = 50 << 20;

using RunBlocks = bool (*)(const void* args, unsigned blocks, unsigned threads, unsigned smem_bytes, unsigned seed);

int number_of(const char* variable, int otherwise) {
  const char* const value = std::getenv(variable);
  return value != nullptr ? std::atoi(value) : otherwise;
}

/// Returns C++ code that runs all blocks of the program's kernel.
std::string launcher(const std::string& entry, const std::string& args) {
  return fmt::format(
      "static const attend::{0}* args_of_launch;\n"
      "static void entry_of_launch() {{ {1}(*args_of_launch); }}\n"
      "extern \"C\" __attribute__((visibility(\"default\"))) bool emulated_launch(\n"
      "    const void* args, unsigned blocks, unsigned threads, unsigned smem_bytes, unsigned seed) {{\n"
      "  args_of_launch = static_cast<const attend::{0}*>(args);\n"
      "  return emulated::run_grid(entry_of_launch, blocks, threads, smem_bytes, seed);\n}}\n",
      args, entry);
}

struct Program {
  std::string text;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string log;
  int number = -1;  // index in kernels(); -1 if compilation failed
};

std::mutex& mutex() {
  static std::mutex one;
  return one;
}

struct Kernel {
  std::string name;
  RunBlocks run;
};

std::vector<Kernel>& kernels() {
  static std::vector<Kernel> all;
  return all;
}

/// Maps the texts of the kernels that the process has compiled to their indices.
std::map<std::string, int>& known() {
  static std::map<std::string, int> all;
  return all;
}

int compile(const Program& program) {
  std::string all = program.text;
  for (const auto& [name, text] : program.headers) all += name + text;
  const std::lock_guard lock(mutex());
  if (const auto found = known().find(all); found != known().end()) return found->second;
  std::smatch entry;
  if (!std::regex_search(program.text, entry,
                         std::regex(R"((attend_\w+)\(const __grid_constant__ attend::(\w+) args\))"))) {
    throw std::runtime_error("no kernel in the text");
  }
  // All threads share one copy of the arguments, as on a GPU, because shared memory may hold addresses of arguments.
  const std::string text = std::regex_replace(program.text, std::regex(R"(const __grid_constant__ attend::(\w+) args)"),
                                              "const attend::$1& args");
  const attend::test::TemporaryFolder folder;
  attend::test::write_headers(folder, program.headers);
  void* const library = attend::test::compiled(
      folder, "#include \"grid.hpp\"\n#include \"ptx.hpp\"\n" + text + launcher(entry[1], entry[2]),
      {ATTEND_EMULATOR_DIR});
  kernels().push_back({entry[1], reinterpret_cast<RunBlocks>(dlsym(library, "emulated_launch"))});
  return known()[all] = static_cast<int>(kernels().size()) - 1;
}

/// Has the layout of emulated::TensorMap in ptx.hpp, which the emulated copy engine reads.
struct EmulatedMap {
  const void* data;
  std::int64_t stride[3];
  std::int64_t size[3];
  std::int64_t element_bytes, row_bytes, box_rows, panels;
};
static_assert(sizeof(EmulatedMap) <= sizeof(TensorMap));

template <class T>
T* memory(DevicePointer address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

extern "C" {

DriverResult cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
DriverResult cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
DriverResult cuDeviceGetAttribute(int* value, DeviceAttribute which, DeviceIndex) {
  *value = which == DeviceAttribute::kComputeCapabilityMajor   ? 9
           : which == DeviceAttribute::kComputeCapabilityMinor ? 0
           : which == DeviceAttribute::kMaxSmemPerBlockOptin   ? kSmemBytes
           : which == DeviceAttribute::kL2CacheBytes           ? kL2Bytes
                                                               : number_of("ATTEND_EMULATED_MULTIPROCESSORS", 4);
  return 0;
}
DriverResult cuModuleLoadData(ModuleHandle* module, const void* image) {
  *module = reinterpret_cast<ModuleHandle>(static_cast<std::intptr_t>(std::atoi(static_cast<const char*>(image)) + 1));
  return 0;
}
DriverResult cuModuleGetFunction(FunctionHandle* function, ModuleHandle module, const char*) {
  *function = reinterpret_cast<FunctionHandle>(module);
  return 0;
}
DriverResult cuLaunchKernelEx(const DriverLaunchConfig* config, FunctionHandle function, void** arguments, void**) {
  constexpr DriverResult kIllegalAddress = 700;
  const std::lock_guard lock(mutex());
  const auto number = static_cast<std::size_t>(reinterpret_cast<std::intptr_t>(function)) - 1;
  static const int seed = number_of("ATTEND_EMULATED_SEED", 1);
  const Kernel& kernel = kernels().at(number);
  if (number_of("ATTEND_EMULATED_VERBOSE", 0) != 0) {
    std::fprintf(stderr, "%s: %u blocks of %u threads\n", kernel.name.c_str(), config->grid_x, config->block_x);
  }
  const bool is_within = kernel.run(arguments[0], config->grid_x, config->block_x, config->dynamic_smem_bytes,
                                    static_cast<unsigned>(seed));
  return is_within ? 0 : kIllegalAddress;
}
DriverResult cuTensorMapEncodeTiled(TensorMap* to, TensorMapType type, std::uint32_t rank, void* address,
                                    const std::uint64_t* dims, const std::uint64_t* strides, const std::uint32_t* box,
                                    const std::uint32_t*, int, TensorMapSwizzle, TensorMapPromotion, int) {
  const int bytes = type == TensorMapType::kFloat32 ? 4 : type == TensorMapType::kUint8 ? 1 : 2;
  const bool has_panels =
      rank == 5;  // five dimensions are (64, rows, panels, heads, batch); four are (columns, rows, heads, batch)
  const auto n = [](std::uint64_t x) { return static_cast<std::int64_t>(x); };
  const int heads = has_panels ? 3 : 2;
  const EmulatedMap map = {address,
                           {n(strides[0]), n(strides[heads - 1]), n(strides[heads])},
                           {n(dims[1]), n(dims[heads]), n(dims[heads + 1])},
                           bytes,
                           n(dims[0]) * bytes * (has_panels ? n(dims[2]) : 1),
                           box[1],
                           has_panels ? n(dims[2]) : 1};
  std::memset(to, 0, sizeof(*to));
  std::memcpy(to, &map, sizeof(map));
  return 0;
}
DriverResult cuMemAlloc_v2(DevicePointer* pointer, std::size_t bytes) {
  *pointer = reinterpret_cast<DevicePointer>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  std::memset(memory<void>(*pointer), 0xFF, bytes);  // fills the memory with NaN
  return 0;
}
DriverResult cuMemAllocManaged(DevicePointer* pointer, std::size_t bytes, unsigned) {
  return cuMemAlloc_v2(pointer, bytes);
}
DriverResult cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  *pointer = std::malloc(bytes);
  return 0;
}
DriverResult cuMemFreeHost(void* pointer) {
  std::free(pointer);
  return 0;
}
DriverResult cuMemFree_v2(DevicePointer pointer) {
  std::free(memory<void>(pointer));
  return 0;
}
DriverResult cuMemAllocFromPoolAsync(DevicePointer* pointer, std::size_t bytes, MemoryPoolHandle, StreamHandle) {
  return cuMemAlloc_v2(pointer, bytes);
}
DriverResult cuMemFreeAsync(DevicePointer pointer, StreamHandle) {
  return cuMemFree_v2(pointer);
}
DriverResult cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, std::size_t bytes, StreamHandle) {
  std::memcpy(memory<void>(to), from, bytes);
  return 0;
}
DriverResult cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, std::size_t bytes, StreamHandle) {
  std::memcpy(to, memory<void>(from), bytes);
  return 0;
}
DriverResult cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, std::size_t bytes, StreamHandle) {
  std::memcpy(memory<void>(to), memory<void>(from), bytes);
  return 0;
}
DriverResult cuMemsetD8Async(DevicePointer to, unsigned char value, std::size_t bytes, StreamHandle) {
  std::memset(memory<void>(to), value, bytes);
  return 0;
}
DriverResult cuMemsetD2D8Async(DevicePointer to, std::size_t pitch, unsigned char value, std::size_t width,
                               std::size_t height, StreamHandle) {
  for (std::size_t row = 0; row < height; ++row) std::memset(memory<void>(to + row * pitch), value, width);
  return 0;
}
DriverResult cuMemsetD32Async(DevicePointer to, unsigned value, std::size_t count, StreamHandle) {
  std::fill_n(memory<unsigned>(to), count, value);
  return 0;
}

const char* nvrtcGetErrorString(int) {
  return "the host's compiler refuses it";
}
int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 1;
  return 0;
}
int nvrtcGetSupportedArchs(int* archs) {
  *archs = 90;
  return 0;
}
int nvrtcCreateProgram(void** program, const char* source, const char*, int count, const char* const* texts,
                       const char* const* names) {
  auto* made = new Program{source, {}, {}};
  for (int n = 0; n < count; ++n) made->headers.emplace_back(names[n], texts[n]);
  *program = made;
  return 0;
}
int nvrtcDestroyProgram(void** program) {
  delete static_cast<Program*>(*program);
  return 0;
}
int nvrtcCompileProgram(void* program, int, const char* const*) {
  constexpr int kCompilation = 6;
  auto& one = *static_cast<Program*>(program);
  try {
    one.number = compile(one);
    return 0;
  } catch (const std::exception& error) {
    one.log = error.what();
    return kCompilation;
  }
}
int nvrtcGetCUBINSize(void* program, std::size_t* bytes) {
  *bytes = std::to_string(static_cast<Program*>(program)->number).size() + 1;
  return 0;
}
int nvrtcGetCUBIN(void* program, char* cubin) {
  std::strcpy(cubin, std::to_string(static_cast<Program*>(program)->number).c_str());
  return 0;
}
int nvrtcGetProgramLogSize(void* program, std::size_t* bytes) {
  *bytes = static_cast<Program*>(program)->log.size() + 1;
  return 0;
}
int nvrtcGetProgramLog(void* program, char* log) {
  std::strcpy(log, static_cast<Program*>(program)->log.c_str());
  return 0;
}

}  // extern "C"
