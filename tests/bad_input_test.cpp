// Every argument that is refused: the error names the argument, the value and what is allowed, and nothing is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "support/attention_case.hpp"

namespace attend::test {
namespace {

constexpr Shape kQ = {2, 4, 3, 8}, kK = {2, 2, 5, 8}, kV = {2, 2, 5, 6}, kO = {2, 4, 3, 6}, kLse = {2, 4, 3, 1};
constexpr Shape kScores = {2, 4, 3, 5};
constexpr std::int64_t kHuge = std::int64_t{1} << 31;  // one more than the largest size

/// A call that is right, until spoilt.
struct Call {
  TensorBuffer buffers[9] = {{DType::kF32, kO}, {DType::kF32, kQ}, {DType::kF32, kK},
                             {DType::kF32, kV}, {DType::kF32, kO}, {DType::kF32, kLse},
                             {DType::kF32, kQ}, {DType::kF32, kK}, {DType::kF32, kV}};
  TensorBuffer bias_buffer{DType::kF32, kScores}, dbias_buffer{DType::kF32, kScores};
  TensorBuffer mask_buffer{DType::kBool, kScores}, slopes_buffer{DType::kF32, {2, 4, 1, 1}},
      dlse_buffer{DType::kF32, kLse};
  Tensor dout = buffers[0].view(), q = buffers[1].view(), k = buffers[2].view(), v = buffers[3].view();
  Tensor o = buffers[4].view(), lse = buffers[5].view();
  Tensor dq = buffers[6].view(), dk = buffers[7].view(), dv = buffers[8].view();
  std::vector<std::int32_t> cu_q = {0, 3}, cu_k = {0, 2, 5};
  Params params = {};
  BackwardExtras extras = {};

  /// Packed: two sequences, 1 + 2 queries and 2 + 3 keys.
  void pack() {
    for (Tensor* t : {&dout, &q, &k, &v, &o, &lse, &dq, &dk, &dv}) t->shape[0] = 1;
    cu_q = {0, 1, 3};
    cu_k = {0, 2, 5};
    params.varlen = Varlen{cu_q.data(), cu_k.data(), 2, 2, 3};
  }
  void with_bias() {
    params.bias = bias_buffer.view();
    extras.dbias = dbias_buffer.view();
  }

  void forward() const { attend::forward(q, k, v, o, &lse, params); }
  void backward() const { attend::backward(dout, q, k, v, o, lse, dq, dk, dv, params, nullptr, extras); }
  void planned_forward() const { plan(forward_call(q, k, v, o, &lse, params)).run(); }
  void planned_backward() const { plan(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras)).run(); }

  [[nodiscard]] std::vector<std::vector<std::byte>> memory() const {
    std::vector<std::vector<std::byte>> all = {bias_buffer.memory(), dbias_buffer.memory()};
    for (const TensorBuffer& buffer : buffers) all.push_back(buffer.memory());
    return all;
  }
};

enum Pass : std::uint8_t { kBoth, kBackwardOnly };

struct BadInput {
  const char* name;
  std::function<void(Call&)> spoil;
  std::vector<std::string> message;  // parts of it
  Pass pass = kBoth;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

void PrintTo(const BadInput& bad, std::ostream* out) {
  *out << bad.name;
}

class BadInputs : public testing::TestWithParam<BadInput> {};

void expect_refusal(const BadInput& bad, const Call& call, const std::function<void()>& run) {
  const auto before = call.memory();
  try {
    run();
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), bad.code) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << "one line: " << message;
    for (const std::string& part : bad.message) {
      EXPECT_NE(message.find(part), std::string::npos) << "no '" << part << "' in: " << message;
    }
    EXPECT_EQ(message.rfind(bad.message.front(), 0), 0U) << "does not begin with the argument: " << message;
  }
  EXPECT_TRUE(call.memory() == before) << "memory was written";
}

TEST_P(BadInputs, AreRefusedByNameAndWriteNothing) {
  const BadInput& bad = GetParam();
  for (const char* compute : {"cpu", "reference", "cpu_naive"}) {
    SCOPED_TRACE(compute);
    Call call;
    call.params.compute = compute;
    bad.spoil(call);
    if (bad.pass == kBoth) {
      expect_refusal(bad, call, [&] { call.forward(); });
      expect_refusal(bad, call, [&] { call.planned_forward(); });
    }
    expect_refusal(bad, call, [&] { call.backward(); });
    expect_refusal(bad, call, [&] { call.planned_backward(); });
  }
}

TEST(GoodInput, IsTaken) {  // else every test above could pass for a wrong reason
  Call call;
  EXPECT_NO_THROW(call.forward());
  EXPECT_NO_THROW(call.backward());
  call.with_bias();
  call.params.alibi_slopes = call.slopes_buffer.view();
  call.params.mask = call.mask_buffer.view();
  call.extras.dlse = call.dlse_buffer.view();
  EXPECT_NO_THROW(call.forward());
  EXPECT_NO_THROW(call.backward());
  Call packed;
  packed.pack();
  EXPECT_NO_THROW(packed.forward());
  EXPECT_NO_THROW(packed.backward());
}

const BadInput kTensors[] = {
    {"NegativeSize", [](Call& c) { c.k.shape[2] = -5; }, {"k: ", "size -5", "dimension 2", "0 to 2147483647"}},
    {"NegativeSizeBehindItsStride",  // dense strides are products of sizes: the size is what is wrong
     [](Call& c) { c.q.shape[1] = -4, c.q.stride[0] = -96; },
     {"q: ", "size -4", "dimension 1", "0 to 2147483647"}},
    {"HugeSize", [](Call& c) { c.q.shape[2] = kHuge; }, {"q: ", "2147483648", "dimension 2", "0 to 2147483647"}},
    {"NegativeStride", [](Call& c) { c.v.stride[2] = -6; }, {"v: ", "stride -6", "dimension 2", ">= 0"}},
    {"InnerStride", [](Call& c) { c.q.stride[3] = 2; }, {"q: ", "last stride 2", "allowed 1"}},
    {"OverflowingBytes",
     [](Call& c) {
       c.v.shape = {2, 2, 5, kHuge - 1}, c.v.stride[0] = std::int64_t{1} << 61;
     },
     {"v: ", "2^62 bytes"}},
    {"OverflowingExtent",
     [](Call& c) { c.k.stride[0] = std::numeric_limits<std::int64_t>::max(); },
     {"k: ", "2^62 bytes"}},
    {"NullData", [](Call& c) { c.v.data = nullptr; }, {"v: ", "null", "(2, 2, 5, 6)"}},
    {"OtherDevice",
     [](Call& c) {
       c.k.device = {DeviceType::kCUDA, 1};
     },
     {"k: ", "cuda 1", "device of q", "cpu 0"}},
    {"BoolDtype", [](Call& c) { c.q.dtype = DType::kBool; }, {"q: ", "bool", "f32, f16, bf16"}},
    {"HeadDimZero", [](Call& c) { c.q.shape[3] = c.k.shape[3] = 0; }, {"q: ", "head_dim 0", "1 to 512"}},
    {"HeadDimTooLarge", [](Call& c) { c.q.shape[3] = 513; }, {"q: ", "head_dim 513", "1 to 512"}},
    {"HeadDimVTooLarge", [](Call& c) { c.v.shape[3] = 513; }, {"v: ", "head_dim 513", "1 to 512"}},
    {"KBatch", [](Call& c) { c.k.shape[0] = 1; }, {"k: ", "(1, 2, 5, 8)", "batch of q", "(2, any, any, 8)"}},
    {"KHeadDim", [](Call& c) { c.k.shape[3] = 7; }, {"k: ", "(2, 2, 5, 7)", "head_dim of q"}},
    {"HeadsNotDivisible",
     [](Call& c) { c.k.shape[1] = c.v.shape[1] = 3; },
     {"k: ", "num_heads_k 3", "divisor of num_heads_q 4"}},
    {"MoreKeyHeads",
     [](Call& c) {
       c.q.shape[1] = 1;
       c.o.shape[1] = 1;
     },
     {"k: ", "num_heads_k 2", "divisor of num_heads_q 1"}},
    {"NoKeyHeads",
     [](Call& c) { c.k.shape[1] = c.v.shape[1] = 0; },
     {"k: ", "num_heads_k 0", "divisor of num_heads_q 4"}},
    {"VSeqlen", [](Call& c) { c.v.shape[2] = 4; }, {"v: ", "(2, 2, 4, 6)", "seqlen_k of k", "(2, 2, 5, any)"}},
    {"OShape", [](Call& c) { c.o.shape[3] = 8; }, {"o: ", "(2, 4, 3, 8)", "head_dim_v of v", "(2, 4, 3, 6)"}},
    {"LseDtype", [](Call& c) { c.lse.dtype = DType::kF16; }, {"lse: ", "f16", "allowed f32"}},
    {"LseF64WithF32Q", [](Call& c) { c.lse.dtype = DType::kF64; }, {"lse: ", "f64", "allowed f32"}},
    {"LseShape",
     [](Call& c) {
       c.lse.shape = {2, 4, 1, 3};
     },
     {"lse: ", "(2, 4, 1, 3)", "(2, 4, 3, 1)"}},
};
INSTANTIATE_TEST_SUITE_P(Tensors, BadInputs, testing::ValuesIn(kTensors),
                         [](const auto& test) { return test.param.name; });

const BadInput kOutputs[] = {
    {"DoutShape",
     [](Call& c) { c.dout.shape[2] = 4; },
     {"dout: ", "(2, 4, 4, 6)", "shape of o", "(2, 4, 3, 6)"},
     kBackwardOnly},
    {"DoutDtype", [](Call& c) { c.dout.dtype = DType::kBool; }, {"dout: ", "bool"}, kBackwardOnly},
    {"DqShape",
     [](Call& c) { c.dq.shape[3] = 6; },
     {"dq: ", "(2, 4, 3, 6)", "shape of q", "(2, 4, 3, 8)"},
     kBackwardOnly},
    {"DkShape",
     [](Call& c) { c.dk.shape[1] = 4; },
     {"dk: ", "(2, 4, 5, 8)", "shape of k", "(2, 2, 5, 8)"},
     kBackwardOnly},
    {"DvShape",
     [](Call& c) { c.dv.shape[3] = 8; },
     {"dv: ", "(2, 2, 5, 8)", "shape of v", "(2, 2, 5, 6)"},
     kBackwardOnly},
    {"DkNull", [](Call& c) { c.dk.data = nullptr; }, {"dk: ", "null"}, kBackwardOnly},
    {"DlseShape",
     [](Call& c) { c.extras.dlse = c.dlse_buffer.view(), c.extras.dlse->shape[2] = 2; },
     {"dlse: ", "(2, 4, 2, 1)", "(2, 4, 3, 1)"},
     kBackwardOnly},
    {"DlseDtype",
     [](Call& c) { c.extras.dlse = c.dlse_buffer.view(), c.extras.dlse->dtype = DType::kBF16; },
     {"dlse: ", "bf16", "f32"},
     kBackwardOnly},
    {"DbiasWithoutBias",
     [](Call& c) { c.extras.dbias = c.dbias_buffer.view(); },
     {"dbias: ", "without params.bias"},
     kBackwardOnly},
    {"DbiasShape",
     [](Call& c) { c.with_bias(), c.extras.dbias->shape[0] = 1; },
     {"dbias: ", "(1, 4, 3, 5)", "(2, 4, 3, 5)"},
     kBackwardOnly},
    {"DbiasDtype",
     [](Call& c) { c.with_bias(), c.extras.dbias->dtype = DType::kBool; },
     {"dbias: ", "bool"},
     kBackwardOnly},
    {"DqStrideZero", [](Call& c) { c.dq.stride[1] = 0; }, {"dq: ", "stride 0", "dimension 1", "> 0"}, kBackwardOnly},
    {"DvIsV", [](Call& c) { c.dv.data = c.v.data; }, {"dv: ", "shares memory with v"}, kBackwardOnly},
    {"DqOverlapsDout",
     [](Call& c) { c.dq.data = static_cast<float*>(c.dout.data) + 7; },
     {"dq: ", "shares memory with dout"},
     kBackwardOnly},
    {"DqOverlapsLse", [](Call& c) { c.dq.data = c.lse.data; }, {"dq: ", "shares memory with lse"}, kBackwardOnly},
    {"DkIsDq", [](Call& c) { c.dk.data = c.dq.data; }, {"dk: ", "starts where dq does"}, kBackwardOnly},
    {"DbiasIsBias",
     [](Call& c) { c.with_bias(), c.extras.dbias->data = c.bias_buffer.view().data; },
     {"dbias: ", "shares memory with bias"},
     kBackwardOnly},
};
INSTANTIATE_TEST_SUITE_P(Outputs, BadInputs, testing::ValuesIn(kOutputs),
                         [](const auto& test) { return test.param.name; });

const BadInput kParams[] = {
    {"ScaleNaN", [](Call& c) { c.params.scale = NAN; }, {"scale: ", "nan", "finite"}},
    {"ScaleInfinite", [](Call& c) { c.params.scale = -INFINITY; }, {"scale: ", "-inf", "finite"}},
    {"ScaleBeyondFloat", [](Call& c) { c.params.scale = 1e39; }, {"scale: ", "1e+39", "up to 3.4e+38"}},
    {"SoftcapNegative", [](Call& c) { c.params.softcap = -1; }, {"softcap: ", "-1", "0 (off)"}},
    {"SoftcapNaN", [](Call& c) { c.params.softcap = NAN; }, {"softcap: ", "nan", "0 (off)"}},
    {"SoftcapBelowFloat", [](Call& c) { c.params.softcap = 1e-50; }, {"softcap: ", "1e-50", "from 1.18e-38"}},
    {"SoftcapBeyondFloat", [](Call& c) { c.params.softcap = 1e39; }, {"softcap: ", "1e+39", "to 3.4e+38"}},
    {"DropoutOne", [](Call& c) { c.params.dropout_p = 1; }, {"dropout_p: ", "1", "0 <= dropout_p < 1"}},
    {"DropoutNegative", [](Call& c) { c.params.dropout_p = -0.25; }, {"dropout_p: ", "-0.25", "0 <= dropout_p < 1"}},
    {"DropoutNaN", [](Call& c) { c.params.dropout_p = NAN; }, {"dropout_p: ", "nan", "0 <= dropout_p < 1"}},
    {"WindowLeft", [](Call& c) { c.params.window_left = -2; }, {"window_left: ", "-2", ">= 0, or -1"}},
    {"WindowRight", [](Call& c) { c.params.window_right = -3; }, {"window_right: ", "-3", ">= 0, or -1"}},
    {"SlopesDtype",
     [](Call& c) { c.params.alibi_slopes = c.slopes_buffer.view(), c.params.alibi_slopes->dtype = DType::kF16; },
     {"alibi_slopes: ", "f16", "f32"}},
    {"SlopesHeads",
     [](Call& c) { c.params.alibi_slopes = c.slopes_buffer.view(), c.params.alibi_slopes->shape[1] = 1; },
     {"alibi_slopes: ", "(2, 1, 1, 1)", "dimension 1 must be 4"}},
    {"SlopesBatch",
     [](Call& c) { c.params.alibi_slopes = c.slopes_buffer.view(), c.params.alibi_slopes->shape[0] = 3; },
     {"alibi_slopes: ", "(3, 4, 1, 1)", "dimension 0 must be 2 or 1"}},
    {"SlopesNull",
     [](Call& c) { c.params.alibi_slopes = c.slopes_buffer.view(), c.params.alibi_slopes->data = nullptr; },
     {"alibi_slopes: ", "null"}},
    {"BiasShape",
     [](Call& c) { c.with_bias(), c.params.bias->shape[1] = 3; },
     {"bias: ", "(2, 3, 3, 5)", "dimension 1 must be 4 or 1"}},
    {"BiasKeys",
     [](Call& c) { c.with_bias(), c.params.bias->shape[3] = 1; },
     {"bias: ", "(2, 4, 3, 1)", "dimension 3 must be 5"}},
    {"BiasDtype", [](Call& c) { c.with_bias(), c.params.bias->dtype = DType::kBool; }, {"bias: ", "bool", "f32"}},
    {"MaskShape",
     [](Call& c) { c.params.mask = c.mask_buffer.view(), c.params.mask->shape[2] = 2; },
     {"mask: ", "(2, 4, 2, 5)", "dimension 2 must be 3 or 1"}},
    {"MaskDtype", [](Call& c) { c.params.mask = c.bias_buffer.view(); }, {"mask: ", "f32", "bool"}},
    {"UnknownCompute",
     [](Call& c) { c.params.compute = "gpu9"; },
     {"compute: ", "gpu9", "auto, cpu, reference, cpu_naive"}},
};
INSTANTIATE_TEST_SUITE_P(Params, BadInputs, testing::ValuesIn(kParams),
                         [](const auto& test) { return test.param.name; });

const BadInput kVarlen[] = {
    {"WithBias", [](Call& c) { c.with_bias(), c.pack(); }, {"bias: ", "varlen"}},
    {"WithMask", [](Call& c) { c.pack(), c.params.mask = c.mask_buffer.view(); }, {"mask: ", "varlen"}},
    {"BatchOfTwo",
     [](Call& c) {
       c.params.varlen = Varlen{c.cu_q.data(), c.cu_k.data(), 1, 3, 5};
     },
     {"q: ", "batch 2", "allowed 1"}},
    {"NegativeCount",
     [](Call& c) { c.pack(), c.params.varlen->num_sequences = -1; },
     {"varlen.num_sequences: ", "-1", "0 to"}},
    {"NullQ",
     [](Call& c) { c.pack(), c.params.varlen->cu_seqlens_q = nullptr; },
     {"varlen.cu_seqlens_q: ", "null", "num_sequences + 1"}},
    {"NullK",
     [](Call& c) { c.pack(), c.params.varlen->cu_seqlens_k = nullptr; },
     {"varlen.cu_seqlens_k: ", "null", "num_sequences + 1"}},
    {"FirstNotZero", [](Call& c) { c.pack(), c.cu_q[0] = 1; }, {"varlen.cu_seqlens_q: ", "first entry 1", "allowed 0"}},
    {"Decreasing",
     [](Call& c) { c.pack(), c.cu_k[1] = 6, c.params.varlen->max_seqlen_k = 9; },
     {"varlen.cu_seqlens_k: ", "entry 2 is 5 after 6", "non-decreasing"}},
    {"WrongEnd", [](Call& c) { c.pack(), c.cu_k[2] = 4; }, {"varlen.cu_seqlens_k: ", "last entry 4", "tokens 5"}},
    {"MaxTooSmall",
     [](Call& c) { c.pack(), c.cu_q[1] = 0; },
     {"varlen.cu_seqlens_q: ", "sequence 1 has length 3", "max_seqlen_q = 2"}},
    {"MaxKTooSmall",
     [](Call& c) { c.pack(), c.cu_k[1] = 1; },
     {"varlen.cu_seqlens_k: ", "sequence 1 has length 4", "max_seqlen_k = 3"}},
    {"MaxNegative",
     [](Call& c) { c.pack(), c.params.varlen->max_seqlen_q = -200; },
     {"varlen.max_seqlen_q: ", "-200", "0 to"}},
    {"MaxForgotten",
     [](Call& c) { c.pack(), c.params.varlen->max_seqlen_k = 0; },
     {"varlen.max_seqlen_k: ", "0", "too small for 5 tokens in 2 sequences"}},
    {"Slopes",
     [](Call& c) { c.pack(), c.params.alibi_slopes = c.slopes_buffer.view(), c.params.alibi_slopes->shape[0] = 3; },
     {"alibi_slopes: ", "dimension 0 must be 2 or 1"}},
};
INSTANTIATE_TEST_SUITE_P(Varlen, BadInputs, testing::ValuesIn(kVarlen),
                         [](const auto& test) { return test.param.name; });

// What only forward refuses: there o and lse are outputs.
TEST(BadForwardOutputs, AreRefused) {
  const BadInput bad[] = {
      {"OStrideZero", [](Call& c) { c.o.stride[2] = 0; }, {"o: ", "stride 0", "dimension 2", "> 0"}},
      {"LseStrideZero", [](Call& c) { c.lse.stride[0] = 0; }, {"lse: ", "stride 0", "dimension 0", "> 0"}},
      {"OIsV", [](Call& c) { c.o.data = c.v.data; }, {"o: ", "shares memory with v"}},
      {"OIsQ", [](Call& c) { c.o.data = static_cast<float*>(c.q.data) + 3; }, {"o: ", "shares memory with q"}},
      {"LseIsK", [](Call& c) { c.lse.data = c.k.data; }, {"lse: ", "shares memory with k"}},
      {"LseIsO", [](Call& c) { c.lse.data = c.o.data; }, {"lse: ", "starts where o does"}},
  };
  for (const BadInput& b : bad) {
    SCOPED_TRACE(b.name);
    Call call;
    b.spoil(call);
    expect_refusal(b, call, [&] { call.forward(); });
  }
}

TEST(BadDevice, IsMissingHardware) {
  const BadInput bad = {"Cuda", {}, {"q: ", "CUDA"}, kBoth, ErrorCode::kMissingHardware};
  Call call;
  for (Tensor* t : {&call.dout, &call.q, &call.k, &call.v, &call.o, &call.lse, &call.dq, &call.dk, &call.dv}) {
    t->device = {DeviceType::kCUDA, 0};
  }
  expect_refusal(bad, call, [&] { call.forward(); });
  expect_refusal(bad, call, [&] { call.backward(); });
}

// Well defined, but not done by this backend: another code, the same form.
TEST(UnsupportedByBackend, IsRefusedByName) {
  struct Lack {
    const char* compute;
    std::function<void(Call&)> ask;
    std::vector<std::string> message;
    Pass pass = kBoth;
  };
  const auto f64 = [](Call& c) { c.q.dtype = DType::kF64; };
  const Lack lacks[] = {
      {"cpu", f64, {"q: ", "f64"}},
      {"cpu", [](Call& c) { c.k.dtype = DType::kF64; }, {"k: ", "f64", "f32"}},
      {"cpu_naive", [](Call& c) { c.v.dtype = DType::kF16; }, {"v: ", "f16", "f32"}},
      {"cpu_naive", [](Call& c) { c.params.softcap = 2; }, {"softcap: ", "2", "allows 0"}},
      {"cpu_naive", [](Call& c) { c.params.dropout_p = 0.5; }, {"dropout_p: ", "0.5", "allows 0"}},
      {"cpu_naive", [](Call& c) { c.params.window_left = 3; }, {"window_left: ", "3", "-1"}},
      {"cpu_naive", [](Call& c) { c.params.window_right = 1; }, {"window_right: ", "1", "-1 or causal"}},
      {"cpu_naive", [](Call& c) { c.with_bias(); }, {"bias: ", "given", "none"}},
      {"cpu_naive", [](Call& c) { c.params.mask = c.mask_buffer.view(); }, {"mask: ", "given", "none"}},
      {"cpu_naive",
       [](Call& c) { c.params.alibi_slopes = c.slopes_buffer.view(); },
       {"alibi_slopes: ", "given", "none"}},
      {"cpu_naive", [](Call& c) { c.pack(); }, {"varlen: ", "given", "none"}},
      {"cpu", [](Call& c) { c.dout.dtype = DType::kF64; }, {"dout: ", "f64", "f32"}, kBackwardOnly},
      {"cpu", [](Call& c) { c.dq.dtype = DType::kF64; }, {"dq: ", "f64", "f32"}, kBackwardOnly},
      {"cpu", [](Call& c) { c.dk.dtype = DType::kF64; }, {"dk: ", "f64", "f32"}, kBackwardOnly},
      {"cpu", [](Call& c) { c.dv.dtype = DType::kF64; }, {"dv: ", "f64", "f32"}, kBackwardOnly},
      {"cpu_naive", [](Call& c) { c.dq.dtype = DType::kF16; }, {"dq: ", "f16", "f32"}, kBackwardOnly},
  };
  for (const Lack& lack : lacks) {
    Call call;
    call.params.compute = lack.compute;
    lack.ask(call);
    SCOPED_TRACE(lack.message.front());
    const BadInput bad = {"", {}, lack.message, lack.pass, ErrorCode::kUnsupported};
    if (lack.pass == kBoth) expect_refusal(bad, call, [&] { call.forward(); });
    expect_refusal(bad, call, [&] { call.backward(); });
  }
}

}  // namespace
}  // namespace attend::test
