// Splits the text of a function into tokens.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/printed.hpp"

namespace attend::expr {

using core::printed;

struct Token {
  enum class Kind { kEnd, kName, kInt, kFloat, kSign };
  Kind kind = Kind::kEnd;
  std::string_view text;   ///< empty at the end of the text
  std::size_t column = 0;  ///< column of its first character, counted from 1
  double value = 0;        ///< value, if the token is a number
};

/// Throws Error (kInvalidArgument) with the text "ARGUMENT: column N: MESSAGE".
[[noreturn]] void refuse(std::string_view argument, std::size_t column, const std::string& message);

/// Returns whether the text consists of ASCII letters, digits and '_', and does not start with a digit.
[[nodiscard]] bool is_name(std::string_view text);

class Tokens {
 public:
  Tokens(std::string_view argument, std::string_view text) : argument_(argument), text_(text) { advance(); }

  [[nodiscard]] const Token& next() const { return next_; }
  [[nodiscard]] bool is(std::string_view text) const { return next_.text == text; }
  Token take();
  /// If the next token is `text`, consumes it and returns true. Otherwise returns false.
  bool take_if(std::string_view text);
  /// Consumes the next token, which must be `text`. Otherwise throws.
  void want(std::string_view text);
  [[noreturn]] void refuse_next(const std::string& wanted) const;

 private:
  void advance();
  void read_number();

  std::string_view argument_;
  std::string_view text_;
  std::size_t at_ = 0;
  Token next_;
};

}  // namespace attend::expr
