// A prompt of 20 tokens, then three single tokens, for two sequences that share a pool of pages.
#include <algorithm>
#include <attend/attention.hpp>
#include <attend/serving.hpp>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

namespace {

constexpr std::int64_t kBatch = 2, kHeadsQ = 4, kHeadsK = 2, kHeadDim = 64;
constexpr std::int64_t kPageSize = 16, kPagesPerRow = 4, kPages = kBatch * kPagesPerRow;

std::mt19937 engine(1);

/// (batch, heads, rows, kHeadDim) random floats and attend's view of them.
struct Matrix {
  std::vector<float> data;
  attend::Tensor view;

  Matrix(std::int64_t batch, std::int64_t heads, std::int64_t rows)
      : data(static_cast<std::size_t>(batch * heads * rows * kHeadDim)),
        view(attend::Tensor::bhsd(data.data(), attend::DType::kF32, {batch, heads, rows, kHeadDim})) {
    std::normal_distribution<float> normal;
    for (float& x : data) x = normal(engine);
  }
};

}  // namespace

int main() try {
  Matrix k_pages(kPages, kHeadsK, kPageSize), v_pages(kPages, kHeadsK, kPageSize);
  std::vector<std::int32_t> pages(kPages), lengths(kBatch, 0);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), engine);
  const attend::CacheIndex paged = {
      .seqlens_k = lengths.data(),
      .page_table = attend::PageTable{
          .pages = pages.data(), .num_rows = kBatch, .pages_per_row = kPagesPerRow, .row_stride = kPagesPerRow}};
  // A second, contiguous cache with the keys of each sequence in one piece, so attend::forward can read it too.
  Matrix k_rows(kBatch, kHeadsK, 64), v_rows(kBatch, kHeadsK, 64);

  float worst = 0;
  for (const std::int64_t rows : {20, 1, 1, 1}) {
    Matrix q(kBatch, kHeadsQ, rows), k(kBatch, kHeadsK, rows), v(kBatch, kHeadsK, rows), o(kBatch, kHeadsQ, rows);
    // One call: the new keys are written into the pages, and the rows of q see them and all earlier keys.
    attend::decode({.k = k.view, .v = v.view, .k_cache = k_pages.view, .v_cache = v_pages.view, .cache = paged},
                   {.q = q.view, .k_cache = k_pages.view, .v_cache = v_pages.view, .o = o.view, .cache = paged});
    // Alternatively two calls: append first, then decode (here: forward) with lengths that include the new keys.
    attend::append({.k = k.view,
                    .v = v.view,
                    .k_cache = k_rows.view,
                    .v_cache = v_rows.view,
                    .cache = {.seqlens_k = lengths.data()}});
    for (std::int32_t& length : lengths) length += static_cast<std::int32_t>(rows);

    Matrix want(kBatch, kHeadsQ, rows);
    attend::Tensor keys = k_rows.view, values = v_rows.view;
    keys.shape[2] = values.shape[2] = lengths[0];
    attend::forward({.q = q.view, .k = keys, .v = values, .o = want.view, .params = {.causal = true}});
    for (std::size_t i = 0; i < o.data.size(); ++i) worst = std::max(worst, std::abs(o.data[i] - want.data[i]));
  }
  std::printf("largest difference from attend::forward: %.2g\n", worst);
  std::puts(worst <= 1e-5F ? "serving: ok" : "serving: FAILED");
  return worst <= 1e-5F ? 0 : 1;
} catch (const attend::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
