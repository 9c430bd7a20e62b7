// Captures the message with which the library refuses a call.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "attend/error.hpp"

namespace attend::test {

/// Returns the message of the Error that `call` throws, or "" if it throws none. Expects a one-line message with the
/// code for an invalid argument.
template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  return "";
}

}  // namespace attend::test
