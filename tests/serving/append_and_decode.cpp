#include "serving/append_and_decode.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/expect.hpp"

namespace attend::test {
namespace {

/// Output tensors of decode() for the query rows of the case.
struct Decoded {
  TensorBuffer o, lse;

  explicit Decoded(const AppendInputs& in) {
    Shape shape = in.q.shape();
    shape[3] = in.options.keys_only ? in.options.head_dim / 2 : in.options.head_dim_v;
    o = TensorBuffer(in.q.dtype(), shape);
    shape[3] = 1;
    lse = TensorBuffer(DType::kF32, shape);
  }
  [[nodiscard]] DecodeCall call(const AppendInputs& in, const TensorBuffer& q) const {
    const AppendCall appended = in.call();
    DecodeCall call = {.q = q.view(), .k_cache = in.k_cache, .o = o.view(), .lse = lse.view()};
    if (appended.v_cache) call.v_cache = *appended.v_cache;
    call.cache = appended.cache;
    call.params = {.window_left = 9, .cu_seqlens_q = appended.cu_seqlens_q, .max_seqlen_q = appended.max_seqlen_q};
    if (in.options.packed_q) call.params.num_sequences = in.options.num_sequences;
    return call;
  }
};

}  // namespace

ServingCalls cpu_calls() {
  return {[](const AppendCall& call) { append(call); }, [](const DecodeCall& call) { decode(call); },
          [](const AppendCall& appended, const DecodeCall& call) { decode(appended, call); }};
}

std::vector<AppendCase> append_and_decode_cases() {
  std::vector<AppendCase> all;
  std::uint64_t seed = 0;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const RotaryKind rotary : {RotaryKind::kNone, RotaryKind::kHalves, RotaryKind::kLastNeighbours}) {
      for (const bool packed : {false, true}) {
        for (const std::int64_t page_size : {0, 3, 16}) {
          AppendCase c = {.dtype = dtype, .cache_dtype = dtype, .page_size = page_size, .seed = ++seed};
          c.packed = c.packed_q = packed;
          c.rotary = rotary;
          c.norm = seed % 3 == 0;
          c.batch_idx = seed % 2 == 0;
          c.hostile = seed % 4 < 2;
          c.slots = seed % 5 == 0;
          c.keys_only = seed % 7 == 0;
          c.queries = seed % 2 == 0 ? QueryKind::kFewerLast : QueryKind::kLikeKeys;
          all.push_back(c);
        }
      }
    }
  }
  return all;
}

void check_one_call_is_two(const AppendCase& c, const ServingCalls& calls) {
  SCOPED_TRACE(describe(c));
  const AppendInputs in = make_append_inputs(c), other = make_append_inputs(c);
  // First make two separate calls. Between the calls, seqlens_k grows by the number of new rows.
  calls.append(in.call());
  TensorArray<std::int32_t> lengths = in.seqlens_k;
  const std::int64_t block = in.k_cache.shape[2];
  const std::int64_t capacity = c.page_size == 0 ? block : block * in.pages_per_row;
  for (std::int64_t s = 0; s < c.num_sequences; ++s) {
    const std::int64_t rows = c.packed ? in.cu_seqlens_new[s + 1] - in.cu_seqlens_new[s] : c.most_new;
    if (lengths[s] >= 0) lengths[s] = static_cast<std::int32_t>(std::min(capacity, lengths[s] + rows));
  }
  const Decoded two(in);
  const bool computes_q = c.norm || c.rotary != RotaryKind::kNone;
  DecodeCall decoded = two.call(in, computes_q ? in.q_out : in.q);
  decoded.cache.seqlens_k = lengths.data();
  calls.decode(decoded);
  // Then do the same work in one call.
  const Decoded one(other);
  AppendCall call = other.call();
  const auto q_before = other.q.memory(), q_out_before = other.q_out.memory();
  call.q.reset(), call.q_out.reset(), call.cu_seqlens_q = nullptr, call.max_seqlen_q = 0;
  calls.append_and_decode(call, one.call(other, other.q));
  EXPECT_TRUE(in.pool == other.pool);
  expect_same_bits("o", one.o, two.o);
  expect_same_bits("lse", one.lse, two.lse);
  EXPECT_TRUE(other.q.memory() == q_before && other.q_out.memory() == q_out_before);
  EXPECT_EQ(other.seqlens_k, in.seqlens_k);
}

}  // namespace attend::test
