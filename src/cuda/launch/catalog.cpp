#include "cuda/launch/catalog.hpp"

#include "cuda/launch/ladder_naive.hpp"

namespace attend::cuda {
namespace {

bool every_arch(const Arch& /*arch*/) {
  return true;
}

constexpr CatalogEntry kCatalog[] = {
    {"naive", "rung 02: one thread for each query row, online softmax (float32)", every_arch, naive_variants, true},
};

}  // namespace

std::span<const CatalogEntry> catalog() noexcept {
  return kCatalog;
}

}  // namespace attend::cuda
