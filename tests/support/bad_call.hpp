// A valid call that a test makes invalid. The library must refuse the invalid call with a one-line message that names
// the argument, and must not write to any output.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "support/attention_case.hpp"

namespace attend::test {

inline constexpr Shape kQ = {2, 4, 3, 8}, kK = {2, 2, 5, 8}, kV = {2, 2, 5, 6}, kO = {2, 4, 3, 6}, kLse = {2, 4, 3, 1};
inline constexpr Shape kScores = {2, 4, 3, 5}, kSinks = {2, 4, 1, 1};
inline constexpr std::int64_t kHuge = std::int64_t{1} << 31;  // one more than the largest size

/// A call that is valid until a test changes it.
struct Call {
  TensorBuffer buffers[9] = {{DType::kF32, kO}, {DType::kF32, kQ}, {DType::kF32, kK},
                             {DType::kF32, kV}, {DType::kF32, kO}, {DType::kF32, kLse},
                             {DType::kF32, kQ}, {DType::kF32, kK}, {DType::kF32, kV}};
  TensorBuffer bias_buffer{DType::kF32, kScores}, dbias_buffer{DType::kF32, kScores};
  TensorBuffer mask_buffer{DType::kBool, kScores}, slopes_buffer{DType::kF32, {2, 4, 1, 1}},
      dlse_buffer{DType::kF32, kLse};
  TensorBuffer sinks_buffer{DType::kF32, kSinks}, dsinks_buffer{DType::kF32, kSinks};
  Tensor dout = buffers[0].view(), q = buffers[1].view(), k = buffers[2].view(), v = buffers[3].view();
  Tensor o = buffers[4].view(), lse = buffers[5].view();
  Tensor dq = buffers[6].view(), dk = buffers[7].view(), dv = buffers[8].view();
  std::vector<std::int32_t> cu_q = {0, 3}, cu_k = {0, 2, 5};
  Params params = {};
  BackwardExtras extras = {};

  /// Packs two sequences with 1 and 2 query rows and with 2 and 3 keys.
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
  void with_sinks() {
    params.sinks = sinks_buffer.view();
    extras.dsinks = dsinks_buffer.view();
  }

  void forward() const { attend::forward(q, k, v, o, &lse, params); }
  void backward() const { attend::backward(dout, q, k, v, o, lse, dq, dk, dv, params, nullptr, extras); }
  void planned_forward() const { plan(forward_call(q, k, v, o, &lse, params)).run(); }
  void planned_backward() const { plan(backward_call(dout, q, k, v, o, lse, dq, dk, dv, params, extras)).run(); }

  [[nodiscard]] std::vector<std::vector<std::byte>> memory() const {
    std::vector<std::vector<std::byte>> all = {bias_buffer.memory(), dbias_buffer.memory(), sinks_buffer.memory(),
                                               dsinks_buffer.memory()};
    for (const TensorBuffer& buffer : buffers) all.push_back(buffer.memory());
    return all;
  }
};

enum Pass : std::uint8_t { kBoth, kForwardOnly, kBackwardOnly };

struct BadInput {
  const char* name;
  std::function<void(Call&)> spoil;
  std::vector<std::string> message;  // substrings that the error message must contain
  Pass pass = kBoth;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

inline void PrintTo(const BadInput& bad, std::ostream* out) {
  *out << bad.name;
}

inline void expect_refusal(const BadInput& bad, const Call& call, const std::function<void()>& run) {
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

}  // namespace attend::test
