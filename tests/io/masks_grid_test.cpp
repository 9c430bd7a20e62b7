// Tests `attend bench --grid masks`. Compares each mask with the same rule in C++, and checks the program's output.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "io/attend_program.hpp"
#include "io/temp_folder.hpp"
#include "workload/executor.hpp"
#include "workload/own_functions.hpp"
#include "workload/random_workload.hpp"

namespace attend::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

using Rule = std::function<bool(std::int64_t q, std::int64_t k)>;

/// Returns the line and the column of each pixel. The pixels are ordered in squares of 8 x 8.
std::vector<std::pair<std::int64_t, std::int64_t>> pixels(std::int64_t squares_in_a_row, std::int64_t count) {
  std::vector<std::pair<std::int64_t, std::int64_t>> places;
  for (std::int64_t top = 0;; top += 8) {
    for (std::int64_t left = 0; left < 8 * squares_in_a_row; left += 8) {
      for (std::int64_t y = top; y < top + 8; ++y) {
        for (std::int64_t x = left; x < left + 8; ++x) {
          if (static_cast<std::int64_t>(places.size()) == count) return places;
          places.emplace_back(y, x);
        }
      }
    }
  }
}

/// Returns the neighbourhood rule for an image of `lines` x `columns` pixels. A pixel sees a window of reach x reach
/// pixels around it. At the border the window is moved into the image.
Rule neighbours(std::int64_t lines, std::int64_t columns, std::int64_t reach, std::int64_t count) {
  const auto first = [reach](std::int64_t at, std::int64_t size) {
    return at < reach / 2 ? 0 : std::min(at - reach / 2, size - reach);
  };
  return [=, places = pixels(columns / 8, count)](std::int64_t q, std::int64_t k) {
    const auto [y, x] = places[static_cast<std::size_t>(q)];
    const auto [v, u] = places[static_cast<std::size_t>(k)];
    const std::int64_t top = first(y, lines), left = first(x, columns);
    return v >= top && v < top + reach && u >= left && u < left + reach;
  };
}

/// Returns the expected rules for 256 query rows and keys, which are 16 x 16 pixels.
std::map<std::string, Rule> rules() {
  return {{"causal-text", [](auto q, auto k) { return k <= q; }},
          {"window", [](auto q, auto k) { return k <= q && k > q - 32; }},
          {"documents", [](auto q, auto k) { return k <= q && k / 32 == q / 32; }},
          {"prefix", [](auto q, auto k) { return k <= q || k < 32; }},
          {"diffusion", [](auto q, auto k) { return k / 32 <= q / 32; }},
          {"neighbours", neighbours(16, 16, 5, 256)}};
}

cli::Workload workload_of(const std::string& name, std::int64_t seqlen) {
  const io::FolderSpec spec = cli::square_problem(2, 3, seqlen, 8, DType::kF32).spec;
  return cli::random_workload({.spec = spec, .function = name}, {}, cli::Mode::kBoth);
}

TEST(MasksGrid, EachMaskIsItsRule) {
  std::set<std::string> names;
  for (const cli::GridEntry& entry : cli::masks_grid(cli::masks_spec(DeviceType::kCPU))) names.insert(entry.function);
  EXPECT_EQ(names.size(), 12U);
  for (const auto& [name, rule] : rules()) {
    EXPECT_TRUE(names.contains(name)) << name;
    const cli::Workload w = workload_of(name, 256);
    ASSERT_TRUE(w.block_mask.has_value()) << name;
    std::int64_t seen = 0, wrong = 0;
    for (std::int64_t q = 0; q < 256; ++q) {
      for (std::int64_t k = 0; k < 256; ++k) {
        wrong += w.block_mask->sees(1, 2, q, k) != rule(q, k) ? 1 : 0;
        seen += rule(q, k) ? 1 : 0;
      }
    }
    EXPECT_EQ(wrong, 0) << name;
    EXPECT_DOUBLE_EQ(cli::share_seen(w), static_cast<double>(seen) / (256 * 256)) << name;
  }
}

/// The image is as nearly square as its number of pixels permits. The last squares of pixels may be incomplete.
TEST(MasksGrid, NeighboursOfOtherImages) {
  struct Image {
    std::int64_t pixels, lines, columns;
  };
  for (const auto& [count, lines, columns] : {Image{512, 32, 16}, Image{100, 16, 8}, Image{1024, 32, 32}}) {
    const cli::Workload w = workload_of("neighbours", count);
    const Rule rule = neighbours(lines, columns, std::min(lines, columns) * 5 / 16, count);
    for (std::int64_t q = 0; q < count; q += 3) {
      for (std::int64_t k = 0; k < count; ++k) ASSERT_EQ(w.block_mask->sees(0, 0, q, k), rule(q, k)) << count;
    }
  }
}

TEST(MasksGrid, BlocksAreWholeAndBoolsAreTheOption) {
  const cli::Workload blocks = workload_of("blocks", 700);
  for (std::int64_t q = 0; q < 700; q += 11) {
    for (std::int64_t k = 0; k < 700; ++k) {
      ASSERT_EQ(blocks.block_mask->sees(0, 0, q, k), blocks.block_mask->sees(0, 0, q / 128 * 128, k / 128 * 128));
    }
  }
  EXPECT_TRUE(blocks.block_mask->sees(0, 0, 0, 0));
  EXPECT_LT(blocks.block_mask->density(), 0.5);
  const cli::Workload bools = workload_of("bools", 256);
  EXPECT_FALSE(bools.block_mask.has_value());
  EXPECT_DOUBLE_EQ(cli::share_seen(bools), 257.0 / 512);
  EXPECT_THROW(workload_of("nonsense", 16), Error);
}

TEST(MasksGrid, OptionsAndScoresCountAsBefore) {
  for (const char* name : {"causal", "alibi", "softcap"})
    EXPECT_EQ(cli::share_seen(workload_of(name, 64)), 0.5) << name;
  const cli::Workload table = workload_of("table", 64);
  EXPECT_EQ(cli::share_seen(table), 1);
  EXPECT_EQ(table.capture_gradients.size(), 1U);
  EXPECT_EQ(workload_of("alibi", 64).capture_gradients.size(), 0U);
}

TEST(MasksGrid, TheProgramTimesEachInTurns) {
  const TempFolder folder;
  const std::string json_path = (folder / "m.json").string(), csv_path = (folder / "m.csv").string();
  const ProgramResult result = run_attend_line(
      "bench --grid masks --problem 1,2,256,16 --dtype bf16 --repeat 1 --compute cpu,cpu_naive,reference " +
      ("--json " + json_path) + " --csv " + csv_path);
  ASSERT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("cpu_naive          left out at B1_H2_S256_D16_bf16 causal-text: "));
  const json rows = json::parse(read_file(json_path));
  std::map<std::string, int> passes;
  for (const json& row : rows) {
    ++passes[row["function"].get<std::string>()];
    EXPECT_THAT(result.out, HasSubstr(" " + row["function"].get<std::string>() + " "));
    const double full = 4.0 * 2 * 256 * 256 * 16 * (row["mode"] == "backward" ? 2.5 : 1);
    const double seen = row["seen"];
    EXPECT_NEAR(row["tflops"].get<double>() * row["ms"].get<double>() * 1e9, full * seen, 1e-6 * full);
    EXPECT_GT(row["ms"], 0);
    EXPECT_EQ(row["dtype"], "bf16");
  }
  EXPECT_EQ(passes.size(), 12U);
  for (const auto& [name, count] : passes) EXPECT_EQ(count, 4) << name;  // two backends with two passes each
  EXPECT_EQ(rows[0]["compute"], "cpu");
  EXPECT_EQ(rows[1]["compute"], "reference");
  EXPECT_THAT(read_file(csv_path), HasSubstr(",function,seen\n"));
}

TEST(MasksGrid, HasSizesForEachDevice) {
  EXPECT_EQ(io::folder_name(cli::masks_spec(DeviceType::kCUDA)), "B2_H16_S8192_D128_bf16");
  EXPECT_EQ(io::folder_name(cli::masks_spec(DeviceType::kCPU)), "B1_H4_S1024_D64");
  EXPECT_EQ(cli::device_of({"cpu"}, {}), DeviceType::kCPU);
  EXPECT_EQ(cli::device_of({"simt", "sm90_forward"}, {}), DeviceType::kCUDA);
  EXPECT_EQ(cli::device_of({"simt", "cpu"}, {}), DeviceType::kCPU);
  EXPECT_EQ(cli::device_of({"auto"}, DeviceType::kCUDA), DeviceType::kCUDA);
}

}  // namespace
}  // namespace attend::test
