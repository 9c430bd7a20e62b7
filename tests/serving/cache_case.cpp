#include "serving/cache_case.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace attend::test {
namespace {

constexpr std::int64_t kSpareRows = 3;  // extra rows in tables and caches that belong to no sequence

std::int64_t ceil_div(std::int64_t n, std::int64_t d) {
  return (n + d - 1) / d;
}

std::int64_t below(std::mt19937_64& random, std::int64_t n) {
  return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random);
}

}  // namespace

Decode decode_with(std::string_view compute) {
  return [compute](DecodeCall call) {
    call.params.compute = compute;
    attend::decode(call);
  };
}

TensorBuffer descales_of(Descales kind, std::int64_t num_sequences, const Shape& cache) {
  switch (kind) {
    case Descales::kNone:
      return {};
    case Descales::kOne:
      return TensorBuffer(DType::kF32, {1, 1, 1, 1});
    case Descales::kHeads:
      return TensorBuffer(DType::kF32, {1, cache[1], 1, 1});
    case Descales::kSequences:
      return TensorBuffer(DType::kF32, {num_sequences, cache[1], 1, 1});
    case Descales::kRows:
      break;
  }
  return TensorBuffer(DType::kF32, {cache[0], cache[1], cache[2], 1}, {Layout::kBSHD, 0});
}

double descale_at(const TensorBuffer& descales, Descales kind, std::int64_t s, std::int64_t head, std::int64_t block,
                  std::int64_t row) {
  if (kind == Descales::kNone) return 1;
  if (kind == Descales::kRows) return descales.at(block, head, row, 0);
  return descales.at(kind == Descales::kSequences ? s : 0, kind == Descales::kOne ? 0 : head, 0, 0);
}

std::string CacheFacts::text() const {
  return fmt::format(
      "{} cache {} descales {} d {}/{}{} heads_k {} group {} page {} layout {} {} rows {} lengths {}{}{}{} causal {} "
      "window ({}, {}) "
      "softcap {} "
      "{}{}{}{}",
      dtype_name(dtype), dtype_name(type_of_cache()), static_cast<int>(descales), head_dim, head_dim_v,
      values_in_keys ? " (v in k)" : "", num_heads_k, group, page_size, static_cast<int>(layout),
      packed ? "packed" : "dense", rows, lengths, batch_idx ? " batch_idx" : "", leftpad ? " leftpad" : "",
      tree ? " tree" : "", causal, window_left, window_right, softcap, alibi ? "alibi " : "", sinks ? "sinks " : "",
      lse_base2 ? "base2 " : "", missing_pages ? "missing pages" : "");
}

CacheCase::CacheCase(const CacheFacts& facts, std::uint64_t seed) : facts_(facts) {
  std::mt19937_64 random(seed);
  make_lengths(random);
  make_tables(random);
  make_tensors(random);
}

void CacheCase::make_lengths(std::mt19937_64& random) {
  const std::int64_t longest = *std::max_element(facts_.lengths.begin(), facts_.lengths.end());
  capacity_ = facts_.capacity > 0 ? facts_.capacity : std::max<std::int64_t>(longest, 1);
  for (const std::int64_t length : facts_.lengths) {
    seqlens.push_back(static_cast<std::int32_t>(length));
    if (facts_.leftpad)
      leftpad.push_back(static_cast<std::int32_t>(below(random, std::max<std::int64_t>(length, 1) + 2)));
  }
  cu_seqlens_q.push_back(0);
  for (const std::int64_t rows : facts_.rows)
    cu_seqlens_q.push_back(cu_seqlens_q.back() + static_cast<std::int32_t>(rows));
  if (!facts_.tree) return;
  const std::int64_t words = facts_.packed ? cu_seqlens_q.back() : num_sequences() * facts_.rows[0];
  for (std::int64_t i = 0; i < words; ++i) tree.push_back(random());
}

void CacheCase::make_tables(std::mt19937_64& random) {
  const std::int64_t rows = num_sequences() + kSpareRows;
  std::vector<std::int32_t> order(static_cast<std::size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  if (facts_.batch_idx) batch_idx.assign(order.begin(), order.begin() + num_sequences());
  num_blocks_ = rows;
  if (facts_.page_size == 0) return;
  pages_per_row = ceil_div(capacity_, facts_.page_size);
  capacity_ = pages_per_row * facts_.page_size;
  num_blocks_ = rows * pages_per_row + 2;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(num_blocks_));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random);
  // Entries after a sequence's length stay -1, because they must not be read.
  pages.assign(static_cast<std::size_t>(rows * pages_per_row), -1);
  std::size_t next = 0;
  for (std::int64_t s = 0; s < num_sequences(); ++s) {
    const std::int64_t row = facts_.batch_idx ? batch_idx[static_cast<std::size_t>(s)] : s;
    const std::int64_t used =
        ceil_div(std::clamp<std::int64_t>(seqlens[static_cast<std::size_t>(s)], 0, capacity_), facts_.page_size);
    for (std::int64_t n = 0; n < used; ++n) pages[static_cast<std::size_t>(row * pages_per_row + n)] = ids[next++];
    if (facts_.missing_pages && used > 1) {
      const std::int32_t none = below(random, 2) == 0 ? -1 : static_cast<std::int32_t>(num_blocks_ + 5);
      pages[static_cast<std::size_t>(row * pages_per_row + below(random, used))] = none;
    }
  }
}

std::optional<CacheCase::Place> CacheCase::place(std::int64_t s, std::int64_t j) const {
  const std::int64_t row = facts_.batch_idx ? batch_idx[static_cast<std::size_t>(s)] : s;
  if (facts_.page_size == 0) return Place{row, j};
  const std::int64_t page = pages[static_cast<std::size_t>(row * pages_per_row + j / facts_.page_size)];
  if (page < 0 || page >= num_blocks_) return std::nullopt;
  return Place{page, j % facts_.page_size};
}

double CacheCase::key(std::int64_t s, std::int64_t head, const Place& at, std::int64_t column) const {
  return k.at(at.block, head, at.row, column) * descale_at(k_descale, facts_.descales, s, head, at.block, at.row);
}

double CacheCase::value(std::int64_t s, std::int64_t head, const Place& at, std::int64_t column) const {
  return v.at(at.block, head, at.row, column) * descale_at(v_descale, facts_.descales, s, head, at.block, at.row);
}

/// Fills the descale factors. The factors of cache rows without a key stay NaN.
void CacheCase::make_descales(std::mt19937_64& random) {
  for (TensorBuffer* descales : {&k_descale, &v_descale}) {
    *descales = descales_of(facts_.descales, num_sequences(), k.shape());
    std::uniform_real_distribution<double> factor(0.015, 0.04);
    if (facts_.descales == Descales::kNone) continue;
    if (facts_.descales != Descales::kRows) {
      descales->generate([&](auto...) { return factor(random); });
      continue;
    }
    for (std::int64_t s = 0; s < num_sequences(); ++s) {
      const std::int64_t length = std::min<std::int64_t>(seqlens[static_cast<std::size_t>(s)], capacity_);
      for (std::int64_t j = 0; j < length; ++j) {
        const std::optional<Place> at = place(s, j);
        if (!at) continue;
        for (std::int64_t h = 0; h < facts_.num_heads_k; ++h) descales->set(at->block, h, at->row, 0, factor(random));
      }
    }
  }
}

void CacheCase::make_tensors(std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  const auto draw = [&](auto...) { return normal(random); };
  const std::int64_t heads_q = facts_.num_heads_k * facts_.group;
  const Shape q_shape = facts_.packed ? Shape{1, heads_q, cu_seqlens_q.back() + 2, facts_.head_dim}
                                      : Shape{num_sequences(), heads_q, facts_.rows[0], facts_.head_dim};
  q = TensorBuffer(facts_.dtype, q_shape, {facts_.layout, 0});
  q.generate(draw);
  const std::int64_t rows = facts_.page_size == 0 ? capacity_ : facts_.page_size;
  k = TensorBuffer(facts_.type_of_cache(), {num_blocks_, facts_.num_heads_k, rows, facts_.head_dim},
                   {facts_.layout, 0});
  v = TensorBuffer(facts_.type_of_cache(), {num_blocks_, facts_.num_heads_k, rows, facts_.head_dim_v},
                   {facts_.layout, 0});
  make_descales(random);
  for (std::int64_t s = 0; s < num_sequences(); ++s) {
    const std::int64_t length = std::min<std::int64_t>(seqlens[static_cast<std::size_t>(s)], capacity_);
    for (std::int64_t j = 0; j < length; ++j) {
      const std::optional<Place> at = place(s, j);
      if (!at) continue;
      for (std::int64_t h = 0; h < facts_.num_heads_k; ++h) {
        const double of_k = descale_at(k_descale, facts_.descales, s, h, at->block, at->row);
        const double of_v = descale_at(v_descale, facts_.descales, s, h, at->block, at->row);
        for (std::int64_t c = 0; c < facts_.head_dim; ++c) k.set(at->block, h, at->row, c, normal(random) / of_k);
        for (std::int64_t c = 0; c < facts_.head_dim_v; ++c) v.set(at->block, h, at->row, c, normal(random) / of_v);
      }
    }
  }
  alibi_slopes = TensorBuffer(DType::kF32, {1, heads_q, 1, 1});
  alibi_slopes.generate([&](auto...) { return 0.02 * normal(random); });
  sinks = TensorBuffer(DType::kF32, {num_sequences(), heads_q, 1, 1});
  sinks.generate(draw);
}

DecodeCall CacheCase::call() const {
  DecodeCall call = {.q = q.view(), .k_cache = k.view(), .o = {}};
  if (!facts_.values_in_keys) call.v_cache = v.view();
  call.cache.seqlens_k = seqlens.data();
  if (facts_.page_size != 0) {
    const auto rows = static_cast<std::int64_t>(pages.size()) / pages_per_row;
    call.cache.page_table = PageTable{pages.data(), rows, pages_per_row, pages_per_row};
  }
  if (facts_.batch_idx) call.cache.cache_batch_idx = batch_idx.data();
  if (facts_.leftpad) call.cache.cache_leftpad = leftpad.data();
  if (facts_.descales != Descales::kNone) {
    call.cache.k_descale = k_descale.view();
    if (!facts_.values_in_keys) call.cache.v_descale = v_descale.view();
  }
  DecodeParams& params = call.params;
  params.causal = facts_.causal;
  params.window_left = facts_.window_left;
  params.window_right = facts_.window_right;
  params.softcap = facts_.softcap;
  if (facts_.alibi) params.alibi_slopes = alibi_slopes.view();
  if (facts_.sinks) params.sinks = sinks.view();
  if (facts_.packed) {
    params.cu_seqlens_q = cu_seqlens_q.data();
    params.num_sequences = num_sequences();
    params.max_seqlen_q = *std::max_element(facts_.rows.begin(), facts_.rows.end());
  }
  if (facts_.tree) params.tree_mask = tree.data();
  params.lse_base2 = facts_.lse_base2;
  return call;
}

CacheCase::Result CacheCase::run(const Decode& decode) const {
  const Shape& q_shape = q.shape();
  // Like q, these outputs have rows that belong to no sequence. Such rows must not be written.
  const TensorBuffer o(facts_.dtype, {q_shape[0], q_shape[1], q_shape[2], facts_.head_dim_v}, {facts_.layout, 0});
  const TensorBuffer lse(DType::kF32, {q_shape[0], q_shape[1], q_shape[2], 1});
  DecodeCall of_outputs = call();
  of_outputs.o = o.view();
  of_outputs.lse = lse.view();
  decode(of_outputs);
  return {o.values(), lse.values(), o.bytes(), lse.bytes(), o.gaps_intact() && lse.gaps_intact()};
}

std::vector<std::byte> CacheCase::bytes_of_sequence(const Result& result, std::int64_t s) const {
  const Shape& shape = q.shape();
  const std::int64_t batch = facts_.packed ? 0 : s;
  const std::int64_t begin = facts_.packed ? cu_seqlens_q[static_cast<std::size_t>(s)] : 0;
  const std::int64_t rows = facts_.rows[static_cast<std::size_t>(facts_.packed ? s : 0)];
  std::vector<std::byte> bytes;
  const auto add = [&](const std::vector<std::byte>& all, std::int64_t row_bytes) {
    for (std::int64_t h = 0; h < shape[1]; ++h) {
      const auto* first = all.data() + ((batch * shape[1] + h) * shape[2] + begin) * row_bytes;
      bytes.insert(bytes.end(), first, first + rows * row_bytes);
    }
  };
  add(result.o_bytes, facts_.head_dim_v * dtype_bytes(facts_.dtype));
  add(result.lse_bytes, 4);
  return bytes;
}

}  // namespace attend::test
