// Formats values as JSON. Supports only the types that explanations contain.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <concepts>
#include <string>
#include <string_view>
#include <vector>

namespace attend::c {

/// Returns a string in quotes. Characters other than ASCII remain UTF-8.
[[nodiscard]] inline std::string json(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

[[nodiscard]] inline std::string json(const std::string& text) {
  return json(std::string_view(text));
}
[[nodiscard]] inline std::string json(const char* text) {
  return json(std::string_view(text));
}

/// Returns a number, or `true` or `false`.
[[nodiscard]] inline std::string json(std::integral auto value) {
  return fmt::format("{}", value);
}

/// Returns a number, or `null` for infinity and NaN, which JSON does not have.
[[nodiscard]] inline std::string json(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

template <class T>
[[nodiscard]] std::string json(const std::vector<T>& list) {
  std::string text = "[";
  for (const T& entry : list) text += (text.size() == 1 ? "" : ", ") + json(entry);
  return text + "]";
}

/// A JSON object to which the caller adds one field after another.
class JsonObject {
 public:
  template <class T>
  JsonObject& add(const char* name, const T& value) {
    text_ += (text_.empty() ? "" : ", ") + json(name) + ": " + json(value);
    return *this;
  }
  [[nodiscard]] std::string text() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

[[nodiscard]] inline std::string json(const JsonObject& object) {
  return object.text();
}

}  // namespace attend::c
