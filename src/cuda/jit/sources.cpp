#include "cuda/jit/sources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <optional>

#include "attend/error.hpp"
#include "cuda/jit/hash.hpp"

namespace attend::cuda {
namespace {

namespace fs = std::filesystem;

/// Returns the uncompressed text of an embedded source. cmake/embed_kernels.cmake has replaced indentation and frequent
/// words by single bytes.
std::string original(std::string_view text) {
  constexpr char kTwoBlanks = 14, kMostBlanks = 25;
  const std::span<const std::string_view> words = embedded_words();
  std::string out;
  for (const char c : text) {
    if (c >= 1 && c <= static_cast<char>(words.size())) {
      out += words[static_cast<std::size_t>(c - 1)];
    } else if (c >= kTwoBlanks && c <= kMostBlanks) {
      out.append(2 * static_cast<std::size_t>(c - kTwoBlanks + 1), ' ');
    } else {
      out += c;
    }
  }
  return out;
}

std::optional<std::string> read(const std::string& path, const fs::path& kernel_dir) {
  if (!kernel_dir.empty()) {
    std::ifstream file(kernel_dir / path, std::ios::binary);
    if (!file) return std::nullopt;
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  for (const EmbeddedSource& source : embedded_sources()) {
    if (source.path == path) return original(source.text);
  }
  return std::nullopt;
}

/// If `line` is `#include "name"`, returns the name, which points into `line`. Otherwise returns nothing.
std::optional<std::string_view> quoted_include(std::string_view line) {
  const auto skip_blanks = [&line] { line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size())); };
  skip_blanks();
  if (!line.starts_with('#')) return std::nullopt;
  line.remove_prefix(1);
  skip_blanks();
  if (!line.starts_with("include")) return std::nullopt;
  line.remove_prefix(7);
  skip_blanks();
  if (!line.starts_with('"')) return std::nullopt;
  line.remove_prefix(1);
  const std::size_t end = line.find('"');
  if (end == std::string_view::npos) return std::nullopt;
  return line.substr(0, end);
}

/// Moves a string or character literal, including its quotes, from the start of `text` to the end of `out`.
void move_literal(std::string_view& text, std::string& out) {
  std::size_t length = 1;
  while (length < text.size() && text[length] != text.front()) length += text[length] == '\\' ? 2 : 1;
  length = std::min(length + 1, text.size());
  out += text.substr(0, length);
  text.remove_prefix(length);
}

/// Returns whether `code` ends inside a number, where a single quote separates digits.
bool ends_in_number(std::string_view code) {
  const auto belongs_to_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '\'' || c == '.';
  };
  std::size_t begin = code.size();
  while (begin > 0 && belongs_to_word(code[begin - 1])) --begin;
  return begin < code.size() && std::isdigit(static_cast<unsigned char>(code[begin])) != 0;
}

/// Returns `text` without comments. Outside literals each run of white space becomes one character: a line break if the
/// run contains one, because line breaks end preprocessor lines, otherwise a blank. The result has no white space at
/// its ends.
std::string code_of(std::string_view text) {
  std::string out;
  const auto add_blank = [&out](char blank) {
    if (out.empty() || out.back() == '\n') return;
    if (out.back() == ' ') out.pop_back();
    out += blank;
  };
  while (!text.empty()) {
    const char c = text.front();
    if (text.starts_with("//")) {
      text.remove_prefix(std::min(text.find('\n'), text.size()));
    } else if (text.starts_with("/*")) {
      text.remove_prefix(std::min(text.find("*/", 2), text.size() - 2) + 2);
      add_blank(' ');
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      text.remove_prefix(1);
      add_blank(c == '\n' ? '\n' : ' ');
    } else if (c == '"' || (c == '\'' && !ends_in_number(out))) {
      move_literal(text, out);
    } else {
      out += c;
      text.remove_prefix(1);
    }
  }
  while (!out.empty() && (out.back() == ' ' || out.back() == '\n')) out.pop_back();
  return out;
}

class Collector {
 public:
  explicit Collector(const fs::path& kernel_dir) : kernel_dir_(kernel_dir) {}

  /// Adds the file `path` and all files that it includes to `files`, unless they are already there.
  void add(const std::string& path, const std::string& includer) {
    if (std::any_of(files.begin(), files.end(), [&](const NamedSource& file) { return file.name == path; })) return;
    const std::optional<std::string> text = read(path, kernel_dir_);
    if (!text) refuse(path, includer);
    const std::size_t place = files.size();
    files.push_back({path, ""});
    const std::string rewritten = rewrite(*text, path);
    // Set last, because rewrite() may add other files and move the elements of `files`.
    files[place].text = rewritten;
  }

  std::vector<NamedSource> files;

 private:
  std::string rewrite(std::string_view text, const std::string& owner) {
    std::string out;
    while (!text.empty()) {
      const std::size_t length = std::min(text.find('\n'), text.size() - 1) + 1;  // includes the line break
      const std::string_view line = text.substr(0, length);
      text.remove_prefix(length);
      if (const auto name = quoted_include(line)) {
        const std::string target = (fs::path(owner).parent_path() / *name).lexically_normal().generic_string();
        add(target, owner);
        out += line.substr(0, static_cast<std::size_t>(name->data() - line.data()));
        out += target;
        out += line.substr(static_cast<std::size_t>(name->data() + name->size() - line.data()));
      } else {
        out += line;
      }
    }
    return out;
  }

  [[noreturn]] void refuse(const std::string& path, const std::string& includer) const {
    const std::string from = includer.empty() ? "" : fmt::format(", which {} includes", includer);
    if (kernel_dir_.empty()) {
      throw Error(ErrorCode::kInternal, fmt::format("kernel source: no {}{} in the library", path, from));
    }
    throw Error(ErrorCode::kIo, fmt::format("ATTEND_KERNEL_DIR: no {}{} in {}", path, from, kernel_dir_.string()));
  }

  const fs::path& kernel_dir_;
};

}  // namespace

std::string digest_of_code(std::span<const NamedSource> files) {
  Hasher hasher;
  for (const NamedSource& file : files) {
    hasher.add(file.name);
    hasher.add(code_of(file.text));
  }
  return hex(hasher.digest());
}

std::string kernel_digest() {
  std::vector<NamedSource> files;
  for (const EmbeddedSource& source : embedded_sources()) {
    files.push_back({std::string(source.path), original(source.text)});
  }
  return digest_of_code(files);
}

std::vector<NamedSource> collect_sources(const std::string& path, const fs::path& kernel_dir) {
  Collector collector(kernel_dir);
  collector.add(path, "");
  return std::move(collector.files);
}

}  // namespace attend::cuda
