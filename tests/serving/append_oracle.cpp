// Computes the expected result of append in float64 from its documentation. The code here handles one row at a time and
// shares no code with src/.
#include <algorithm>
#include <cmath>

#include "core/elements.hpp"
#include "serving/append_case.hpp"

namespace attend::test {
namespace {

std::vector<double> row_of(const TensorBuffer& t, std::int64_t batch, std::int64_t head, std::int64_t row) {
  std::vector<double> values;
  for (std::int64_t c = 0; c < t.shape()[3]; ++c) values.push_back(t.at(batch, head, row, c));
  return values;
}

void normalise(std::vector<double>& x, const TensorBuffer& weight, double eps) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  const double root = std::sqrt(sum / static_cast<double>(x.size()) + eps);
  for (std::size_t c = 0; c < x.size(); ++c) x[c] = x[c] / root * weight.at(0, 0, 0, static_cast<std::int64_t>(c));
}

void rotate(std::vector<double>& x, const AppendInputs& in, const Rotary& rotary, std::int64_t position) {
  const std::int64_t half = in.cos.shape()[3];
  const std::int64_t at = std::max<std::int64_t>(0, std::min(position, in.cos.shape()[2] - 1));
  for (std::int64_t c = 0; c < half; ++c) {
    double& a = x.at(rotary.first_column + (rotary.interleaved ? 2 * c : c));
    double& b = x.at(rotary.first_column + (rotary.interleaved ? 2 * c + 1 : half + c));
    const double cos = in.cos.at(0, 0, at, c), sin = in.sin.at(0, 0, at, c);
    const double turned = a * cos - b * sin;
    b = b * cos + a * sin;
    a = turned;
  }
}

/// Position of one sequence's rows in a tensor.
struct Rows {
  std::int64_t batch, begin, count, first_token;
};

Rows rows_of(const std::int32_t* offsets, const Shape& shape, std::int64_t s) {
  if (offsets != nullptr) return {0, offsets[s], offsets[s + 1] - offsets[s], offsets[s]};
  return {s, 0, shape[2], s * shape[2]};
}

class Oracle {
 public:
  explicit Oracle(const AppendInputs& in) : in_(in), call_(in.call()) {}

  std::vector<ExpectedRow> all() {
    for (std::int64_t s = 0; s < in_.options.num_sequences; ++s) add_sequence(s);
    return std::move(rows_);
  }

 private:
  void add_sequence(std::int64_t s) {
    const CacheIndex& cache = call_.cache;
    const bool by_slot = call_.slot_mapping != nullptr;
    std::int64_t length = cache.seqlens_k != nullptr ? cache.seqlens_k[s] : 0;
    if (length < 0) return;
    std::int64_t cache_row = cache.cache_batch_idx != nullptr ? cache.cache_batch_idx[s] : s;
    const std::int64_t block = call_.k_cache.shape[2];
    if (!by_slot) {
      const std::int64_t num_rows = cache.page_table ? cache.page_table->num_rows : call_.k_cache.shape[0];
      if (cache_row < 0 || cache_row >= num_rows) return;
      length = std::min(length, cache.page_table ? cache.page_table->pages_per_row * block : block);
    }
    const Rows new_rows = rows_of(call_.cu_seqlens_new, call_.k.shape, s);
    const auto position = [&](std::int64_t i) -> std::int64_t {
      if (call_.positions != nullptr) return call_.positions[new_rows.first_token + i];
      return i + (call_.rotary && call_.rotary->seqlens != nullptr ? call_.rotary->seqlens[s] : length);
    };
    for (std::int64_t i = 0; i < new_rows.count; ++i) {
      const Place at = by_slot ? slot_place(new_rows.first_token + i) : key_place(cache_row, length + i);
      if (at.block >= 0) add_new_row(new_rows, i, s, at, position(i));
    }
    if (!call_.q) return;
    const Rows q_rows = rows_of(call_.cu_seqlens_q, call_.q->shape, s);
    for (std::int64_t i = 0; i < q_rows.count; ++i) {
      std::int64_t at = 0;
      if (call_.query_positions == QueryPositions::kFirst) at = i;
      if (call_.query_positions == QueryPositions::kLast) at = new_rows.count - (q_rows.count - i);
      for (std::int64_t head = 0; head < in_.q.shape()[1]; ++head) {
        add_computed(row_of(in_.q, q_rows.batch, head, q_rows.begin + i), in_.q_norm, position(at),
                     core::element(in_.q_out.view(), q_rows.batch, head, q_rows.begin + i), in_.q.dtype());
      }
    }
  }

  struct Place {
    std::int64_t block, row;
  };

  [[nodiscard]] Place slot_place(std::int64_t token) const {
    const std::int64_t slot = call_.slot_mapping[token], block = call_.k_cache.shape[2];
    if (slot < 0 || slot / block >= call_.k_cache.shape[0]) return {-1, 0};
    return {slot / block, slot % block};
  }

  [[nodiscard]] Place key_place(std::int64_t cache_row, std::int64_t key) const {
    const std::int64_t block = call_.k_cache.shape[2];
    if (!call_.cache.page_table) return {key < block ? cache_row : -1, key};
    const PageTable& table = *call_.cache.page_table;
    if (key / block >= table.pages_per_row) return {-1, 0};
    const std::int64_t page = table.pages[cache_row * table.row_stride + key / block];
    return {page < call_.k_cache.shape[0] ? page : -1, key % block};
  }

  void add_new_row(const Rows& rows, std::int64_t i, std::int64_t s, const Place& at, std::int64_t position) {
    for (std::int64_t head = 0; head < in_.options.heads; ++head) {
      add_computed(row_of(in_.k, rows.batch, head, rows.begin + i), in_.k_norm, position,
                   core::element(in_.k_cache, at.block, head, at.row), in_.k_cache.dtype);
      rows_.back().descale = descale(in_.k_descale, s, head, at);
      if (!call_.v) continue;
      rows_.push_back({core::element(in_.v_cache, at.block, head, at.row), in_.v_cache.dtype, true,
                       row_of(in_.v, rows.batch, head, rows.begin + i), descale(in_.v_descale, s, head, at)});
    }
  }

  /// Returns the descale factor of a cache row, or 1 if the call has no descale factors.
  [[nodiscard]] double descale(const TensorBuffer& descales, std::int64_t s, std::int64_t head, const Place& at) const {
    const Descales kind = descales.view().data == nullptr ? Descales::kNone : in_.options.descales;
    return descale_at(descales, kind, s, head, at.block, at.row);
  }

  void add_computed(std::vector<double> x, const TensorBuffer& norm, std::int64_t position, void* data, DType dtype) {
    if (in_.options.norm) normalise(x, norm, call_.norm_eps);
    if (call_.rotary) rotate(x, in_, *call_.rotary, position);
    rows_.push_back({data, dtype, !in_.options.norm && !call_.rotary, std::move(x)});
  }

  const AppendInputs& in_;
  const AppendCall call_;
  std::vector<ExpectedRow> rows_;
};

}  // namespace

std::vector<ExpectedRow> expected_rows(const AppendInputs& in) {
  return Oracle(in).all();
}

}  // namespace attend::test
