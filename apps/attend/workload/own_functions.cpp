#include "workload/own_functions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

namespace attend::cli {
namespace {

using Index = std::int64_t;
using Captures = std::vector<UserScore::Capture>;

struct OwnFunction {
  const char* name;
  void (*add)(Workload& w);
};

Index rows_of(const Workload& w) {
  return w.q.shape()[2];
}
Index keys_of(const Workload& w) {
  return w.k.shape()[2];
}
Index heads_of(const Workload& w) {
  return w.q.shape()[1];
}

/// Returns the size of windows, documents and prefixes, which is an eighth of the number of keys.
Index reach_of(const Workload& w) {
  return std::max<Index>(keys_of(w) / 8, 1);
}

/// Returns a dense tensor whose element n is value(n).
template <class T, class Value>
UserScore::Capture capture(const char* name, DType dtype, const std::vector<Index>& shape, Value value) {
  Shape four = {1, 1, 1, 1};
  std::copy(shape.begin(), shape.end(), four.begin());
  io::HostTensor tensor(dtype, four);
  T* elements = static_cast<T*>(tensor.view().data);
  for (Index n = 0; n < tensor.numel(); ++n) elements[n] = value(n);
  return {name, {std::move(tensor), shape}, false};
}

void add_mask(Workload& w, const std::string& text, const Captures& captures = {}) {
  w.block_mask =
      make_block_mask(MaskFunction(text, views_of(captures)), {w.q.shape()[0], heads_of(w), rows_of(w), keys_of(w)});
}

void add_score(Workload& w, const std::string& text, Captures captures = {}) {
  w.score = std::make_shared<const UserScore>(text, std::move(captures));
}

void add_documents(Workload& w) {
  const Index length = reach_of(w), tokens = std::max(rows_of(w), keys_of(w));
  Captures captures;
  captures.push_back(capture<std::int32_t>("doc", DType::kI32, {tokens},
                                           [length](Index n) { return static_cast<std::int32_t>(n / length); }));
  add_mask(w, "k <= q && doc[q] == doc[k]", captures);
}

/// Returns the number of squares of 8 x 8 pixels next to each other in an image. The image is about as wide as it is
/// high.
Index squares_in_a_row(Index pixels) {
  const auto most = std::max<Index>(static_cast<Index>(std::sqrt(static_cast<double>(pixels))) / 8, 1);
  for (Index n = most; n > most / 2; --n) {
    if (pixels % (64 * n) == 0) return n;  // with n squares in a row, the last row is complete
  }
  return most;
}

/// Adds the mask of neighbourhood attention (NATTEN). The tokens are the pixels of an image, ordered in squares. Each
/// pixel sees a window of pixels around it. At an edge of the image, the window is shifted so that it stays inside.
void add_neighbours(Workload& w) {
  const Index pixels = std::max(rows_of(w), keys_of(w)), squares = squares_in_a_row(pixels);
  const Index columns = 8 * squares, lines = 8 * ((pixels + 64 * squares - 1) / (64 * squares));
  const Index reach = std::max<Index>(std::min(columns, lines) * 5 / 16, 1);
  const auto place = [squares](char n) {
    return fmt::format("let y{0} = {0} // 64 // {1} * 8 + {0} % 64 // 8;\nlet x{0} = {0} // 64 % {1} * 8 + {0} % 8;\n",
                       n, squares);
  };
  add_mask(w, place('q') + place('k') +
                  fmt::format("let top = clamp(yq - {0}, 0, {1});\nlet left = clamp(xq - {0}, 0, {2});\n"
                              "yk >= top && yk < top + {3} && xk >= left && xk < left + {3}",
                              reach / 2, lines - reach, columns - reach, reach));
}

/// Adds a mask over blocks of 128 rows and 128 keys. A random 12 % of the blocks are visible. The first block is always
/// visible, so that the mask is not empty.
void add_blocks(Workload& w) {
  constexpr std::uint64_t kShare = 12;
  const Index rows = (rows_of(w) + 127) / 128, keys = (keys_of(w) + 127) / 128;
  std::mt19937_64 random(3);
  Captures captures;
  captures.push_back(capture<std::uint8_t>("keep", DType::kBool, {rows, keys}, [&random](Index n) {
    return static_cast<std::uint8_t>(random() % 100 < kShare || n == 0);
  }));
  add_mask(w, "keep[q // 128][k // 128]", captures);
}

/// Adds the option `mask`, with a bool for each pair of a row and a key. The bools also hide the keys after each row.
void add_bools(Workload& w) {
  const auto row = std::find_if(core::kScoreTensors.begin(), core::kScoreTensors.end(),
                                [](const core::ScoreTensor& tensor) { return tensor.dtype == DType::kBool; });
  io::HostTensor mask(DType::kBool, {1, 1, rows_of(w), keys_of(w)});
  std::uint8_t* bools = static_cast<std::uint8_t*>(mask.view().data);
  for (Index q = 0; q < rows_of(w); ++q) {
    for (Index k = 0; k < keys_of(w); ++k) *bools++ = k <= q ? 1 : 0;
  }
  w.score_tensors[static_cast<std::size_t>(row - core::kScoreTensors.begin())] = std::move(mask);
}

void add_alibi(Workload& w) {
  const auto heads = static_cast<double>(heads_of(w));
  Captures captures;
  captures.push_back(capture<float>("slope", DType::kF32, {heads_of(w)}, [heads](Index n) {
    return static_cast<float>(std::exp2(-8 * static_cast<double>(n + 1) / heads));
  }));
  captures.back().is_constant = true;  // no gradient, as for the option alibi_slopes
  w.options.causal = true;
  add_score(w, "score - slope[h] * abs(q - k)", std::move(captures));
}

void add_table(Workload& w) {
  Captures captures;
  captures.push_back(capture<float>("table", DType::kF32, {heads_of(w), 256},
                                    [](Index n) { return static_cast<float>(n * 37 % 257) / 128 - 1; }));
  add_score(w, "score + table[h][clamp(q - k, -128, 127) + 128]", std::move(captures));
}

// If the library has an option for a mask or score, two entries follow each other. The first uses the option, and the
// second uses an equivalent function.
constexpr OwnFunction kFunctions[] = {
    {"causal", [](Workload& w) { w.options.causal = true; }},
    {"causal-text", [](Workload& w) { add_mask(w, "k <= q"); }},
    {"window", [](Workload& w) { add_mask(w, fmt::format("k <= q && q - k < {}", reach_of(w))); }},
    {"documents", add_documents},
    {"prefix", [](Workload& w) { add_mask(w, fmt::format("k <= q || k < {}", reach_of(w))); }},
    {"diffusion", [](Workload& w) { add_mask(w, "q // 32 >= k // 32"); }},
    {"neighbours", add_neighbours},
    {"blocks", add_blocks},
    {"bools", add_bools},
    {"alibi", add_alibi},
    {"softcap",
     [](Workload& w) {
       w.options.causal = true;
       add_score(w, "50 * tanh(score / 50)");
     }},
    {"table", add_table},
};

}  // namespace

std::vector<GridEntry> masks_grid(const io::FolderSpec& spec) {
  std::vector<GridEntry> entries;
  for (const OwnFunction& function : kFunctions) entries.push_back({.spec = spec, .function = function.name});
  return entries;
}

io::FolderSpec masks_spec(DeviceType device) {
  return device == DeviceType::kCUDA ? square_problem(2, 16, 8192, 128, DType::kBF16).spec
                                     : square_problem(1, 4, 1024, 64, DType::kF32).spec;
}

void add_own_function(const std::string& name, Workload& w) {
  for (const OwnFunction& function : kFunctions) {
    if (name == function.name) return function.add(w);
  }
  throw Error(ErrorCode::kInvalidArgument, fmt::format("function: '{}', allowed those of --grid masks", name));
}

}  // namespace attend::cli
