// Checks the calls that attend::append, attend::merge and append with decode must refuse. The message is one line that
// names the argument, its value and the allowed values. A refused call must not write anything.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>

#include "cuda/driver/device.hpp"
#include "serving/append_case.hpp"
#include "support/expect.hpp"

namespace attend::test {
namespace {

using testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::string refusal(const std::function<void()>& run, ErrorCode code = ErrorCode::kInvalidArgument) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "nothing was refused";
}

/// A change that makes a call invalid, and the error message that the change must cause. The call is an append that
/// uses every option.
struct BadAppend {
  const char* message;
  std::function<void(AppendCall&)> change;
};

AppendCase full_case() {
  AppendCase c = {.page_size = 16, .rotary = RotaryKind::kHalves, .norm = true, .queries = QueryKind::kLikeKeys};
  c.packed = c.packed_q = true;
  return c;
}

std::vector<BadAppend> bad_caches() {
  return {
      {"k: dtype f64, allowed f32, f16, bf16", [](AppendCall& c) { c.k.dtype = DType::kF64; }},
      {"k: last stride 2, allowed 1", [](AppendCall& c) { c.k.stride[3] = 2; }},
      {"k: head_dim 0, allowed 1 to 1024", [](AppendCall& c) { c.k.shape[3] = 0; }},
      {"k: batch 2 with cu_seqlens_new, allowed 1", [](AppendCall& c) { c.k.shape[0] = c.v->shape[0] = 2; }},
      {"k_cache: dtype bool, allowed f32, f16, bf16", [](AppendCall& c) { c.k_cache.dtype = DType::kBool; }},
      {"k_cache: shape", [](AppendCall& c) { c.k_cache.shape[1] = 3; }},
      {"k_cache: null data", [](AppendCall& c) { c.k_cache.data = nullptr; }},
      {"k_cache: stride 0 in dimension 0 of an output, allowed > 0", [](AppendCall& c) { c.k_cache.stride[0] = 0; }},
      {"k_cache: on cuda 0, allowed the device of k, cpu 0",
       [](AppendCall& c) { c.k_cache.device.type = DeviceType::kCUDA; }},
      {"k_cache: shares memory with k", [](AppendCall& c) { c.k.data = c.k_cache.data; }},
      {"v: given without v_cache", [](AppendCall& c) { c.v_cache.reset(); }},
      {"v_cache: given without v", [](AppendCall& c) { c.v.reset(); }},
      {"v: shape", [](AppendCall& c) { c.v->shape[2] = 1; }},
      {"v_cache: shape", [](AppendCall& c) { c.v_cache->shape[2] = 15; }},
      {"v_cache: has the address of k_cache", [](AppendCall& c) { c.v_cache->data = c.k_cache.data; }},
      {"seqlens_k: absent without slot_mapping", [](AppendCall& c) { c.cache.seqlens_k = nullptr; }},
      {"page_table: null pages", [](AppendCall& c) { c.cache.page_table->pages = nullptr; }},
      {"page_table: num_rows -1, allowed 0 to", [](AppendCall& c) { c.cache.page_table->num_rows = -1; }},
      {"page_table: 5 rows for 6 sequences", [](AppendCall& c) { c.cache.page_table->num_rows = 5; }},
  };
}

std::vector<BadAppend> bad_rows() {
  static const std::vector<std::int32_t> down = {0, 3, 2, 4, 5, 6, 7}, late = {1, 2, 3, 4, 5, 6, 7},
                                         long_one = {0, 9, 9, 9, 9, 9, 9}, beyond = {0, 5, 10, 15, 20, 25, 30};
  return {
      {"cu_seqlens_new: entry 2 is 2 after 3", [](AppendCall& c) { c.cu_seqlens_new = down.data(); }},
      {"cu_seqlens_new: first entry 1, allowed 0", [](AppendCall& c) { c.cu_seqlens_new = late.data(); }},
      {"cu_seqlens_new: sequence 0 has length 9, allowed <= max_seqlen_new = 5",
       [](AppendCall& c) { c.cu_seqlens_new = long_one.data(); }},
      {"cu_seqlens_new: last entry 30, allowed at most the number of rows of k",
       [](AppendCall& c) { c.cu_seqlens_new = beyond.data(); }},
      {"num_sequences: 6 without cu_seqlens_new", [](AppendCall& c) { c.cu_seqlens_new = nullptr; }},
      {"max_seqlen_new: 5 without cu_seqlens_new",
       [](AppendCall& c) { c.cu_seqlens_new = nullptr, c.num_sequences = 0; }},
      {"num_sequences: -1, allowed 0 to", [](AppendCall& c) { c.num_sequences = -1; }},
      {"cu_seqlens_q: entry 2 is 2 after 3", [](AppendCall& c) { c.cu_seqlens_q = down.data(); }},
      {"q: given without q_out", [](AppendCall& c) { c.q_out.reset(); }},
      {"q_out: given without q", [](AppendCall& c) { c.q.reset(); }},
      {"q_norm: given without q",
       [](AppendCall& c) { c.q.reset(), c.q_out.reset(), c.cu_seqlens_q = nullptr, c.max_seqlen_q = 0; }},
      {"q: batch 1, allowed the number of sequences, 6", [](AppendCall& c) { c.cu_seqlens_q = nullptr; }},
      {"q: shape", [](AppendCall& c) { c.q->shape[3] -= 1; }},
      {"q_out: shape", [](AppendCall& c) { c.q_out->shape[1] -= 1; }},
      {"q_out: dtype bf16, allowed the dtype of q, f32", [](AppendCall& c) { c.q_out->dtype = DType::kBF16; }},
      {"q_out: shares memory with k_cache", [](AppendCall& c) { c.q_out->data = c.k_cache.data; }},
      {"q_out: shares memory with k,", [](AppendCall& c) { c.k.data = c.q_out->data; }},
      {"q_out: shares memory with q,",
       [](AppendCall& c) { c.q_out->data = static_cast<float*>(const_cast<void*>(c.q->data)) + 1; }},
  };
}

std::vector<BadAppend> bad_numbers() {
  return {
      {"rotary.cos: shape", [](AppendCall& c) { c.rotary->cos.shape[0] = 2; }},
      {"rotary.sin: shape", [](AppendCall& c) { c.rotary->sin.shape[2] -= 1; }},
      {"rotary.cos: 0 positions, allowed >= 1",
       [](AppendCall& c) { c.rotary->cos.shape[2] = c.rotary->sin.shape[2] = 0; }},
      {"rotary.cos: rotary_dim 42, allowed at most head_dim - first_column = 40",
       [](AppendCall& c) { c.rotary->cos.shape[3] = c.rotary->sin.shape[3] = 21; }},
      {"rotary.first_column: -2, allowed 0 to head_dim = 40", [](AppendCall& c) { c.rotary->first_column = -2; }},
      {"rotary.cos: rotary_dim 40, allowed at most head_dim - first_column = 39",
       [](AppendCall& c) { c.rotary->first_column = 1; }},
      {"rotary.seqlens: given with positions",
       [](AppendCall& c) { c.rotary->seqlens = c.positions = c.cache.seqlens_k; }},
      {"k_norm: shape", [](AppendCall& c) { c.k_norm->shape[3] = 39; }},
      {"q_norm: dtype bool", [](AppendCall& c) { c.q_norm->dtype = DType::kBool; }},
      {"norm_eps: -1, allowed finite numbers >= 0", [](AppendCall& c) { c.norm_eps = -1; }},
      {"norm_eps: nan, allowed finite numbers >= 0", [](AppendCall& c) { c.norm_eps = kNaN; }},
      {"norm_eps: 1e+300, allowed finite numbers >= 0", [](AppendCall& c) { c.norm_eps = 1e300; }},
  };
}

TEST(AppendRefusals, NameTheArgumentAndWriteNothing) {
  for (const auto& bad_calls : {bad_caches(), bad_rows(), bad_numbers()}) {
    for (const BadAppend& bad : bad_calls) {
      const AppendInputs in = make_append_inputs(full_case());
      AppendCall call = in.call();
      bad.change(call);
      const auto pool = in.pool;
      const auto q_out = in.q_out.memory(), k = in.k.memory();
      EXPECT_THAT(refusal([&] { append(call); }), testing::StartsWith(bad.message));
      EXPECT_TRUE(in.pool == pool && in.q_out.memory() == q_out && in.k.memory() == k) << bad.message;
    }
  }
}

TEST(AppendRefusals, WithSlotsPositionsHaveToComeFromSomewhere) {
  AppendCase c = full_case();
  c.slots = true;
  const AppendInputs in = make_append_inputs(c);
  AppendCall call = in.call();
  call.cache = {};
  EXPECT_THAT(refusal([&] { append(call); }), HasSubstr("positions: absent with slot_mapping and rotary"));
  call.rotary.reset();
  append(call);
}

TEST(AppendRefusals, WithPositionsEachQueryRowNeedsANewRow) {
  AppendCase c = full_case();
  c.queries = QueryKind::kMoreFirst;
  c.positions = PositionSource::kPositions;
  const AppendInputs in = make_append_inputs(c);
  const auto pool = in.pool;
  EXPECT_THAT(refusal([&] { append(in.call()); }), testing::MatchesRegex("positions: sequence 0 has . query rows .*"));
  EXPECT_TRUE(in.pool == pool);
}

TEST(AppendRefusals, WithoutAGpuOfTensorsOnOneInOneLine) {
  if (!cuda::missing_gpu()) GTEST_SKIP() << "there is a GPU";
  const AppendInputs in = make_append_inputs({});
  AppendCall call = in.call();
  call.k.device = call.v->device = call.k_cache.device = call.v_cache->device = {DeviceType::kCUDA, 0};
  const std::string why = refusal([&] { append(call); }, ErrorCode::kMissingHardware);
  EXPECT_EQ(why, "k: on CUDA device 0, but " + *cuda::missing_gpu());
  EXPECT_EQ(std::count(why.begin(), why.end(), '\n'), 0);
}

/// A change that makes a call invalid, and the error message that the change must cause. The call combines append and
/// decode.
struct BadPair {
  const char* message;
  std::function<void(AppendCall&, DecodeCall&)> change;
};

TEST(AppendAndDecodeRefusals, NameTheArgumentAndWriteNothing) {
  static const std::vector<std::int32_t> others(6, 0);
  const std::vector<BadPair> all = {
      {"k_cache: different in append and decode", [](AppendCall&, DecodeCall& d) { d.k_cache.stride[0] += 1; }},
      {"v_cache: different in append and decode", [](AppendCall&, DecodeCall& d) { d.v_cache.reset(); }},
      {"seqlens_k: different in append and decode",
       [](AppendCall&, DecodeCall& d) { d.cache.seqlens_k = others.data(); }},
      {"page_table: different in append and decode", [](AppendCall&, DecodeCall& d) { d.cache.page_table.reset(); }},
      {"cache_batch_idx: different in append and decode",
       [](AppendCall&, DecodeCall& d) { d.cache.cache_batch_idx = others.data(); }},
      {"num_sequences: append has 6, decode has 5", [](AppendCall&, DecodeCall& d) { d.q.shape[0] = 5; }},
      {"q: given in append", [](AppendCall& a, DecodeCall& d) { a.q = d.q; }},
      {"max_seqlen_q: given in append", [](AppendCall& a, DecodeCall&) { a.max_seqlen_q = 1; }},
      {"o: shares memory with q", [](AppendCall&, DecodeCall& d) { d.o.data = const_cast<void*>(d.q.data); }},
      {"o: shares memory with v", [](AppendCall& a, DecodeCall& d) { a.v->data = d.o.data; }},
      {"o: shares memory with rotary.cos", [](AppendCall& a, DecodeCall& d) { a.rotary->cos.data = d.o.data; }},
      {"o: shares memory with k_norm", [](AppendCall& a, DecodeCall& d) { a.k_norm->data = d.o.data; }},
      {"k_cache: shares memory with q",
       [](AppendCall& a, DecodeCall& d) {
         // Without these options q is read in place, so q must not overlap the cache.
         a.rotary.reset(), a.q_norm.reset();
         d.q.data = d.k_cache.data;
       }},
      {"k_cache: shares memory with sinks",
       [](AppendCall& a, DecodeCall& d) {
         d.params.sinks = ConstTensor::bhsd(d.k_cache.data, DType::kF32, {1, a.k.shape[1] * 3, 1, 1});
       }},
      {"k: head_dim 0", [](AppendCall& a, DecodeCall&) { a.k.shape[3] = 0; }},
      {"compute: 'none'", [](AppendCall&, DecodeCall& d) { d.params.compute = "none"; }},
      {"softcap: -1", [](AppendCall&, DecodeCall& d) { d.params.softcap = -1; }},
  };
  for (const BadPair& bad : all) {
    AppendCase c = full_case();
    c.packed = c.packed_q = false;
    const AppendInputs in = make_append_inputs(c);
    AppendCall call = in.call();
    call.q.reset(), call.q_out.reset();
    Shape shape = in.q.shape();
    shape[3] = c.head_dim_v;
    const TensorBuffer o(DType::kF32, shape);
    DecodeCall read = {.q = in.q.view(), .k_cache = in.k_cache, .v_cache = in.v_cache, .o = o.view()};
    read.cache = call.cache;
    bad.change(call, read);
    const auto pool = in.pool;
    const auto o_before = o.memory(), v = in.v.memory();
    EXPECT_THAT(refusal([&] { decode(call, read); }), testing::StartsWith(bad.message));
    EXPECT_TRUE(in.pool == pool && o.memory() == o_before && in.v.memory() == v) << bad.message;
  }
}

TEST(MergeRefusals, NameTheArgumentAndWriteNothing) {
  const TensorBuffer a = made(DType::kF32, {1, 2, 3, 4}, [](auto...) { return 1; });
  const TensorBuffer l = made(DType::kF32, {1, 2, 3, 1}, [](auto...) { return 0; });
  const TensorBuffer o(DType::kF32, {1, 2, 3, 4}), lse(DType::kF32, {1, 2, 3, 1});
  const auto merged = [&](const std::function<void(std::vector<PartialState>&, Tensor&, Tensor&, MergeParams&)>& change,
                          ErrorCode code = ErrorCode::kInvalidArgument) {
    std::vector<PartialState> states(2, {a.view(), l.view()});
    Tensor to = o.view(), to_lse = lse.view();
    MergeParams params;
    change(states, to, to_lse, params);
    const std::string message = refusal([&] { merge(states, to, &to_lse, params); }, code);
    for (const TensorBuffer* out : {&o, &lse}) {
      for (const double value : out->values()) EXPECT_TRUE(std::isnan(value)) << message;
    }
    for (const double value : a.values()) EXPECT_EQ(value, 1) << message;
    return message;
  };
  EXPECT_EQ(merged([](auto& s, auto&, auto&, auto&) { s.clear(); }), "states: 0, allowed at least 1");
  EXPECT_EQ(merged([](auto& s, auto&, auto&, auto&) { s[1].o.dtype = DType::kF64; }),
            "states[1].o: dtype f64, allowed f32, f16, bf16");
  EXPECT_THAT(merged([](auto& s, auto&, auto&, auto&) { s[1].o.shape[2] = 2; }), HasSubstr("states[1].o: shape"));
  EXPECT_EQ(merged([](auto& s, auto&, auto&, auto&) { s[0].lse.dtype = DType::kF16; }),
            "states[0].lse: dtype f16, allowed f32");
  EXPECT_THAT(merged([](auto& s, auto&, auto&, auto&) { s[0].lse.shape[1] = 1; }), HasSubstr("states[0].lse: shape"));
  EXPECT_THAT(merged([](auto&, auto& to, auto&, auto&) { to.dtype = DType::kF64; }), HasSubstr("o: dtype f64"));
  EXPECT_THAT(merged([](auto&, auto& to, auto&, auto&) { to.stride[1] = 0; }), HasSubstr("o: stride 0"));
  EXPECT_THAT(merged([&](auto& s, auto& to, auto&, auto&) {
                to.data = static_cast<float*>(a.view().data) + 4, to.shape[2] = 2;
                for (auto& state : s) state.o.shape[2] = state.lse.shape[2] = 2;
              }),
              HasSubstr("lse: shape"));
  EXPECT_THAT(merged([&](auto&, auto& to, auto&, auto&) { to.data = static_cast<float*>(a.view().data) + 4; }),
              HasSubstr("o: shares memory with states[0].o"));
  EXPECT_THAT(merged([&](auto&, auto&, auto& to_lse, auto&) { to_lse.data = a.view().data; }),
              HasSubstr("lse: shares memory with states[0].o"));
  EXPECT_THAT(merged([&](auto&, auto&, auto&, auto& params) { params.sinks = a.view(); }), HasSubstr("sinks: shape"));
  const auto to_gpu = [](auto& t) { t.device = {DeviceType::kCUDA, 1}; };
  EXPECT_EQ(merged([&](auto&, auto&, auto& to_lse, auto&) { to_gpu(to_lse); }),
            "lse: on cuda 1, allowed the device of o, cpu 0");
  if (!cuda::missing_gpu()) return;
  EXPECT_EQ(merged(
                [&](auto& s, auto& to, auto& to_lse, auto&) {
                  to_gpu(to), to_gpu(to_lse);
                  for (auto& state : s) to_gpu(state.o), to_gpu(state.lse);
                },
                ErrorCode::kMissingHardware),
            "o: on CUDA device 1, but " + *cuda::missing_gpu());
}

}  // namespace
}  // namespace attend::test
