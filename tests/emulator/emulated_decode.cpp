#include "emulator/emulated_decode.hpp"

#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "cuda/serving/decode_launch.hpp"
#include "emulator/emulated_kernel.hpp"

namespace attend::test {
namespace {

struct alignas(16) Chunk {
  char bytes[16];
};

std::map<std::string, std::unique_ptr<EmulatedKernel>>& kernels() {
  static std::map<std::string, std::unique_ptr<EmulatedKernel>> all;
  return all;
}

const EmulatedKernel& kernel_of(const cuda::KernelSpec& spec) {
  std::unique_ptr<EmulatedKernel>& found = kernels()[identity(spec)];
  if (found == nullptr) found = std::make_unique<EmulatedKernel>(spec);
  return *found;
}

/// Has the layout of emulated::TensorMap in ptx.hpp, which the emulated copy engine reads.
struct EmulatedMap {
  const void* data;
  std::int64_t stride[3];
  std::int64_t size[3];
  std::int64_t element_bytes, row_bytes, box_rows;
  std::int64_t panels = 1;
};

TensorMapArg map_of(const Tensor& t, std::int64_t rows) {
  const std::int64_t bytes = dtype_bytes(t.dtype);
  const EmulatedMap map = {t.data,
                           {t.stride[2] * bytes, t.stride[1] * bytes, t.stride[0] * bytes},
                           {t.shape[2], t.shape[1], t.shape[0]},
                           bytes,
                           t.shape[3] * bytes,
                           rows};
  TensorMapArg arg = {};
  static_assert(sizeof(map) <= sizeof(arg));
  std::memcpy(&arg, &map, sizeof(map));
  return arg;
}

DecodeArgs args_of(const core::DecodeProblem& p, cuda::DecodeVariant variant) {
  // The emulator cannot read the driver's tensor maps, so it makes its own below.
  const bool has_boxes = std::exchange(variant.has_boxes, 0) != 0;
  DecodeArgs args = cuda::decode_args(p, variant, {});
  if (!has_boxes) return args;
  const std::int64_t rows = cuda::decode_box_rows(p);
  args.k_map = map_of(p.k, rows);
  args.v_map = map_of(p.v, rows);
  args.box_rows = static_cast<uint32>(rows);
  return args;
}

/// An int array that ends at the last accessible address. A read after its end ends the program.
class GuardedInts {
 public:
  explicit GuardedInts(std::size_t count) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t used = (count * sizeof(int) + page - 1) / page * page;
    bytes_ = used + page;
    pages_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages_ == MAP_FAILED) throw std::bad_alloc();
    char* const end = static_cast<char*>(pages_) + used;
    if (mprotect(end, page, PROT_NONE) != 0) throw std::runtime_error("mprotect");
    first_ = reinterpret_cast<int*>(end) - count;
  }
  GuardedInts(const GuardedInts&) = delete;
  GuardedInts& operator=(const GuardedInts&) = delete;
  ~GuardedInts() { munmap(pages_, bytes_); }

  [[nodiscard]] int* data() const { return first_; }

 private:
  void* pages_ = nullptr;
  std::size_t bytes_ = 0;
  int* first_ = nullptr;
};

/// Copies of a call's index arrays. The copies get their final values while a kernel runs.
class LateInputs {
 public:
  void replace(const int*& array, std::int64_t count, unsigned seed) {
    if (array == nullptr || count == 0) return;
    const auto size = static_cast<std::size_t>(count);
    std::vector<int>& late = kept_.emplace_back(array, array + count);
    std::vector<int>& early = kept_.emplace_back(late.rbegin(), late.rend());
    constexpr int kStrange[] = {-1, 0, 0x7fffffff, 70, -0x7fffffff};
    for (std::size_t n = seed % 3; n < size; n += 3) early[n] = kStrange[(n + seed) % std::size(kStrange)];
    int* const seen = seen_.emplace_back(size).data();
    arrays_.push_back({seen, early.data(), late.data(), size * sizeof(int)});
    array = seen;
  }
  [[nodiscard]] const std::vector<emulated::LateArray>& arrays() const { return arrays_; }

 private:
  std::deque<std::vector<int>> kept_;
  std::deque<GuardedInts> seen_;
  std::vector<emulated::LateArray> arrays_;
};

void run(const DecodeCall& call, const EmulatedGpu& gpu) {
  const core::DecodeProblem p = core::make_decode_problem(call);
  if (p.num_sequences == 0 || p.num_heads_q == 0 || p.max_seqlen_q == 0) return;
  constexpr int kMany = 1 << 20;
  cuda::DecodeVariant variant = cuda::decode_variant(p,
                                                     {.max_smem = gpu.max_smem,
                                                      .multiprocessors = gpu.looks_large ? kMany : gpu.multiprocessors,
                                                      .has_copy_engine = gpu.has_copy_engine,
                                                      .has_wgmma = gpu.has_wgmma},
                                                     gpu.leaves_long_rows);
  if (gpu.has_wgmma && variant.by_warpgroup == 0) throw std::logic_error("wgmma: not for this call");
  if (gpu.many_units) variant.many_units = 1;
  const EmulatedKernel& kernel = kernel_of(cuda::decode_spec(variant, "sm_90a"));
  const cuda::DecodeGrid grid = cuda::decode_grid(variant, p.capacity, gpu.multiprocessors);
  std::vector<Chunk> storage(grid.node_bytes / sizeof(Chunk) + 1), stack(grid.stack_bytes / sizeof(Chunk) + 1);
  std::memset(stack.data(), 0xff, grid.stack_bytes);
  DecodeArgs args = args_of(p, variant);
  args.storage = storage.data();
  args.stack = stack.data();
  args.stack_nodes = grid.stack_nodes;
  if (gpu.leaves_long_rows) args.most_rows = core::kMaxTreeRows;
  LateInputs late;
  if (gpu.late_arrays) {
    CacheArgs& cache = args.cache;
    late.replace(cache.seqlens_k, p.num_sequences, gpu.seed);
    late.replace(cache.cache_batch_idx, p.num_sequences, gpu.seed + 1);
    late.replace(cache.cache_leftpad, p.num_sequences, gpu.seed + 2);
    late.replace(args.cu_seqlens_q, p.num_sequences + 1, gpu.seed + 3);
    late.replace(cache.pages, cache.cache_rows * cache.table_row_stride, gpu.seed + 4);
  }
  kernel.launch(&args, grid.blocks, gpu.seed, late.arrays());
}

}  // namespace

Decode emulated_decode(const EmulatedGpu& gpu) {
  return [gpu](const DecodeCall& call) { run(call, gpu); };
}

int emulated_kernels() {
  return static_cast<int>(kernels().size());
}

}  // namespace attend::test
