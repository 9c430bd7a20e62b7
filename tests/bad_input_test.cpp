// Tests every argument that is refused. The error must name the argument, its value and the allowed values, and nothing
// may be written.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/bad_call.hpp"

namespace attend::test {
namespace {

class BadInputs : public testing::TestWithParam<BadInput> {};

TEST_P(BadInputs, AreRefusedByNameAndWriteNothing) {
  const BadInput& bad = GetParam();
  for (const char* compute : {"cpu", "reference", "cpu_naive"}) {
    SCOPED_TRACE(compute);
    Call call;
    call.params.compute = compute;
    bad.spoil(call);
    if (bad.pass != kBackwardOnly) {
      expect_refusal(bad, call, [&] { call.forward(); });
      expect_refusal(bad, call, [&] { call.planned_forward(); });
    }
    if (bad.pass == kForwardOnly) continue;
    expect_refusal(bad, call, [&] { call.backward(); });
    expect_refusal(bad, call, [&] { call.planned_backward(); });
  }
}

TEST(GoodInput, IsTaken) {  // otherwise the tests of bad calls could pass because the good call is invalid
  Call call;
  EXPECT_NO_THROW(call.forward());
  EXPECT_NO_THROW(call.backward());
  call.with_bias();
  call.with_sinks();
  call.params.alibi_slopes = call.slopes_buffer.view();
  call.params.mask = call.mask_buffer.view();
  call.extras.dlse = call.dlse_buffer.view();
  EXPECT_NO_THROW(call.forward());
  EXPECT_NO_THROW(call.backward());
  Call packed;
  packed.pack();
  packed.with_sinks();
  EXPECT_NO_THROW(packed.forward());
  EXPECT_NO_THROW(packed.backward());
}

const BadInput kTensors[] = {
    {"NegativeSize", [](Call& c) { c.k.shape[2] = -5; }, {"k: ", "size -5", "dimension 2", "0 to 2147483647"}},
    {"NegativeSizeBehindItsStride",  // the stride depends on the size, so the size must be reported
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

void make_8_bits(Call& c) {
  c.q.dtype = c.k.dtype = c.v.dtype = DType::kF8E4M3;
}
/// Returns factors of dtype f32 and of this shape, in the memory of the call's ALiBi slopes.
Tensor descale(const Call& c, const Shape& shape) {
  Tensor t = c.slopes_buffer.view();
  t.shape = shape;
  return t;
}

const BadInput kDescales[] = {
    {"DescalesOfFloats",
     [](Call& c) {
       c.params.k_descale = descale(c, {1, 1, 1, 1});
     },
     {"k_descale: ", "q of f32", "allowed with f8e4m3"}},
    {"DescaleDtype",
     [](Call& c) {
       make_8_bits(c);
       Tensor t = descale(c, {1, 1, 1, 1});
       t.dtype = DType::kF16;
       c.params.q_descale = t;
     },
     {"q_descale: ", "dtype f16", "allowed f32"},
     kForwardOnly},
    {"QDescaleOfEachQueryHead",
     [](Call& c) {
       make_8_bits(c);
       c.params.q_descale = descale(c, {2, 4, 1, 1});
     },
     {"q_descale: ", "(2, 4, 1, 1)", "(1 or 2, 1 or 2, 1, 1)"},
     kForwardOnly},
    {"TooManyBlocksOfDescales",
     [](Call& c) {
       make_8_bits(c);
       c.params.v_descale = descale(c, {1, 1, 2, 1});
     },
     {"v_descale: ", "(1, 1, 2, 1)", "(1 or 2, 1 or 2, 1, 1)"},
     kForwardOnly},
    {"DescaleOnAnotherDevice",
     [](Call& c) {
       make_8_bits(c);
       Tensor t = descale(c, {1, 1, 1, 1});
       t.device = {DeviceType::kCUDA, 1};
       c.params.k_descale = t;
     },
     {"k_descale: ", "cuda 1", "cpu 0"},
     kForwardOnly},
    {"DescaleWithoutData",
     [](Call& c) {
       make_8_bits(c);
       Tensor t = descale(c, {1, 1, 1, 1});
       t.data = nullptr;
       c.params.v_descale = t;
     },
     {"v_descale: ", "null"},
     kForwardOnly},
    {"KOfAnotherDtypeThan8Bits",
     [](Call& c) {
       make_8_bits(c);
       c.k.dtype = DType::kBF16;
     },
     {"k: ", "dtype bf16", "f8e4m3"},
     kForwardOnly},
    {"GradientsOf8Bits", make_8_bits, {"q: ", "dtype f8e4m3", "allowed f32, f16, bf16"}, kBackwardOnly},
};
INSTANTIATE_TEST_SUITE_P(Descales, BadInputs, testing::ValuesIn(kDescales),
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
    // An output must not start at the address of a smaller tensor. If it did, the output would extend into the memory
    // after that tensor, which differs from run to run.
    {"DqOverlapsDout",
     [](Call& c) { c.dq.data = static_cast<float*>(c.dout.data) + 3; },
     {"dq: ", "shares memory with dout"},
     kBackwardOnly},
    {"DqOverlapsLse", [](Call& c) { c.lse.data = c.dq.data; }, {"dq: ", "shares memory with lse"}, kBackwardOnly},
    {"DkIsDq", [](Call& c) { c.dk.data = c.dq.data; }, {"dk: ", "has the address of dq"}, kBackwardOnly},
    {"DbiasIsBias",
     [](Call& c) { c.with_bias(), c.extras.dbias->data = c.bias_buffer.view().data; },
     {"dbias: ", "shares memory with bias"},
     kBackwardOnly},
    {"DsinksWithoutSinks",
     [](Call& c) { c.extras.dsinks = c.dsinks_buffer.view(); },
     {"dsinks: ", "without params.sinks"},
     kBackwardOnly},
    {"DsinksShape",
     [](Call& c) { c.with_sinks(), c.extras.dsinks->shape[0] = 1; },
     {"dsinks: ", "(1, 4, 1, 1)", "shape of params.sinks", "(2, 4, 1, 1)"},
     kBackwardOnly},
    {"DsinksDtype",
     [](Call& c) { c.with_sinks(), c.extras.dsinks->dtype = DType::kBool; },
     {"dsinks: ", "bool"},
     kBackwardOnly},
    {"DsinksNull",
     [](Call& c) { c.with_sinks(), c.extras.dsinks->data = nullptr; },
     {"dsinks: ", "null"},
     kBackwardOnly},
    {"DsinksOnAnotherDevice",
     [](Call& c) {
       c.with_sinks(), c.extras.dsinks->device = {DeviceType::kCUDA, 1};
     },
     {"dsinks: ", "cuda 1", "device of q", "cpu 0"},
     kBackwardOnly},
    {"DsinksStrideZero",
     [](Call& c) { c.with_sinks(), c.extras.dsinks->stride[0] = 0; },
     {"dsinks: ", "stride 0", "dimension 0", "> 0"},
     kBackwardOnly},
    {"DsinksIsSinks",
     [](Call& c) { c.with_sinks(), c.extras.dsinks->data = c.sinks_buffer.view().data; },
     {"dsinks: ", "shares memory with sinks"},
     kBackwardOnly},
    {"DqIsSinks",
     [](Call& c) { c.with_sinks(), c.params.sinks->data = c.dq.data; },
     {"dq: ", "shares memory with sinks"},
     kBackwardOnly},
    {"DsinksIsDv",
     [](Call& c) { c.with_sinks(), c.extras.dsinks->data = c.dv.data; },
     {"dsinks: ", "has the address of dv"},
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
    {"SinksShape",
     [](Call& c) { c.with_sinks(), c.params.sinks->shape[2] = 3; },
     {"sinks: ", "(2, 4, 3, 1)", "dimension 2 must be 1"}},
    {"SinksHeads",
     [](Call& c) { c.with_sinks(), c.params.sinks->shape[1] = 1; },
     {"sinks: ", "(2, 1, 1, 1)", "dimension 1 must be 4"}},
    {"SinksBatch",
     [](Call& c) { c.with_sinks(), c.params.sinks->shape[0] = 3; },
     {"sinks: ", "(3, 4, 1, 1)", "dimension 0 must be 2 or 1"}},
    {"SinksDtype", [](Call& c) { c.with_sinks(), c.params.sinks->dtype = DType::kBool; }, {"sinks: ", "bool", "f32"}},
    {"SinksNull", [](Call& c) { c.with_sinks(), c.params.sinks->data = nullptr; }, {"sinks: ", "null"}},
    {"SinksOnAnotherDevice",
     [](Call& c) {
       c.with_sinks(), c.params.sinks->device = {DeviceType::kCUDA, 1};
     },
     {"sinks: ", "cuda 1", "device of q", "cpu 0"}},
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
    {"Sinks",
     [](Call& c) { c.pack(), c.with_sinks(), c.params.sinks->shape[0] = 3; },
     {"sinks: ", "dimension 0 must be 2 or 1"}},
};
INSTANTIATE_TEST_SUITE_P(Varlen, BadInputs, testing::ValuesIn(kVarlen),
                         [](const auto& test) { return test.param.name; });

// Calls that only forward refuses, because o and lse are outputs there.
TEST(BadForwardOutputs, AreRefused) {
  const BadInput bad[] = {
      {"OStrideZero", [](Call& c) { c.o.stride[2] = 0; }, {"o: ", "stride 0", "dimension 2", "> 0"}},
      {"LseStrideZero", [](Call& c) { c.lse.stride[0] = 0; }, {"lse: ", "stride 0", "dimension 0", "> 0"}},
      {"OIsV", [](Call& c) { c.o.data = c.v.data; }, {"o: ", "shares memory with v"}},
      {"OIsQ", [](Call& c) { c.o.data = static_cast<float*>(c.q.data) + 3; }, {"o: ", "shares memory with q"}},
      {"LseIsK", [](Call& c) { c.lse.data = c.k.data; }, {"lse: ", "shares memory with k"}},
      {"OIsSinks",
       [](Call& c) { c.with_sinks(), c.params.sinks->data = c.o.data; },
       {"o: ", "shares memory with sinks"}},
      {"LseIsO", [](Call& c) { c.lse.data = c.o.data; }, {"lse: ", "has the address of o"}},
  };
  for (const BadInput& b : bad) {
    SCOPED_TRACE(b.name);
    Call call;
    b.spoil(call);
    expect_refusal(b, call, [&] { call.forward(); });
  }
}

}  // namespace
}  // namespace attend::test
