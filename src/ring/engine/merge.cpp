#include "ring/engine/merge.hpp"

#include <limits>

#include "core/elements.hpp"
#include "core/merged_lse.hpp"
#include "cpu/parallel.hpp"
#include "ring/engine/sum_type.hpp"

namespace attend::ring {

MergedRows::MergedRows(const Shape& shape)
    : shape_(shape),
      o_(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3])),
      lse_(static_cast<std::size_t>(shape[0] * shape[1] * shape[2]), -std::numeric_limits<double>::infinity()) {}

void MergedRows::add(std::int64_t row_begin, const Tensor& o, const Tensor& lse) {
  with_sum_type(o.dtype, [&]<class Part>(Part) { add_as<Part>(row_begin, o, lse); });
}

template <class Part>
void MergedRows::add_as(std::int64_t row_begin, const Tensor& o, const Tensor& lse) {
  cpu::parallel_for(o.shape[0] * o.shape[1], cpu::max_threads(), [&](std::int64_t index) {
    const std::int64_t batch = index / o.shape[1];
    const std::int64_t head = index % o.shape[1];
    for (std::int64_t row = 0; row < o.shape[2]; ++row) {
      const std::int64_t at = (batch * shape_[1] + head) * shape_[2] + row_begin + row;
      const double part_lse = core::load(lse, batch, head, row, 0);
      if (part_lse == -std::numeric_limits<double>::infinity()) continue;
      const core::MergedLse merged = core::merge_lse(lse_[at], part_lse);
      double* sum = o_.data() + at * shape_[3];
      const Part* part = static_cast<const Part*>(core::element(o, batch, head, row));
      for (std::int64_t c = 0; c < shape_[3]; ++c) {
        sum[c] = merged.weight_a * sum[c] + merged.weight_b * static_cast<double>(part[c]);
      }
      lse_[at] = merged.lse;
    }
  });
}

void MergedRows::store(const Tensor& o, const Tensor* lse) const {
  cpu::parallel_for(shape_[0] * shape_[1], cpu::max_threads(), [&](std::int64_t index) {
    const std::int64_t batch = index / shape_[1];
    const std::int64_t head = index % shape_[1];
    for (std::int64_t row = 0; row < shape_[2]; ++row) {
      const std::int64_t at = index * shape_[2] + row;
      for (std::int64_t c = 0; c < shape_[3]; ++c) core::store(o, batch, head, row, c, o_[at * shape_[3] + c]);
      if (lse != nullptr) core::store(*lse, batch, head, row, 0, lse_[at]);
    }
  });
}

}  // namespace attend::ring
