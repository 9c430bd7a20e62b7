#include "workload/grid.hpp"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "core/problem.hpp"
#include "io/file.hpp"

namespace attend::cli {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxGridBytes = 1 << 20;

std::vector<GridEntry> seed_grid(DType dtype) {
  constexpr std::array<std::array<std::int64_t, 4>, 10> kSizes = {{{1, 1, 128, 64},
                                                                   {2, 4, 256, 64},
                                                                   {2, 8, 256, 64},
                                                                   {8, 16, 32, 64},
                                                                   {2, 8, 512, 64},
                                                                   {8, 16, 100, 64},
                                                                   {4, 8, 512, 64},
                                                                   {2, 8, 1024, 64},
                                                                   {4, 12, 1024, 64},
                                                                   {8, 16, 2048, 64}}};
  std::vector<GridEntry> specs;
  for (const auto& [batch, heads, seqlen, head_dim] : kSizes)
    specs.push_back(square_problem(batch, heads, seqlen, head_dim, dtype));
  return specs;
}

/// Problems with 16384 tokens and 2048 channels, full and causal, as in the tables of the FlashAttention papers.
std::vector<GridEntry> paper_grid(DType dtype) {
  constexpr std::int64_t kTokens = 16384;
  constexpr std::int64_t kChannels = 2048;
  std::vector<GridEntry> specs;
  for (const bool causal : {false, true}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (std::int64_t seqlen = 512; seqlen <= kTokens; seqlen *= 2) {
        specs.push_back(square_problem(kTokens / seqlen, kChannels / head_dim, seqlen, head_dim, dtype, causal));
      }
    }
  }
  return specs;
}

/// Problems with the heads of GPT-3 (Brown et al. 2020, table 2.1), full and causal.
std::vector<GridEntry> gpt3_grid(DType dtype) {
  constexpr std::int64_t kBatch = 4;
  constexpr std::int64_t kHeads = 96;
  constexpr std::int64_t kHeadDim = 128;
  std::vector<GridEntry> specs;
  for (const bool causal : {false, true}) {
    for (std::int64_t seqlen = 512; seqlen <= 16384; seqlen *= 2) {
      specs.push_back(square_problem(kBatch, kHeads, seqlen, kHeadDim, dtype, causal));
    }
  }
  return specs;
}

/// One entry of a grid file. Records which keys have been read, so that unknown keys can be reported.
class Entry {
 public:
  Entry(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) fail("not an object, allowed {\"B\": 2, \"H\": 8, \"S\": 512, \"D\": 64}");
  }

  [[noreturn]] void fail(const std::string& what) const { throw Error(ErrorCode::kIo, where_ + ": " + what); }

  std::int64_t size(const char* key, std::int64_t otherwise, std::int64_t largest = core::kMaxLength) {
    const auto found = object_.find(key);
    if (found == object_.end()) {
      if (otherwise > 0) return otherwise;
      fail(fmt::format("no {}, allowed integers from 1 to {}", key, largest));
    }
    ++used_;
    const bool fits = found->is_number_integer() && *found >= 1 && *found <= largest;
    if (!fits) fail(fmt::format("{} is {}, allowed integers from 1 to {}", key, found->dump(-1, ' ', true), largest));
    return found->get<std::int64_t>();
  }

  bool flag(const char* key) {
    const auto found = object_.find(key);
    if (found == object_.end()) return false;
    ++used_;
    if (!found->is_boolean()) fail(fmt::format("{} is {}, allowed true, false", key, found->dump(-1, ' ', true)));
    return found->get<bool>();
  }

  void finish() const {
    if (used_ != object_.size()) fail("unknown keys, allowed B, H, Hkv, S or Sq and Sk, D, Dv, causal");
  }

 private:
  const Json& object_;
  std::string where_;
  std::size_t used_ = 0;
};

}  // namespace

GridEntry square_problem(std::int64_t batch, std::int64_t heads, std::int64_t seqlen, std::int64_t head_dim,
                         DType dtype, bool causal) {
  return {.spec = {batch, heads, heads, seqlen, seqlen, head_dim, head_dim, dtype}, .causal = causal};
}

std::vector<GridEntry> parse_grid(std::string_view text, std::string_view name, DType dtype) {
  const Json list = Json::parse(text, nullptr, false);
  if (!list.is_array() || list.empty()) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: not a JSON list, allowed [{{\"B\": 2, \"H\": 8, \"S\": 512, \"D\": 64}}]", name));
  }
  std::vector<GridEntry> specs;
  for (const Json& object : list) {
    Entry entry(object, fmt::format("{}: entry {}", name, specs.size() + 1));
    io::FolderSpec spec;
    spec.dtype = dtype;
    spec.batch = entry.size("B", 0);
    spec.num_heads = entry.size("H", 0);
    spec.num_heads_kv = entry.size("Hkv", spec.num_heads);
    const bool one_length = object.contains("S");
    spec.seqlen_q = entry.size(one_length ? "S" : "Sq", 0);
    spec.seqlen_k = one_length ? spec.seqlen_q : entry.size("Sk", 0);
    spec.head_dim = entry.size("D", 0, core::kMaxHeadDim);
    spec.head_dim_v = entry.size("Dv", spec.head_dim, core::kMaxHeadDim);
    const bool causal = entry.flag("causal");
    entry.finish();
    if (spec.num_heads % spec.num_heads_kv != 0) {
      entry.fail(fmt::format("Hkv is {}, allowed a divisor of H {}", spec.num_heads_kv, spec.num_heads));
    }
    specs.push_back({.spec = spec, .causal = causal});
  }
  return specs;
}

std::vector<GridEntry> load_grid(const std::string& grid, DType dtype) {
  if (grid == "seed") return seed_grid(dtype);
  if (grid == "paper") return paper_grid(dtype);
  if (grid == "gpt3") return gpt3_grid(dtype);
  std::error_code error;
  if (!std::filesystem::exists(grid, error)) {
    throw Error(ErrorCode::kIo, fmt::format("--grid: '{}', allowed seed, paper, gpt3, masks or a JSON file", grid));
  }
  const io::InputFile file(grid);
  if (file.size() > kMaxGridBytes) {
    throw Error(ErrorCode::kIo, fmt::format("{}: {} bytes, allowed at most {}", grid, file.size(), kMaxGridBytes));
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return parse_grid(text, grid, dtype);
}

}  // namespace attend::cli
