#include "expr/tokens.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "attend/error.hpp"

namespace attend::expr {
namespace {

// These functions accept only ASCII and do not depend on the locale.
constexpr bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

bool is_name(std::string_view text) {
  return !text.empty() && !is_digit(text[0]) &&
         std::all_of(text.begin(), text.end(), [](char c) { return is_letter(c) || is_digit(c); });
}

void refuse(std::string_view argument, std::size_t column, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument,
              std::string(argument) + ": column " + std::to_string(column) + ": " + message);
}

void Tokens::refuse_next(const std::string& wanted) const {
  const std::string found = next_.kind == Token::Kind::kEnd ? "the end" : printed(next_.text);
  refuse(argument_, next_.column, found + ", expected " + wanted);
}

Token Tokens::take() {
  const Token token = next_;
  advance();
  return token;
}

bool Tokens::take_if(std::string_view text) {
  if (!is(text)) return false;
  advance();
  return true;
}

void Tokens::want(std::string_view text) {
  if (!take_if(text)) refuse_next(printed(text));
}

void Tokens::advance() {
  constexpr std::array<std::string_view, 9> kTwoSigns = {"||", "&&", "==", "!=", "<=", ">=", "<<", ">>", "//"};
  constexpr std::string_view kSigns = "?:|^&<>+-*/%!~()[],;=";
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
    ++at_;
  }
  next_ = {};
  next_.column = at_ + 1;
  if (at_ == text_.size()) return;
  const char first = text_[at_];
  if (is_digit(first) || first == '.') return read_number();
  std::size_t length = 1;
  if (is_letter(first)) {
    next_.kind = Token::Kind::kName;
    while (at_ + length < text_.size() && (is_letter(text_[at_ + length]) || is_digit(text_[at_ + length]))) ++length;
  } else {
    next_.kind = Token::Kind::kSign;
    if (std::find(kTwoSigns.begin(), kTwoSigns.end(), text_.substr(at_, 2)) != kTwoSigns.end()) {
      length = 2;
    } else if (kSigns.find(first) == std::string_view::npos) {
      refuse(argument_, at_ + 1, printed(text_.substr(at_, 1)) + " is not a symbol of the language");
    }
  }
  next_.text = text_.substr(at_, length);
  at_ += length;
}

void Tokens::read_number() {
  const char* const begin = text_.data() + at_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), next_.value);
  if (error == std::errc::invalid_argument)
    refuse(argument_, next_.column, printed(text_.substr(at_, 1)) + " is not a number");
  if (error != std::errc()) refuse(argument_, next_.column, "a number outside the range of float64");
  next_.text = {begin, static_cast<std::size_t>(end - begin)};
  at_ += next_.text.size();
  const bool is_float = next_.text.find_first_of(".eE") != std::string_view::npos;
  next_.kind = is_float ? Token::Kind::kFloat : Token::Kind::kInt;
  if (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]) || text_[at_] == '.')) {
    refuse(argument_, at_ + 1, printed(text_.substr(at_, 1)) + " directly after a number");
  }
  if (!is_float && next_.value > std::numeric_limits<std::int32_t>::max()) {
    refuse(argument_, next_.column, "an integer above 2147483647; write a float, with a point");
  }
}

}  // namespace attend::expr
