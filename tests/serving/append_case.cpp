#include "serving/append_case.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <sstream>

#include "core/dtype_traits.hpp"
#include "core/elements.hpp"

namespace attend::test {
namespace {

using Random = std::mt19937_64;

constexpr std::int64_t kContiguousCapacity = 37;
constexpr std::int64_t kMaxPositions = 80;

std::int64_t draw(Random& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

TensorBuffer normal(Random& random, DType dtype, const Shape& shape, Placement placement = {}) {
  std::normal_distribution<double> distribution;
  TensorBuffer t(dtype, shape, placement);
  t.generate([&](auto...) { return distribution(random); });
  return t;
}

/// Returns the lengths of `count` sequences. One length is 0, the others are random and at most `most`.
std::vector<std::int64_t> some_lengths(Random& random, std::int64_t count, std::int64_t most) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t s = 0; s < count; ++s) lengths.push_back(s == 1 ? 0 : draw(random, 1, most));
  return lengths;
}

TensorArray<std::int32_t> offsets_of(const std::vector<std::int64_t>& lengths) {
  TensorArray<std::int32_t> offsets = {0};
  for (const std::int64_t length : lengths) offsets.push_back(offsets.back() + static_cast<std::int32_t>(length));
  return offsets;
}

std::vector<std::int64_t> shuffled(Random& random, std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

/// Returns the number of query rows of a sequence with `seqlen_new` new rows.
std::int64_t query_rows(QueryKind kind, std::int64_t seqlen_new) {
  switch (kind) {
    case QueryKind::kNone:
    case QueryKind::kLikeKeys:
    case QueryKind::kInPlace:
      return seqlen_new;
    case QueryKind::kFewerLast:
      return std::min<std::int64_t>(seqlen_new, 2);
    case QueryKind::kMoreLast:
    case QueryKind::kMoreFirst:
      return seqlen_new + 2;
    case QueryKind::kOne:
      return seqlen_new == 0 ? 0 : seqlen_new + 2;
  }
  return 0;
}

struct RotaryShape {
  std::int64_t first, dim;
};

RotaryShape rotary_shape(const AppendCase& c) {
  switch (c.rotary) {
    case RotaryKind::kNone:
      return {0, 0};
    case RotaryKind::kHalves:
    case RotaryKind::kNeighbours:
      return {0, c.head_dim / 2 * 2};
    case RotaryKind::kSomeHalves:
      return {0, c.head_dim / 4 * 2};
    case RotaryKind::kLastNeighbours:
      return {c.head_dim - c.head_dim / 4 * 2, c.head_dim / 4 * 2};
  }
  return {0, 0};
}

/// Builds the inputs of one append case.
class Maker {
 public:
  explicit Maker(const AppendCase& c) : random_(c.seed * 7919 + 11) { in_.options = c; }

  AppendInputs make() {
    make_rows();
    make_cache();
    make_index();
    make_slots();
    make_positions();
    make_numbers();
    return std::move(in_);
  }

 private:
  void make_rows() {
    const AppendCase& c = in_.options;
    std::vector<std::int64_t> new_rows(static_cast<std::size_t>(c.num_sequences), c.most_new);
    if (c.packed) new_rows = some_lengths(random_, c.num_sequences, c.most_new);
    std::vector<std::int64_t> q_rows;
    for (const std::int64_t rows : new_rows) q_rows.push_back(query_rows(c.queries, rows));
    if (c.packed) in_.cu_seqlens_new = offsets_of(new_rows);
    if (c.packed_q) in_.cu_seqlens_q = offsets_of(q_rows);
    constexpr std::int64_t kUnowned = 2;  // number of packed rows after the last sequence
    const auto shape = [&](const TensorArray<std::int32_t>& offsets, std::int64_t rows, std::int64_t heads) {
      if (!offsets.empty()) return Shape{1, heads, offsets.back() + kUnowned, c.head_dim};
      return Shape{c.num_sequences, heads, rows, c.head_dim};
    };
    const Shape k = shape(in_.cu_seqlens_new, c.most_new, c.heads);
    const Shape q = shape(in_.cu_seqlens_q, q_rows.empty() ? 0 : q_rows[0], c.heads_q);
    Shape v = k;
    v[3] = c.head_dim_v;
    if (c.fused) {
      const auto all = TensorBuffer::fused(c.dtype, {q, k, v}, 3);
      std::normal_distribution<double> distribution;
      for (const TensorBuffer& t : all) t.generate([&](auto...) { return distribution(random_); });
      in_.q = all[0], in_.k = all[1], in_.v = all[2];
    } else {
      in_.q = normal(random_, c.dtype, q, {c.layout, 1});
      in_.k = normal(random_, c.dtype, k, {c.layout, 5});
      in_.v = normal(random_, c.dtype, v, {c.layout, 2});
    }
    in_.q_out = c.queries == QueryKind::kInPlace ? in_.q : TensorBuffer(c.dtype, q, {c.layout, 7});
  }

  /// Allocates the pool of cache pages and makes k_cache and v_cache views of it.
  void make_cache() {
    const AppendCase& c = in_.options;
    const std::int64_t block = c.page_size == 0 ? kContiguousCapacity : c.page_size;
    in_.num_rows = c.num_sequences + 2;
    in_.pages_per_row = c.page_size == 0 ? 0 : (kContiguousCapacity + block - 1) / block;
    const std::int64_t blocks = c.page_size == 0 ? in_.num_rows : in_.num_rows * in_.pages_per_row + 3;
    const std::int64_t bytes = dtype_bytes(c.cache_dtype);
    const std::int64_t k_page = c.heads * block * c.head_dim, v_page = c.heads * block * c.head_dim_v;
    const std::int64_t v_begin = c.pool == PoolLayout::kOnePool ? k_page : blocks * k_page;
    // Bytes before and after the pages, so that an access outside the pages is detected.
    const std::int64_t guard = 2 * (k_page + v_page);
    in_.pool.assign(static_cast<std::size_t>((2 * guard + blocks * (k_page + v_page)) * bytes), std::byte{0xFF});
    const auto view = [&](std::int64_t begin, std::int64_t head_dim, std::int64_t page) {
      Tensor t = {in_.pool.data() + (guard + begin) * bytes, c.cache_dtype, {}, {blocks, c.heads, block, head_dim}, {}};
      t.stride = {page, block * head_dim, head_dim, 1};
      if (c.pool == PoolLayout::kTokensFirst) t.stride = {page, head_dim, c.heads * head_dim, 1};
      if (c.pool == PoolLayout::kOnePool) t.stride[0] = k_page + v_page;
      return t;
    };
    in_.k_cache = view(0, c.head_dim, k_page);
    in_.v_cache = view(v_begin, c.head_dim_v, v_page);
  }

  [[nodiscard]] std::int64_t capacity() const {
    return in_.options.page_size == 0 ? kContiguousCapacity : in_.options.page_size * in_.pages_per_row;
  }

  void make_index() {
    const AppendCase& c = in_.options;
    for (std::int64_t s = 0; s < c.num_sequences; ++s) {
      in_.seqlens_k.push_back(static_cast<std::int32_t>(draw(random_, 0, capacity() - c.most_new)));
    }
    if (c.num_sequences > 0) in_.seqlens_k[0] = 0;
    if (c.hostile) {
      in_.seqlens_k[2] = -1;
      in_.seqlens_k[3] = static_cast<std::int32_t>(capacity()) - 2;
      in_.seqlens_k[4] = static_cast<std::int32_t>(capacity()) + 9;
    }
    if (c.page_size != 0) {
      const std::vector<std::int64_t> pages = shuffled(random_, in_.k_cache.shape[0]);
      const std::int64_t stride = in_.pages_per_row + 1;
      in_.pages.assign(static_cast<std::size_t>(in_.num_rows * stride), -77);
      for (std::int64_t n = 0; n < in_.num_rows * in_.pages_per_row; ++n) {
        std::int32_t& entry = in_.pages[n / in_.pages_per_row * stride + n % in_.pages_per_row];
        entry = static_cast<std::int32_t>(pages[n]);
        if (c.hostile && n % 5 == 2) entry = n % 2 == 0 ? -1 : static_cast<std::int32_t>(in_.k_cache.shape[0]);
      }
    }
    if (!c.batch_idx) return;
    for (const std::int64_t row : shuffled(random_, in_.num_rows)) {
      if (in_.batch_idx.size() == c.num_sequences) break;
      in_.batch_idx.push_back(static_cast<std::int32_t>(row));
    }
    if (c.hostile) in_.batch_idx.back() = static_cast<std::int32_t>(in_.num_rows);
  }

  void make_slots() {
    if (!in_.options.slots) return;
    const std::int64_t places = in_.k_cache.shape[0] * in_.k_cache.shape[2];
    const std::vector<std::int64_t> all = shuffled(random_, places);
    const std::int64_t tokens = in_.k.shape()[0] * in_.k.shape()[2];
    in_.slots.assign(all.begin(), all.begin() + tokens);
    if (!in_.options.hostile) return;
    for (std::size_t n = 0; n < in_.slots.size(); n += 5) in_.slots[n] = n % 2 == 0 ? -1 : places;
  }

  void make_positions() {
    const AppendCase& c = in_.options;
    const std::int64_t low = c.hostile ? -5 : 0, high = c.hostile ? kMaxPositions + 5 : kMaxPositions - 20;
    const auto some = [&](std::int64_t count) {
      TensorArray<std::int32_t> numbers;
      for (std::int64_t n = 0; n < count; ++n) numbers.push_back(static_cast<std::int32_t>(draw(random_, low, high)));
      return numbers;
    };
    if (c.positions == PositionSource::kPositions) in_.positions = some(in_.k.shape()[0] * in_.k.shape()[2]);
    if (c.positions == PositionSource::kRotarySeqlens) in_.rotary_seqlens = some(c.num_sequences);
  }

  void make_numbers() {
    const AppendCase& c = in_.options;
    if (core::is_quantized(c.cache_dtype) && c.descales != Descales::kNone) {
      for (TensorBuffer* descales : {&in_.k_descale, &in_.v_descale}) {
        *descales = descales_of(c.descales, c.num_sequences, in_.k_cache.shape);
        descales->generate([&](auto...) { return 0.004 * static_cast<double>(draw(random_, 1, 9)); });
      }
    }
    const Shape table = {1, 1, kMaxPositions, rotary_shape(c).dim / 2};
    in_.cos = normal(random_, c.table_dtype, table, {Layout::kPadded, 1});
    in_.sin = normal(random_, c.table_dtype, table, {Layout::kPadded, 2});
    in_.k_norm = normal(random_, c.table_dtype, {1, 1, 1, c.head_dim});
    in_.q_norm = normal(random_, c.table_dtype, {1, 1, 1, c.head_dim});
  }

  Random random_;
  AppendInputs in_;
};

}  // namespace

std::string describe(const AppendCase& c) {
  std::ostringstream out;
  out << dtype_name(c.dtype) << " to " << dtype_name(c.cache_dtype) << ", descales " << int(c.descales) << ", tables "
      << dtype_name(c.table_dtype) << ", page_size " << c.page_size << ", pool " << int(c.pool)
      << (c.batch_idx ? ", batch_idx" : "") << (c.packed ? ", packed" : "") << (c.packed_q ? ", packed q" : "")
      << (c.slots ? ", slots" : "") << (c.hostile ? ", hostile" : "") << ", rotary " << int(c.rotary)
      << (c.norm ? ", norm" : "") << (c.keys_only ? ", keys only" : "") << ", queries " << int(c.queries)
      << ", positions " << int(c.positions) << ", layout " << int(c.layout) << (c.fused ? " fused" : "") << ", heads "
      << c.heads << " and " << c.heads_q << ", head_dim " << c.head_dim << " and " << c.head_dim_v << ", sequences "
      << c.num_sequences << ", new " << c.most_new << ", seed " << c.seed;
  return out.str();
}

AppendInputs make_append_inputs(const AppendCase& c) {
  return Maker(c).make();
}

AppendCall AppendInputs::call() const {
  const AppendCase& c = options;
  const auto data = []<class T>(const TensorArray<T>& array) -> const T* {
    return array.empty() ? nullptr : array.data();
  };
  AppendCall call = {.k = k.view(), .k_cache = k_cache};
  if (!c.keys_only) call.v = v.view(), call.v_cache = v_cache;
  call.cache = {.seqlens_k = data(seqlens_k), .cache_batch_idx = data(batch_idx)};
  if (c.page_size != 0) call.cache.page_table = PageTable{pages.data(), num_rows, pages_per_row, pages_per_row + 1};
  if (c.slots && c.positions == PositionSource::kPositions) call.cache = {};
  if (k_descale.view().data != nullptr) call.cache.k_descale = k_descale.view();
  if (v_descale.view().data != nullptr && !c.keys_only) call.cache.v_descale = v_descale.view();
  call.cu_seqlens_new = data(cu_seqlens_new);
  if (c.packed) call.num_sequences = c.num_sequences, call.max_seqlen_new = c.most_new;
  call.slot_mapping = data(slots);
  call.positions = data(positions);
  if (c.rotary != RotaryKind::kNone) {
    call.rotary = Rotary{.cos = cos.view(),
                         .sin = sin.view(),
                         .interleaved = c.rotary == RotaryKind::kNeighbours || c.rotary == RotaryKind::kLastNeighbours,
                         .first_column = rotary_shape(c).first,
                         .seqlens = data(rotary_seqlens)};
  }
  if (c.norm) call.k_norm = k_norm.view();
  if (c.queries == QueryKind::kNone) return call;
  call.q = q.view(), call.q_out = q_out.view();
  call.cu_seqlens_q = data(cu_seqlens_q);
  if (c.packed_q) call.max_seqlen_q = c.most_new + 2;
  if (c.norm) call.q_norm = q_norm.view();
  if (c.queries == QueryKind::kMoreFirst) call.query_positions = QueryPositions::kFirst;
  if (c.queries == QueryKind::kOne) call.query_positions = QueryPositions::kOne;
  return call;
}

}  // namespace attend::test
