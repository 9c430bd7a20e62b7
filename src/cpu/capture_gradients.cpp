// Computes the gradients of the tensors that a score function reads. It recomputes the score tiles of the backward
// pass, which repeats two of the five products.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/capture_gradients.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per SIMD target
#include <hwy/highway.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <vector>

#include "cpu/backward-inl.hpp"
#include "cpu/kernels.hpp"
#include "cpu/parallel.hpp"
#include "cpu/work_list.hpp"

HWY_BEFORE_NAMESPACE();
namespace attend::cpu::HWY_NAMESPACE {
namespace {

/// Adds the contributions of a tile, one query row after another.
void add_tile(const GradientTile& tile, const QueryTile& q, const KeyTile& k, const BackwardRowsTask& task,
              CaptureSums& sums) {
  static_assert(kBlockN <= CaptureSums::kMostKeys);
  // Number of query rows that are transposed together. In each key's row of the tile, their scores are adjacent.
  constexpr std::int64_t kRows = 16;
  HWY_ALIGN float scores[kRows][kBlockN];
  HWY_ALIGN float ds[kRows][kBlockN];
  for (std::int64_t first = 0; first < q.num_rows; first += kRows) {
    const std::int64_t rows = std::min(kRows, q.num_rows - first);
    for (std::int64_t key = 0; key < k.num_keys; ++key) {
      const std::int64_t at = key * kBackwardScoreStride + first;
      for (std::int64_t r = 0; r < rows; ++r) scores[r][key] = tile.inputs[at + r], ds[r][key] = tile.ds[at + r];
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      sums.add(function_row(task.sequence, task.head, q.row_begin + first + r, k.key_begin), scores[r], ds[r],
               static_cast<int>(k.num_keys));
    }
  }
}

void run_capture_gradients(const core::Problem& p, const BackwardRowsTask& task, CaptureSums& sums, Scratch& scratch) {
  visit_key_tiles(
      p, task, scratch, /*with_inputs=*/true, [](const QueryTile&) {},
      [&](const GradientTile& tile, const QueryTile& q, const KeyTile& k) { add_tile(tile, q, k, task, sums); });
}

}  // namespace

void capture_gradients_target(const core::Problem& p, const BackwardRowsTask& task, CaptureSums& sums,
                              Scratch& scratch) {
  run_capture_gradients(p, task, sums, scratch);
}

}  // namespace attend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attend::cpu {
namespace {

HWY_EXPORT(capture_gradients_target);

/// Returns the number of arrays of sums. If there are num_parts arrays, the contributions of the tasks n, n +
/// num_parts, n + 2 num_parts and so on are added to array n. One thread runs all of these tasks. No two threads share
/// an array. The number depends only on the problem, so the bits of a result do not depend on the number of threads.
std::int64_t num_parts(std::int64_t tasks, std::int64_t size) {
  constexpr std::int64_t kMostParts = 32, kMostSums = 1 << 25;  // 256 MiB
  return std::clamp<std::int64_t>(kMostSums / std::max<std::int64_t>(size, 1), 1,
                                  std::clamp<std::int64_t>(tasks, 1, kMostParts));
}

std::vector<std::vector<double>> arrays_of_sums(std::int64_t parts, std::int64_t size) {
  try {
    std::vector<std::vector<double>> sums(static_cast<std::size_t>(parts));
    for (std::vector<double>& own : sums) own.resize(static_cast<std::size_t>(size));
    return sums;
  } catch (const std::exception&) {  // std::bad_alloc, std::length_error
    throw Error(ErrorCode::kInternal,
                fmt::format("out of memory: {} arrays of {} sums of gradients of captures", parts, size));
  }
}

}  // namespace

bool capture_gradients(const core::Problem& p, const RowCorrections& corrections, int threads) {
  const CaptureLayout layout(p);
  const WorkList work(p, BlocksOf::kRows, kBackwardBlockM);
  const std::int64_t parts = num_parts(work.size(), layout.size());
  std::vector<std::vector<double>> sums = arrays_of_sums(parts, layout.size());
  parallel_for(parts, threads, [&](std::int64_t part) {
    const Bf16Registers registers;
    std::vector<double>& own = sums[static_cast<std::size_t>(part)];
    CaptureSums to(p, layout, own.data());
    for (std::int64_t number = part; number < work.size(); number += parts) {
      end_if_interrupted();
      const auto [sequence, head, begin, end] = work.at(number);
      HWY_DYNAMIC_DISPATCH(capture_gradients_target)
      (p, {sequence, head, begin, end, corrections}, to, Scratch::of_this_thread());
    }
    Scratch::of_this_thread().release_if_large();
  });
  std::vector<double>& total = sums.front();
  for (std::size_t part = 1; part < sums.size(); ++part) {
    for (std::size_t n = 0; n < total.size(); ++n) total[n] += sums[part][n];
  }
  if (!std::all_of(total.begin(), total.end(), [](double x) { return std::isfinite(x); })) return false;
  layout.store(total);
  return true;
}

}  // namespace attend::cpu
#endif
