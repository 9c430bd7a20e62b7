// Runs the blocks of a launch one after another. If all threads of a block wait, the block's shared memory is saved and
// other blocks run.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "cuda_words.hpp"

namespace emulated {

/// Runs all blocks. Returns false if a block wrote beyond its requested shared memory.
inline bool run_grid(void (*entry)(), unsigned blocks, unsigned threads, unsigned smem_bytes, unsigned seed) {
  struct Waiting {
    std::unique_ptr<Block> block;
    std::vector<char> smem;
  };
  const auto is_within = [&] {
    for (std::size_t at = smem_bytes; at < sizeof(attend::smem); ++at) {
      if (attend::smem[at] != '\xff') return false;
    }
    return true;
  };
  std::vector<Waiting> waiting;
  grid = {blocks, 1, 1};
  for (unsigned b = 0; b < blocks; ++b) {
    std::memset(attend::smem, 0xff, sizeof(attend::smem));
    auto one = std::make_unique<Block>(static_cast<int>(threads), Index{b, 0, 0}, seed + b);
    one->start(entry);
    const bool is_done = one->resume();
    if (!is_within()) return false;
    if (!is_done) waiting.push_back({std::move(one), {attend::smem, attend::smem + smem_bytes}});
  }
  while (!waiting.empty()) {
    bool has_happened = false;  // whether any block made progress in this pass
    std::vector<Waiting> still;
    for (Waiting& w : waiting) {
      std::memcpy(attend::smem, w.smem.data(), smem_bytes);
      const unsigned long before = w.block->events();
      const bool is_done = w.block->resume();
      has_happened = has_happened || is_done || w.block->events() != before;
      if (is_done) continue;
      std::memcpy(w.smem.data(), attend::smem, smem_bytes);
      still.push_back(std::move(w));
    }
    if (!has_happened) {
      std::fprintf(stderr, "emulated blocks: every thread waits, and none for what another will do\n");
      std::abort();
    }
    waiting = std::move(still);
  }
  return true;
}

}  // namespace emulated
