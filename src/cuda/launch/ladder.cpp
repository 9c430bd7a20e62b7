#include "cuda/launch/ladder.hpp"

#include <iterator>

namespace attend::cuda {
namespace {

std::vector<Rung> assemble() {
  std::vector<Rung> rungs;
  for (auto family : {simt_rungs, fa2_rungs, mma_rungs, wgmma_rungs}) {
    std::vector<Rung> more = family();
    rungs.insert(rungs.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  return rungs;
}

}  // namespace

std::span<const Rung> ladder() {
  static const auto* rungs = new std::vector<Rung>(assemble());  // launches may go on while the process ends
  return *rungs;
}

const Rung* find_rung(std::string_view name) {
  for (const Rung& rung : ladder()) {
    if (name == rung.name) return &rung;
  }
  return nullptr;
}

}  // namespace attend::cuda
