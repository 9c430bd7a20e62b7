// Bitwise tests of attend::append. The result of a row equals the formula in float32. The result does not depend on the
// other rows, the number of threads or the SIMD target. Copied elements keep their bits. A single call for append and
// decode gives the same bits as two calls.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/elements.hpp"
#include "serving/append_and_decode.hpp"
#include "serving/append_case.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

/// Rounds to float32, even if the compiler would otherwise fuse operations.
float rounded(float x) {
  volatile float y = x;
  return y;
}

/// Repeats the computation that append does for one row. Sums the squares in 16 partial sums, adds these pairwise and
/// applies the normalization and the rotation in the order of the formula.
std::vector<float> row_in_float(const std::vector<float>& row, const std::vector<float>& weight, float eps,
                                const std::vector<float>& cos, const std::vector<float>& sin, bool interleaved) {
  std::vector<float> x = row;
  std::array<float, 16> sums = {};
  for (std::size_t c = 0; c < x.size(); ++c) sums[c % 16] = rounded(sums[c % 16] + rounded(x[c] * x[c]));
  for (std::size_t width = 8; width > 0; width /= 2) {
    for (std::size_t n = 0; n < width; ++n) sums[n] = rounded(sums[n] + sums[n + width]);
  }
  const float mean = rounded(sums[0] / static_cast<float>(x.size()));
  const float factor = rounded(1.0F / rounded(std::sqrt(rounded(mean + eps))));
  for (std::size_t c = 0; c < x.size(); ++c) x[c] = rounded(rounded(x[c] * factor) * weight[c]);
  for (std::size_t c = 0; c < cos.size(); ++c) {
    float& a = x[interleaved ? 2 * c : c];
    float& b = x[interleaved ? 2 * c + 1 : cos.size() + c];
    const float turned = rounded(rounded(a * cos[c]) - rounded(b * sin[c]));
    b = rounded(rounded(b * cos[c]) + rounded(a * sin[c]));
    a = turned;
  }
  return x;
}

std::vector<float> floats_of(const TensorBuffer& t, const Shape& at, std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t c = 0; c < count; ++c) values.push_back(static_cast<float>(t.at(at[0], at[1], at[2], c)));
  return values;
}

TEST(AppendBits, AreThoseOfTheFormula) {
  for (const std::int64_t head_dim : {2, 37, 64, 90, 128, 250}) {
    for (const RotaryKind rotary : {RotaryKind::kHalves, RotaryKind::kNeighbours}) {
      const AppendInputs in = make_append_inputs({.rotary = rotary,
                                                  .norm = true,
                                                  .keys_only = true,
                                                  .head_dim = head_dim,
                                                  .seed = static_cast<std::uint64_t>(head_dim)});
      append(in.call());
      for (std::int64_t s = 0; s < in.options.num_sequences; ++s) {
        for (std::int64_t i = 0; i < in.options.most_new; ++i) {
          const std::int64_t key = in.seqlens_k[s] + i, half = in.cos.shape()[3];
          const std::vector<float> want =
              row_in_float(floats_of(in.k, {s, 1, i}, head_dim), floats_of(in.k_norm, {}, head_dim), 1e-6F,
                           floats_of(in.cos, {0, 0, key}, half), floats_of(in.sin, {0, 0, key}, half),
                           rotary == RotaryKind::kNeighbours);
          const void* got = core::element(in.k_cache, s, 1, key);
          ASSERT_EQ(std::memcmp(got, want.data(), want.size() * sizeof(float)), 0)
              << "head_dim " << head_dim << ", sequence " << s << ", row " << i;
        }
      }
    }
  }
}

// Compares a prefill whose rows many threads share with separate calls for each row.
TEST(AppendBits, DependOnNoNeighbourOrThread) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    AppendCase c = {.dtype = dtype, .cache_dtype = dtype, .page_size = 16, .rotary = RotaryKind::kHalves, .norm = true};
    c.queries = QueryKind::kLikeKeys;
    c.heads = 8, c.heads_q = 16, c.head_dim = 128, c.head_dim_v = 128, c.num_sequences = 40, c.most_new = 12;
    const AppendInputs in = make_append_inputs(c), alone = make_append_inputs(c);
    append(in.call());
    set_cpu_threads(1);
    for (std::int64_t s = 0; s < c.num_sequences; ++s) {
      for (std::int64_t i = 0; i < c.most_new; ++i) {
        AppendCall call = alone.call();
        const std::int32_t length = alone.seqlens_k[s] + static_cast<std::int32_t>(i);
        const auto one_row = [&](auto t) {
          t->data = core::element({const_cast<void*>(t->data), t->dtype, {}, t->shape, t->stride}, s, 0, i);
          t->shape[0] = t->shape[2] = 1;
        };
        one_row(&call.k), one_row(&*call.v), one_row(&*call.q), one_row(&*call.q_out);
        call.cache.seqlens_k = &length;
        call.cache.page_table->pages += s * call.cache.page_table->row_stride;
        call.cache.page_table->num_rows = 1;
        append(call);
      }
    }
    set_cpu_threads(0);
    EXPECT_TRUE(in.pool == alone.pool) << dtype_name(dtype);
    expect_same_bits("q_out", alone.q_out, in.q_out);
  }
}

// The copied elements include signalling NaN, NaN payloads, signed zeros and subnormals.
TEST(AppendBits, OfCopiesStay) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    AppendCase c = {.dtype = dtype, .cache_dtype = dtype, .queries = QueryKind::kLikeKeys};
    c.num_sequences = 1, c.heads = c.heads_q = 1, c.head_dim = c.head_dim_v = 512, c.most_new = 8;
    const AppendInputs in = make_append_inputs(c);
    for (const TensorBuffer* t : {&in.k, &in.v, &in.q}) {
      auto* bytes = static_cast<std::uint8_t*>(t->view().data);
      for (std::int64_t n = 0; n < t->view().numel() * dtype_bytes(dtype); ++n) {
        bytes[n] = static_cast<std::uint8_t>((n * 2654435761U) >> 9);
      }
    }
    append(in.call());
    const auto row_bytes = static_cast<std::size_t>(512 * 8 * dtype_bytes(dtype));
    EXPECT_EQ(std::memcmp(core::element(in.k_cache, 0, 0, 0), in.k.view().data, row_bytes), 0);
    EXPECT_EQ(std::memcmp(core::element(in.v_cache, 0, 0, 0), in.v.view().data, row_bytes), 0);
    EXPECT_EQ(std::memcmp(in.q_out.view().data, in.q.view().data, row_bytes), 0);
  }
}

TEST(Append, OfNothingWritesNothing) {
  for (const bool packed : {false, true}) {
    AppendCase c = {.packed = packed, .packed_q = packed, .rotary = RotaryKind::kHalves, .norm = true};
    c.queries = QueryKind::kLikeKeys;
    for (const auto& [sequences, rows, heads] : {std::array{0, 3, 2}, {3, 0, 2}, {3, 3, 0}}) {
      if (packed && (rows == 0 || sequences == 0)) continue;  // these calls are built separately below
      c.num_sequences = sequences, c.most_new = rows, c.heads = c.heads_q = heads;
      const AppendInputs in = make_append_inputs({c});
      const auto before = in.pool;
      append(in.call());
      EXPECT_TRUE(in.pool == before);
    }
  }
  const AppendInputs in = make_append_inputs({.packed = true});
  AppendCall call = in.call();
  const std::vector<std::int32_t> none(7, 0);
  call.cu_seqlens_new = none.data();
  const auto before = in.pool;
  append(call);
  call.num_sequences = 0;
  append(call);
  EXPECT_TRUE(in.pool == before);
}

TEST(AppendAndDecode, InOneCallIsOneAfterTheOther) {
  for (const AppendCase& c : append_and_decode_cases()) check_one_call_is_two(c, cpu_calls());
}

}  // namespace
}  // namespace attend::test
