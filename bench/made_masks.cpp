// Measures the time in which a GPU makes block masks.
//
//   made_masks [--runs 21] [--lengths 8192,131072] [--json FILE]
//
// The results are medians over the runs. The document numbers are in the GPU's memory.
//
// - gpu_us: time on the stream, measured with CUDA events, from the first operation to the end of the last copy. It
//   includes kernel launches.
// - call_us: time until make_block_mask returns on the calling thread, if the mask is made on the GPU.
// - host_us: time in which the CPU makes the same mask, measured once. The program checks that both masks are equal.
// - peak_mib: largest amount of memory that the library's pool on the GPU had in use at any time.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "attend/block_mask.hpp"
#include "attend/error.hpp"
#include "core/block_tiles.hpp"
#include "core/source_digests.hpp"
#include "cuda/driver/device.hpp"
#include "cuda/driver/memory_pool.hpp"
#include "cuda/driver/stream.hpp"
#include "mask/gpu_tiles.hpp"

namespace {

using attend::BlockMask;
using attend::BlockMaskPlace;
using attend::MaskFunction;
using attend::ScoreCapture;

struct Options {
  int runs = 21;
  std::vector<std::int64_t> lengths = {8192, 131072};
  std::string json;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times block masks that are made on a GPU");
  app.add_option("--runs", options.runs, "Samples of each mask")->check(CLI::PositiveNumber);
  app.add_option("--lengths", options.lengths, "Rows, and keys, of the masks")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app.add_option("--json", options.json, "Also write the table to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

/// Returns the document number of each token. Numbers are sorted, and a document has about 1000 tokens.
std::vector<std::int32_t> documents(std::int64_t length) {
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same each time
  std::vector<std::int32_t> doc;
  for (std::int32_t number = 0; static_cast<std::int64_t>(doc.size()) < length; ++number) {
    doc.insert(doc.end(), 200 + random() % 1600, number);
  }
  doc.resize(static_cast<std::size_t>(length));
  return doc;
}

struct Named {
  const char* name;
  const char* text;
  bool reads_documents = false;
  std::int64_t most_length = INT64_MAX;
};

constexpr Named kMasks[] = {{"causal", "k <= q"},
                            {"window", "k <= q && q - k < 1024"},
                            {"documents", "doc[q] == doc[k]", true},
                            {"causal documents", "k <= q && doc[q] == doc[k]", true},
                            {"prefix", "k < 1024 || k <= q"},
                            {"every pair by itself", "(q * k + q // 3) % 7 < 3", false, 16384}};

double median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return all[all.size() / 2];
}

double microseconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

bool are_same(const attend::core::BlockTiles& a, const attend::core::BlockTiles& b) {
  const auto is_same_run = [](const attend::core::SeenTiles& x, const attend::core::SeenTiles& y) {
    return x.begin == y.begin && x.end == y.end && x.pattern == y.pattern;
  };
  return a.row_begin == b.row_begin && a.patterns == b.patterns &&
         std::equal(a.seen.begin(), a.seen.end(), b.seen.begin(), b.seen.end(), is_same_run);
}

struct Row {
  std::string mask;
  std::int64_t length = 0;
  double gpu_us = 0, call_us = 0, host_us = 0, peak_mib = 0;
  BlockMask::Tiles tiles = {};
};

Row measure(const Named& named, std::int64_t length, int runs) {
  constexpr attend::Device kGpu = {attend::DeviceType::kCUDA, 0};
  constexpr double kMiB = 1024.0 * 1024.0, kMicrosecondsOfOne = 1000;
  Row row = {named.name, length};
  const std::vector<std::int32_t> doc = documents(length);
  const attend::cuda::OwnStream stream;
  attend::cuda::Scratch on_gpu(doc.size() * sizeof(doc[0]), stream.get());
  on_gpu.copy_from_host(doc.data(), on_gpu.bytes());
  const auto function_of = [&](const void* data, attend::Device device) {
    std::vector<ScoreCapture> captures;
    if (named.reads_documents) {
      captures.push_back(
          {"doc", {.data = data, .dtype = attend::DType::kI32, .shape = {length}, .stride = {}, .device = device}});
    }
    return MaskFunction(named.text, captures);
  };
  const MaskFunction of_host = function_of(doc.data(), {});
  const MaskFunction of_gpu =
      function_of(reinterpret_cast<const void*>(on_gpu.data()), kGpu);  // NOLINT(performance-no-int-to-ptr)
  const attend::BlockMaskShape shape = {.seqlen_q = length, .seqlen_k = length};
  const BlockMaskPlace place = {kGpu, stream.get()};
  row.tiles = attend::make_block_mask(of_gpu, shape, place).tiles();  // warm-up call, which compiles the kernels
  attend::cuda::reset_memory_pool_peaks(0);
  std::vector<double> gpu, call;
  for (int run = 0; run < runs; ++run) {
    attend::core::BlockTiles tiles = {.seqlen_q = length, .seqlen_k = length};
    double milliseconds = 0;
    attend::mask::make_on_gpu(of_gpu.state(), place, tiles, &milliseconds);
    gpu.push_back(milliseconds * kMicrosecondsOfOne);
    call.push_back(microseconds_of([&] { (void)attend::make_block_mask(of_gpu, shape, place); }));
  }
  row.gpu_us = median(gpu);
  row.call_us = median(call);
  row.peak_mib = static_cast<double>(attend::cuda::memory_pool_usage(0).used_peak) / kMiB;
  std::optional<BlockMask> wanted;
  row.host_us = microseconds_of([&] { wanted = attend::make_block_mask(of_host, shape); });
  if (!are_same(*attend::make_block_mask(of_gpu, shape, place).state(), *wanted->state())) {
    std::fprintf(stderr, "made_masks: '%s' of length %lld is another mask than the host's\n", named.text,
                 static_cast<long long>(length));
    std::exit(1);
  }
  return row;
}

void write_json(const std::string& path, const std::vector<Row>& rows, int runs) {
  nlohmann::ordered_json sources, masks;
  for (const auto& source : attend::core::source_digests()) sources[std::string(source.part)] = source.digest;
  for (const Row& row : rows) {
    masks.push_back({{"mask", row.mask},
                     {"length", row.length},
                     {"gpu_us", row.gpu_us},
                     {"call_us", row.call_us},
                     {"host_us", row.host_us},
                     {"peak_mib", row.peak_mib},
                     {"tiles", row.tiles.all},
                     {"full", row.tiles.full},
                     {"partial", row.tiles.partial},
                     {"patterns", row.tiles.patterns}});
  }
  const std::time_t now = std::time(nullptr);
  char date[sizeof "2026-01-01"] = {};
  std::strftime(date, sizeof date, "%F", std::gmtime(&now));  // NOLINT(concurrency-mt-unsafe): one thread
  const nlohmann::ordered_json all = {{"device", attend::cuda::device_info(0).name},
                                      {"date", date},
                                      {"sources", sources},
                                      {"runs", runs},
                                      {"masks", masks}};
  std::ofstream file(path);
  file << all.dump(1) << '\n';
  if (!file.flush()) {
    std::fprintf(stderr, "made_masks: --json '%s' cannot be written\n", path.c_str());
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  try {
    const attend::cuda::ContextGuard guard(0);
    std::printf("%-22s %8s %10s %10s %12s %10s %9s %9s\n", "mask", "length", "gpu_us", "call_us", "host_us", "peak_mib",
                "partial", "patterns");
    std::vector<Row> rows;
    for (const std::int64_t length : options.lengths) {
      for (const Named& mask : kMasks) {
        if (length > mask.most_length) continue;
        rows.push_back(measure(mask, length, options.runs));
        const Row& row = rows.back();
        std::printf("%-22s %8lld %10.1f %10.1f %12.1f %10.1f %9lld %9lld\n", row.mask.c_str(),
                    static_cast<long long>(row.length), row.gpu_us, row.call_us, row.host_us, row.peak_mib,
                    static_cast<long long>(row.tiles.partial), static_cast<long long>(row.tiles.patterns));
        std::fflush(stdout);
      }
    }
    if (!options.json.empty()) write_json(options.json, rows, options.runs);
  } catch (const attend::Error& error) {
    std::fprintf(stderr, "made_masks: %s\n", error.what());
    return 1;
  }
  return 0;
}
