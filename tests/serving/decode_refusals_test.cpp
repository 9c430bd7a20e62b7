// Checks the calls that attend::decode must refuse. The message is one line that names the argument, its value and the
// allowed values. A refused call must not write anything. Also checks calls that are valid although they have nothing
// to compute.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "serving/cache_case.hpp"

namespace attend::test {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 40;

struct BadDecode {
  const char* message;  // start of the error message
  std::function<void(DecodeCall&)> change;
};

std::vector<BadDecode> bad_tensors() {
  return {
      {"q: size 1099511627776 in dimension 2, allowed 0 to 2147483647", [](DecodeCall& c) { c.q.shape[2] = kHuge; }},
      {"q: dtype ?, allowed f32, f16, bf16",
       [](DecodeCall& c) {
         const auto none = static_cast<DType>(99);  // not a dtype
         c.q.dtype = c.k_cache.dtype = c.v_cache->dtype = c.o.dtype = none;
       }},
      {"q: head_dim 1025, allowed 1 to 1024", [](DecodeCall& c) { c.q.shape[3] = c.k_cache.shape[3] = 1025; }},
      {"q: null data", [](DecodeCall& c) { c.q.data = nullptr; }},
      {"k_cache: size -1 in dimension 2", [](DecodeCall& c) { c.k_cache.shape[2] = -1; }},
      {"k_cache: stride -64 in dimension 2, allowed >= 0", [](DecodeCall& c) { c.k_cache.stride[2] = -64; }},
      {"k_cache: shape (17, 2, 16, 64) spans more than 2^62 bytes",
       [](DecodeCall& c) { c.k_cache.stride[0] = std::int64_t{1} << 62; }},
      {"k_cache: dtype f16, allowed the dtype of q, f32", [](DecodeCall& c) { c.k_cache.dtype = DType::kF16; }},
      {"k_cache: num_heads_k 3, allowed a divisor of num_heads_q 4", [](DecodeCall& c) { c.k_cache.shape[1] = 3; }},
      {"v_cache: shape", [](DecodeCall& c) { c.v_cache->shape[2] = 15; }},
      {"o: shape", [](DecodeCall& c) { c.o.shape[1] = 2; }},
      {"o: head_dim 513, allowed 1 to 512", [](DecodeCall& c) { c.o.shape[3] = 513; }},
      {"o: stride 0 in dimension 1 of an output, allowed > 0", [](DecodeCall& c) { c.o.stride[1] = 0; }},
      {"o: shares memory with q", [](DecodeCall& c) { c.o.data = const_cast<void*>(c.q.data); }},
      {"o: shares memory with k_cache", [](DecodeCall& c) { c.o.data = const_cast<void*>(c.k_cache.data); }},
      {"lse: dtype f16, allowed f32", [](DecodeCall& c) { c.lse->dtype = DType::kF16; }},
      {"lse: shape", [](DecodeCall& c) { c.lse->shape[2] = 2; }},
      {"lse: has the address of o", [](DecodeCall& c) { c.lse->data = c.o.data; }},
      {"lse: shares memory with o", [](DecodeCall& c) { c.lse->data = static_cast<float*>(c.o.data) + 1; }},
  };
}

std::vector<BadDecode> bad_options() {
  static constexpr std::int32_t kOffsets[] = {0, 1, 2};
  return {
      {"page_table: null pages", [](DecodeCall& c) { c.cache.page_table->pages = nullptr; }},
      {"page_table: num_rows -1, allowed 0 to", [](DecodeCall& c) { c.cache.page_table->num_rows = -1; }},
      {"page_table: pages_per_row 1099511627776", [](DecodeCall& c) { c.cache.page_table->pages_per_row = kHuge; }},
      {"page_table: 2147483647 pages of 16 keys a row, allowed at most 2147483647 keys",
       [](DecodeCall& c) { c.cache.page_table->pages_per_row = 2147483647; }},
      {"page_table: row_stride -1, allowed 0 to 288230376151711744",
       [](DecodeCall& c) { c.cache.page_table->row_stride = -1; }},
      {"page_table: row_stride 9223372036854775807, allowed 0 to 288230376151711744",
       [](DecodeCall& c) { c.cache.page_table->row_stride = std::numeric_limits<std::int64_t>::max(); }},
      {"page_table: 1 rows for 2 sequences", [](DecodeCall& c) { c.cache.page_table->num_rows = 1; }},
      {"num_sequences: 1 without cu_seqlens_q", [](DecodeCall& c) { c.params.num_sequences = 1; }},
      {"q: batch 2 with cu_seqlens_q, allowed 1", [](DecodeCall& c) { c.params.cu_seqlens_q = kOffsets; }},
      {"scale: nan", [](DecodeCall& c) { c.params.scale = std::nan(""); }},
      {"softcap: -1", [](DecodeCall& c) { c.params.softcap = -1; }},
      {"window_left: -2, allowed >= 0, or -1 for open", [](DecodeCall& c) { c.params.window_left = -2; }},
      {"sinks: shape", [](DecodeCall& c) { c.params.sinks = c.q; }},
      {"alibi_slopes: shape", [](DecodeCall& c) { c.params.alibi_slopes = c.q; }},
      {"compute: 'none', decode allows auto, cpu, reference", [](DecodeCall& c) { c.params.compute = "none"; }},
  };
}

CacheFacts small_facts() {
  CacheFacts f;
  f.page_size = 16;
  f.rows = {1, 1};
  f.lengths = {40, 17};
  return f;
}

TEST(DecodeRefusals, NameTheArgumentAndWriteNothing) {
  std::vector<BadDecode> all = bad_tensors();
  for (const BadDecode& bad : bad_options()) all.push_back(bad);
  for (const BadDecode& bad : all) {
    const CacheCase problem(small_facts(), 1);
    const TensorBuffer o(DType::kF32, {2, 4, 1, 64}), lse(DType::kF32, {2, 4, 1, 1});
    const auto before = o.memory(), lse_before = lse.memory();
    const auto q = problem.q.memory(), k = problem.k.memory();
    DecodeCall call = problem.call();
    call.o = o.view(), call.lse = lse.view();
    bad.change(call);
    std::string message = "nothing was refused";
    try {
      decode(call);
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_THAT(message, testing::StartsWith(bad.message));
    EXPECT_THAT(message, testing::Not(testing::HasSubstr("\n")));
    EXPECT_TRUE(o.memory() == before && lse.memory() == lse_before && problem.q.memory() == q &&
                problem.k.memory() == k)
        << bad.message;
  }
}

TEST(Decode, OfNothingWritesNothing) {
  for (const Shape& shape : {Shape{0, 2, 1, 8}, {2, 0, 1, 8}, {2, 2, 0, 8}}) {
    for (const char* compute : {"cpu", "reference"}) {
      const TensorBuffer q(DType::kF32, shape), o(DType::kF32, shape);
      const TensorBuffer k(DType::kF32, {shape[0], shape[1], 4, 8});
      decode({.q = q.view(), .k_cache = k.view(), .v_cache = k.view(), .o = o.view(), .params = {.compute = compute}});
    }
  }
}

/// With row stride 0, all sequences use the same row of the page table.
TEST(Decode, TakesATableWithARowStrideOfZero) {
  CacheFacts facts = small_facts();
  facts.lengths = {40, 40};
  const CacheCase problem(facts, 2);
  const TensorBuffer o(DType::kF32, {2, 4, 1, 64});
  DecodeCall call = problem.call();
  call.o = o.view(), call.lse.reset();
  std::vector<double> wanted;
  for (const std::int64_t rows : {1, 2}) {
    call.q.stride[0] = 0;  // all sequences also share one query row
    call.cache.page_table->row_stride = 0;
    call.q.shape[0] = call.o.shape[0] = rows;
    decode(call);
    if (rows == 1) wanted = o.values();
  }
  const std::vector<double> got = o.values();
  for (std::size_t i = 0; i < 256; ++i) {
    EXPECT_EQ(got[i], wanted[i]);
    EXPECT_EQ(got[256 + i], wanted[i]);
  }
}

}  // namespace
}  // namespace attend::test
