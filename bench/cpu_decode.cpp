// Compares the time of decode on the CPU with the time in which threads read the same bytes of keys and values. The
// ratio, read time / decode time, is 1 if only memory bandwidth limits decode.
//
//   cpu_decode [--mib 256] [--seqlen 8192] [--heads 8] [--rounds 15] [--threads 2] [--dtypes f32,bf16,...]
//              [--json FILE] [--before LIBATTEND.SO]
//
// --heads sets the number of key heads. The number of sequences is chosen so that keys and values occupy about --mib
// MiB. head_dim is 128, and each sequence has one query row. Each dtype is measured with a contiguous cache and with a
// cache of shuffled pages of 16 keys. Each cache is read with 1, 2, 4 and 8 query heads per key head. The calls take
// turns: each round makes every call. The program reports medians over the rounds. The read is measured with large and
// small blocks per thread, with and without prefetches, and the fastest variant is used. --before names the shared
// library of another build, whose decode is measured in the same rounds.
#include <dlfcn.h>
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "attend/attention.hpp"
#include "attend/error.hpp"
#include "attend/serving.hpp"
#include "core/eight_bits.hpp"
#include "core/half.hpp"
#include "cpu/parallel.hpp"

namespace {

using attend::DType;

constexpr std::int64_t kHeadDim = 128;
constexpr std::int64_t kPageSize = 16;
constexpr int kGroups[] = {1, 2, 4, 8};

struct Options {
  std::int64_t mib = 256, seqlen = 8192, heads = 8, rounds = 15;
  int threads = 2;
  std::string dtypes = "f32,bf16,f16,f8e4m3,i8", json, before;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    const std::int64_t number = std::atoll(value);
    if (name == "--dtypes" || name == "--json" || name == "--before") {
      (name == "--dtypes" ? options.dtypes : name == "--json" ? options.json : options.before) = value;
      continue;
    }
    std::int64_t threads = 0;
    std::int64_t* const to = name == "--mib"       ? &options.mib
                             : name == "--seqlen"  ? &options.seqlen
                             : name == "--heads"   ? &options.heads
                             : name == "--rounds"  ? &options.rounds
                             : name == "--threads" ? &threads
                                                   : nullptr;
    if (to == nullptr || number < 1) {
      std::fprintf(stderr, "cpu_decode: %s '%s', allowed: the options of the file's head, numbers of 1 or more\n",
                   argv[i], value);
      std::exit(2);
    }
    *to = number;
    if (threads > 0) options.threads = static_cast<int>(threads);
  }
  return options;
}

struct Type {
  const char* name;
  DType dtype;
};
constexpr Type kTypes[] = {
    {"f32", DType::kF32}, {"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f8e4m3", DType::kF8E4M3}, {"i8", DType::kI8}};

bool is_one_of(std::string_view list, std::string_view name) {
  return ("," + std::string(list) + ",").find("," + std::string(name) + ",") != std::string::npos;
}

/// Memory with the alignment of a framework's tensors.
class Bytes {
 public:
  explicit Bytes(std::size_t size) : data_(static_cast<char*>(std::aligned_alloc(4096, (size + 4095) / 4096 * 4096))) {
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(data_, 0, size);
  }
  ~Bytes() { std::free(data_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  char* data() { return data_; }

 private:
  char* data_;
};

void store(float x, DType dtype, char* at) {
  if (dtype == DType::kF32) return void(std::memcpy(at, &x, 4));
  if (dtype == DType::kI8) {
    *at = static_cast<char>(static_cast<std::int8_t>(std::clamp(std::nearbyint(x * 32), -127.0F, 127.0F)));
    return;
  }
  if (dtype == DType::kF8E4M3) {
    const auto element = attend::core::to_e4m3(x);
    return void(std::memcpy(at, &element, 1));
  }
  if (dtype == DType::kBF16) {
    const auto element = attend::core::to_bfloat16(x);
    return void(std::memcpy(at, &element, 2));
  }
  const auto element = attend::core::to_half(x);
  std::memcpy(at, &element, 2);
}

/// Fills memory with normally distributed random numbers. After the first few numbers, copies of them are repeated.
void fill_random(char* to, std::int64_t elements, DType dtype, unsigned seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  const auto bytes = static_cast<std::int64_t>(attend::dtype_bytes(dtype));
  const std::int64_t drawn = std::min<std::int64_t>(elements, 1 << 20);
  for (std::int64_t i = 0; i < drawn; ++i) store(normal(generator), dtype, to + i * bytes);
  for (std::int64_t i = drawn; i < elements; i += drawn) {
    std::memcpy(to + i * bytes, to, static_cast<std::size_t>(std::min(drawn, elements - i) * bytes));
  }
}

/// Returns the sum of all 64-bit words in `bytes` bytes of memory. The loop reads four streams at once, with loads of
/// 32 bytes. If `ahead` is not 0, it prefetches data `ahead` bytes before they are read.
__attribute__((target("avx2"))) std::int64_t sum(const char* begin, std::int64_t bytes, std::int64_t ahead) {
  const std::int64_t quarter = bytes / 4 / 64 * 64;
  __m256i sums[8] = {};
  for (std::int64_t i = 0; i < quarter; i += 64) {
    for (int place = 0; place < 4; ++place) {
      const char* at = begin + place * quarter + i;
      if (ahead > 0) _mm_prefetch(at + ahead, _MM_HINT_T0);
      for (int half = 0; half < 2; ++half) {
        __m256i& sum = sums[2 * place + half];
        sum = _mm256_add_epi64(sum, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32 * half)));
      }
    }
  }
  for (int i = 1; i < 8; ++i) sums[0] = _mm256_add_epi64(sums[0], sums[i]);
  std::int64_t lanes[4];
  std::memcpy(lanes, &sums[0], sizeof lanes);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

std::int64_t volatile g_sum;  // a result that is used, so that the compiler cannot remove the reads

/// Reads `bytes` bytes of k and of v on `threads` threads. Each free thread takes the next block of `piece` bytes.
void read(const char* k, const char* v, std::int64_t bytes, std::int64_t piece, std::int64_t ahead, int threads) {
  const std::int64_t pieces = (bytes + piece - 1) / piece;
  std::vector<std::int64_t> sums(static_cast<std::size_t>(2 * pieces));
  attend::cpu::parallel_for(2 * pieces, threads, [&](std::int64_t number) {
    const std::int64_t begin = number / 2 * piece;
    sums[static_cast<std::size_t>(number)] =
        sum((number % 2 == 0 ? k : v) + begin, std::min(piece, bytes - begin), ahead);
  });
  g_sum = std::accumulate(sums.begin(), sums.end(), std::int64_t{0});
}

using Decode = void (*)(const attend::DecodeCall&);

Decode decode_of(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const symbol = handle == nullptr ? nullptr : dlsym(handle, "_ZN6attend6decodeERKNS_10DecodeCallE");
  if (symbol == nullptr) {
    std::fprintf(stderr, "cpu_decode: --before '%s': %s\n", library.c_str(), dlerror());
    std::exit(2);
  }
  void* const set = dlsym(handle, "_ZN6attend15set_cpu_threadsEi");
  if (set != nullptr) reinterpret_cast<void (*)(int)>(set)(attend::cpu::max_threads());
  return reinterpret_cast<Decode>(symbol);
}

/// A KV cache of one dtype and layout, with the calls of decode that read it.
struct Case {
  Case(const Options& options, const Type& type, bool pages)
      : of(type),
        is_paged(pages),
        num_sequences(std::max<std::int64_t>(
            1, options.mib * (1 << 20) /
                   (2 * options.heads * options.seqlen * kHeadDim * attend::dtype_bytes(type.dtype)))),
        seqlen((options.seqlen + kPageSize - 1) / kPageSize * kPageSize),
        heads(options.heads),
        elements(num_sequences * heads * seqlen * kHeadDim),
        bytes(elements * attend::dtype_bytes(type.dtype)),
        k(static_cast<std::size_t>(bytes)),
        v(static_cast<std::size_t>(bytes)),
        q(static_cast<std::size_t>(num_sequences * heads * kGroups[3] * kHeadDim * 4)),
        o(static_cast<std::size_t>(num_sequences * heads * kGroups[3] * kHeadDim * 4)),
        page_table(static_cast<std::size_t>(num_sequences * seqlen / kPageSize)) {
    q_dtype = attend::dtype_bytes(type.dtype) == 1 ? DType::kBF16 : type.dtype;
    fill_random(k.data(), elements, type.dtype, 1);
    fill_random(v.data(), elements, type.dtype, 2);
    fill_random(q.data(), num_sequences * heads * kGroups[3] * kHeadDim, q_dtype, 3);
    std::iota(page_table.begin(), page_table.end(), 0);
    std::shuffle(page_table.begin(), page_table.end(), std::mt19937(4));
  }

  void run(Decode decode, int group) {
    const auto per_row = seqlen / kPageSize;
    const attend::Shape of_cache = is_paged ? attend::Shape{num_sequences * per_row, heads, kPageSize, kHeadDim}
                                            : attend::Shape{num_sequences, heads, seqlen, kHeadDim};
    const attend::Shape of_q = {num_sequences, heads * group, 1, kHeadDim};
    attend::DecodeCall call = {.q = attend::ConstTensor::bhsd(q.data(), q_dtype, of_q),
                               .k_cache = attend::ConstTensor::bhsd(k.data(), of.dtype, of_cache),
                               .v_cache = attend::ConstTensor::bhsd(v.data(), of.dtype, of_cache),
                               .o = attend::Tensor::bhsd(o.data(), q_dtype, of_q)};
    if (is_paged) call.cache.page_table = attend::PageTable{page_table.data(), num_sequences, per_row, per_row};
    decode(call);
  }

  const Type& of;
  bool is_paged;
  std::int64_t num_sequences, seqlen, heads, elements, bytes;
  Bytes k, v, q, o;
  DType q_dtype;
  std::vector<std::int32_t> page_table;
};

double median(std::vector<double> seconds) {
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
  return seconds[seconds.size() / 2];
}

/// Returns the median time in seconds of each function. A round calls a short function several times.
std::vector<double> measure(const std::vector<std::function<void()>>& functions, std::int64_t rounds) {
  using Clock = std::chrono::steady_clock;
  constexpr double kShortest = 2e-3;  // shortest measurement, in seconds
  std::vector<std::vector<double>> times(functions.size());
  std::vector<int> calls(functions.size(), 1);
  for (std::int64_t round = -2; round < rounds; ++round) {  // the first two rounds warm up
    for (std::size_t n = 0; n < functions.size(); ++n) {
      const Clock::time_point begin = Clock::now();
      for (int call = 0; call < calls[n]; ++call) functions[n]();
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count() / calls[n];
      if (round >= 0) times[n].push_back(seconds);
      if (round == -1) calls[n] = std::max(1, static_cast<int>(std::ceil(kShortest / seconds)));
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& of_one : times) medians.push_back(median(of_one));
  return medians;
}

/// Measures one cache, prints its lines of the table, and returns them as JSON.
std::string measure_case(const Options& options, const Type& type, bool is_paged, Decode before) {
  Case data(options, type, is_paged);
  std::vector<std::function<void()>> functions;
  for (const std::int64_t piece : {data.bytes, std::int64_t{1} << 20, std::int64_t{1} << 16}) {
    for (const std::int64_t ahead : {0, 512, 2048}) {
      functions.emplace_back([&, piece, ahead] {
        read(data.k.data(), data.v.data(), data.bytes, std::min(piece, data.bytes), ahead, options.threads);
      });
    }
  }
  const std::size_t reads = functions.size();
  for (const int group : kGroups) {
    functions.emplace_back([&, group] { data.run(&attend::decode, group); });
    if (before != nullptr) functions.emplace_back([&, group] { data.run(before, group); });
  }
  const std::vector<double> seconds = measure(functions, options.rounds);
  const double read_s = *std::min_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(reads));
  std::string lines;
  const std::size_t step = before != nullptr ? 2 : 1;
  for (std::size_t n = 0; n < std::size(kGroups); ++n) {
    const double decode_s = seconds[reads + n * step];
    const double before_s = seconds[reads + n * step + step - 1];
    std::printf("%-7s %-10s %5d %9.1f %12.2f %12.2f %8.3f", type.name, is_paged ? "pages" : "contiguous", kGroups[n],
                2e-6 * static_cast<double>(data.bytes), 2e-9 * static_cast<double>(data.bytes) / read_s,
                2e-9 * static_cast<double>(data.bytes) / decode_s, read_s / decode_s);
    if (before != nullptr) std::printf(" %9.3f %9.3f", read_s / before_s, before_s / decode_s);
    std::printf("\n");
    std::fflush(stdout);
    char line[320];
    std::snprintf(line, sizeof line,
                  "%s    {\"dtype\": \"%s\", \"page_size\": %d, \"group\": %d, \"bytes\": %lld, \"read_s\": %.6g, "
                  "\"decode_s\": %.6g, \"share_of_read\": %.4f%s}",
                  n == 0 ? "" : ",\n", type.name, is_paged ? static_cast<int>(kPageSize) : 0, kGroups[n],
                  static_cast<long long>(2 * data.bytes), read_s, decode_s, read_s / decode_s,
                  before == nullptr ? "" : (", \"before_s\": " + std::to_string(before_s)).c_str());
    lines += line;
  }
  return lines;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parse(argc, argv);
  attend::set_cpu_threads(options.threads);
  const Decode before = options.before.empty() ? nullptr : decode_of(options.before);
  std::printf("%-7s %-10s %5s %9s %12s %12s %8s%s\n", "dtype", "cache", "group", "MB", "read GB/s", "decode GB/s",
              "share", before != nullptr ? "    before   speedup" : "");
  std::string cases;
  for (const Type& type : kTypes) {
    if (!is_one_of(options.dtypes, type.name)) continue;
    for (const bool is_paged : {false, true}) {
      cases += (cases.empty() ? "" : ",\n") + measure_case(options, type, is_paged, before);
    }
  }
  if (options.json.empty()) return 0;
  std::FILE* const file = std::fopen(options.json.c_str(), "w");
  if (file == nullptr) {
    std::fprintf(stderr, "cpu_decode: --json '%s' cannot be written\n", options.json.c_str());
    return 2;
  }
  std::fprintf(
      file,
      "{\n  \"simd_target\": \"%s\", \"threads\": %d, \"seqlen\": %lld, \"heads_k\": %lld, \"head_dim\": %lld, "
      "\"rounds\": %lld,\n  \"cases\": [\n%s\n  ]\n}\n",
      attend::cpu_simd_target().c_str(), options.threads, static_cast<long long>(options.seqlen),
      static_cast<long long>(options.heads), static_cast<long long>(kHeadDim), static_cast<long long>(options.rounds),
      cases.c_str());
  return std::fclose(file) == 0 ? 0 : 2;
} catch (const attend::Error& error) {
  std::fprintf(stderr, "cpu_decode: %s\n", error.what());
  return 2;
}
