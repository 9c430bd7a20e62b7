// What a call is refused with.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "attend/error.hpp"

namespace attend::test {

/// The message of the Error that `call` throws, one line about an argument that is wrong; "" if it
/// throws none.
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
