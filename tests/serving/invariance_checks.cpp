#include "serving/invariance_checks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/dtype_traits.hpp"

namespace attend::test {
namespace {

/// Returns a view of rows [begin, begin + rows) of a tensor.
template <class View>
View some_rows(View view, std::int64_t begin, std::int64_t rows) {
  using Bytes =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const std::byte*, std::byte*>;
  view.data = static_cast<Bytes>(view.data) + begin * view.stride[2] * dtype_bytes(view.dtype);
  view.shape[2] = rows;
  return view;
}

}  // namespace

CacheFacts invariance_facts(DType dtype) {
  CacheFacts f;
  f.dtype = dtype;
  if (!core::is_quantized(dtype)) return f;
  f.dtype = DType::kBF16;
  f.cache_dtype = dtype;
  f.descales = Descales::kRows;
  return f;
}

CacheFacts long_facts(DType dtype) {
  CacheFacts f = invariance_facts(dtype);
  f.head_dim = f.head_dim_v = 64;
  f.num_heads_k = 2;
  f.group = 4;
  f.rows = {1, 1, 1, 1};
  f.lengths = {2500, 1, 700, 1024};
  f.sinks = true;
  f.alibi = true;
  return f;
}

std::vector<std::vector<std::byte>> decode_some(const CacheCase& problem, const std::vector<std::int64_t>& sequences,
                                                const Decode& decode) {
  const auto count = static_cast<std::int64_t>(sequences.size());
  const Shape& all = problem.q.shape();
  const CacheFacts& facts = problem.facts();
  const TensorBuffer q(facts.dtype, {count, all[1], all[2], all[3]}), sinks(DType::kF32, {count, all[1], 1, 1});
  const TensorBuffer o(facts.dtype, {count, all[1], all[2], facts.head_dim_v});
  const TensorBuffer lse(DType::kF32, {count, all[1], all[2], 1});
  TensorArray<std::int32_t> rows, lengths, leftpad;
  for (const std::int64_t s : sequences) {
    if (facts.leftpad) leftpad.push_back(problem.leftpad[static_cast<std::size_t>(s)]);
    rows.push_back(static_cast<std::int32_t>(s));
    lengths.push_back(problem.seqlens[static_cast<std::size_t>(s)]);
  }
  const auto of = [&](std::int64_t n) { return sequences[static_cast<std::size_t>(n)]; };
  q.generate([&](auto n, auto h, auto i, auto c) { return problem.q.at(of(n), h, i, c); });
  sinks.generate([&](auto n, auto h, auto, auto) { return problem.sinks.at(of(n), h, 0, 0); });
  DecodeCall call = problem.call();
  call.q = q.view();
  call.o = o.view();
  call.lse = lse.view();
  call.cache.cache_batch_idx = rows.data();
  call.cache.seqlens_k = lengths.data();
  if (facts.leftpad) call.cache.cache_leftpad = leftpad.data();
  if (call.params.sinks) call.params.sinks = sinks.view();
  decode(call);
  std::vector<std::vector<std::byte>> bytes(sequences.size());
  for (const auto& part : {o.bytes(), lse.bytes()}) {
    const auto size = static_cast<std::ptrdiff_t>(part.size() / sequences.size());
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      const auto first = part.begin() + static_cast<std::ptrdiff_t>(n) * size;
      bytes[n].insert(bytes[n].end(), first, first + size);
    }
  }
  return bytes;
}

void check_sequences_alone_and_in_a_batch(DType dtype, const Decode& decode) {
  for (const std::int64_t page_size : {0, 16}) {
    CacheFacts facts = long_facts(dtype);
    facts.page_size = page_size;
    const CacheCase problem(facts, 5);
    const CacheCase::Result batch = problem.run(decode);
    for (std::int64_t s = 0; s < 4; ++s) {
      EXPECT_EQ(decode_some(problem, {s}, decode)[0], problem.bytes_of_sequence(batch, s))
          << "sequence " << s << ", pages " << page_size;
    }
  }
}

void check_keys_that_begin_late(DType dtype, const Decode& decode) {
  CacheFacts facts = long_facts(dtype);
  facts.num_heads_k = 1;
  facts.lengths = {8411, 6814, 6767, 5885};
  for (const bool has_window : {true, false}) {
    facts.window_left = has_window ? 4096 : -1;
    facts.leftpad = !has_window;
    const CacheCase problem(facts, 11);
    const CacheCase::Result batch = problem.run(decode);
    const std::vector<std::vector<std::byte>> two = decode_some(problem, {3, 0}, decode);
    for (std::int64_t s = 0; s < 4; ++s) {
      const std::vector<std::byte> alone = decode_some(problem, {s}, decode)[0];
      EXPECT_EQ(alone, problem.bytes_of_sequence(batch, s)) << "sequence " << s << ", window " << has_window;
      if (s == 3 || s == 0) {
        EXPECT_EQ(alone, two[s == 3 ? 0 : 1]) << "sequence " << s << ", window " << has_window;
      }
    }
  }
}

void check_page_sizes(const CacheFacts& facts, const Decode& decode) {
  const CacheCase contiguous(facts, 7);
  const CacheCase::Result wanted = contiguous.run(decode);
  for (const std::int64_t page_size : {1, 3, 16, 64, 256}) {
    CacheFacts of_pages = facts;
    of_pages.page_size = page_size;
    CacheCase paged(of_pages, 7);
    // Both cases must have the same q, options and keys. Only the positions of the keys in memory differ.
    paged.q = contiguous.q;
    paged.sinks = contiguous.sinks;
    paged.alibi_slopes = contiguous.alibi_slopes;
    for (std::int64_t s = 0; s < contiguous.num_sequences(); ++s) {
      for (std::int64_t j = 0; j < facts.lengths[static_cast<std::size_t>(s)]; ++j) {
        const auto from = *contiguous.place(s, j);
        const auto to = *paged.place(s, j);
        for (std::int64_t h = 0; h < facts.num_heads_k; ++h) {
          for (std::int64_t c = 0; c < facts.head_dim; ++c) {
            paged.k.set(to.block, h, to.row, c, contiguous.k.at(from.block, h, from.row, c));
          }
          for (std::int64_t c = 0; c < facts.head_dim_v; ++c) {
            paged.v.set(to.block, h, to.row, c, contiguous.v.at(from.block, h, from.row, c));
          }
          if (facts.descales != Descales::kRows) continue;
          paged.k_descale.set(to.block, h, to.row, 0, contiguous.k_descale.at(from.block, h, from.row, 0));
          paged.v_descale.set(to.block, h, to.row, 0, contiguous.v_descale.at(from.block, h, from.row, 0));
        }
      }
    }
    const CacheCase::Result result = paged.run(decode);
    EXPECT_EQ(wanted.o_bytes, result.o_bytes) << "pages of " << page_size;
    EXPECT_EQ(wanted.lse_bytes, result.lse_bytes) << "pages of " << page_size;
  }
}

void check_rows_in_any_chunks(const CacheFacts& of_cache, const Decode& decode) {
  for (const std::int64_t window : {-1, 300}) {
    CacheFacts facts = of_cache;
    facts.rows = {40};
    facts.lengths = {1111};
    facts.sinks = false;
    facts.window_left = window;
    const CacheCase problem(facts, 8);
    const CacheCase::Result whole = problem.run(decode);
    const Shape& shape = problem.q.shape();
    for (const std::int64_t chunk : {1, 3, 16}) {
      const TensorBuffer o(facts.dtype, {1, shape[1], 40, facts.head_dim_v});
      const TensorBuffer lse(DType::kF32, {1, shape[1], 40, 1});
      for (std::int64_t begin = 0; begin < 40; begin += chunk) {
        const std::int64_t rows = std::min(chunk, 40 - begin);
        const TensorArray<std::int32_t> length = {static_cast<std::int32_t>(1111 - 40 + begin + rows)};
        DecodeCall call = problem.call();
        call.q = some_rows(call.q, begin, rows);
        call.o = some_rows(o.view(), begin, rows);
        call.lse = some_rows(lse.view(), begin, rows);
        call.cache.seqlens_k = length.data();
        decode(call);
      }
      EXPECT_EQ(whole.o_bytes, o.bytes()) << "chunks of " << chunk << ", window " << window;
      EXPECT_EQ(whole.lse_bytes, lse.bytes()) << "chunks of " << chunk << ", window " << window;
    }
  }
}

void check_nonfinite_keys(DType dtype, const Decode& decode) {
  CacheFacts facts = long_facts(dtype);
  facts.rows = {6};
  facts.lengths = {600};
  facts.window_left = 100;
  const CacheCase problem(facts, 9);
  const CacheCase::Result clean = problem.run(decode);
  problem.v.set(0, 0, 597, 3, std::nan(""));  // rows 3, 4 and 5 of the query heads in group 0 see this value
  problem.k.set(0, 1, 598, 0, std::nan(""));  // rows 4 and 5 of the query heads in group 1 see this key
  const CacheCase::Result result = problem.run(decode);
  const Shape& shape = problem.q.shape();
  for (std::int64_t h = 0; h < shape[1]; ++h) {
    for (std::int64_t i = 0; i < 6; ++i) {
      for (std::int64_t c = 0; c < 64; ++c) {
        const auto at = static_cast<std::size_t>((h * 6 + i) * 64 + c);
        const bool spoilt = h < 4 ? i >= 3 && c == 3 : i >= 4;
        if (spoilt) {
          EXPECT_TRUE(std::isnan(result.o[at])) << h << " " << i << " " << c;
        } else {
          EXPECT_EQ(std::memcmp(&result.o[at], &clean.o[at], sizeof(double)), 0) << h << " " << i << " " << c;
        }
      }
    }
  }
}

void check_nan_in_any_column(DType dtype, const std::vector<std::int64_t>& head_dims, const Decode& decode) {
  for (const std::int64_t columns : head_dims) {
    CacheFacts facts = invariance_facts(dtype);
    facts.head_dim = facts.head_dim_v = columns;
    facts.num_heads_k = facts.group = 1;
    facts.rows = {2};
    facts.lengths = {5};
    const CacheCase problem(facts, 10);
    const CacheCase::Result clean = problem.run(decode);
    for (std::int64_t column = 0; column < columns; ++column) {
      const double before = problem.v.at(0, 0, 4, column);
      problem.v.set(0, 0, 4, column, std::nan(""));
      const CacheCase::Result result = problem.run(decode);
      problem.v.set(0, 0, 4, column, before);
      EXPECT_TRUE(std::equal(clean.o.begin(), clean.o.begin() + columns, result.o.begin()))
          << columns << " columns, NaN in " << column;
      EXPECT_TRUE(std::isnan(result.o[static_cast<std::size_t>(columns + column)]));
    }
  }
}

void check_infinity_times_no_weight(DType dtype, std::int64_t head_dim, const Decode& decode) {
  for (const std::int64_t key : {0, 255, 256, 511, 512}) {
    CacheFacts facts = invariance_facts(dtype);
    facts.head_dim = facts.head_dim_v = head_dim;
    facts.num_heads_k = facts.group = 1;
    facts.rows = {1};
    facts.lengths = {513};
    facts.window_left = key == 255 ? 257 : -1;  // with this window, key 255 is the only visible key of its chunk
    const CacheCase problem(facts, 11);
    problem.q.fill(0);
    problem.q.set(0, 0, 0, 0, 1);
    problem.k.set(0, 0, key, 0, -std::numeric_limits<double>::infinity());
    problem.v.set(0, 0, key, 0, std::numeric_limits<double>::infinity());
    EXPECT_TRUE(std::isnan(problem.run("reference").o[0])) << "key " << key;
    EXPECT_TRUE(std::isnan(problem.run(decode).o[0])) << "key " << key;
  }
}

}  // namespace attend::test
