// Tests calls that are well defined but unsupported. The library must refuse such a call with a clear message and a
// separate error code, and must not write anything.
#include <gtest/gtest.h>

#include "support/bad_call.hpp"

namespace attend::test {
namespace {

TEST(BadDevice, IsMissingHardware) {
  const BadInput bad = {"Cuda", {}, {"q: ", "CUDA"}, kBoth, ErrorCode::kMissingHardware};
  Call call;
  for (Tensor* t : {&call.dout, &call.q, &call.k, &call.v, &call.o, &call.lse, &call.dq, &call.dk, &call.dv}) {
    t->device = {DeviceType::kCUDA, 0};
  }
  expect_refusal(bad, call, [&] { call.forward(); });
  expect_refusal(bad, call, [&] { call.backward(); });
}

// These calls are well defined, but the named backend does not support them. The message has the usual form, but the
// error code is not that of an invalid argument.
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
      {"cpu",
       [](Call& c) { c.with_sinks(), c.params.sinks->dtype = DType::kF64; },
       {"sinks: ", "f64", "f32, f16, bf16"}},
      {"cpu_naive", [](Call& c) { c.with_sinks(); }, {"sinks: ", "given", "none"}},
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
