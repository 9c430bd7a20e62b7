#include "cuda/jit/sources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

#include "attend/error.hpp"
#include "core/source_digests.hpp"
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

std::string kernel_digest() {
  Hasher hasher;
  for (const core::SourceDigest& source : core::source_digests()) {
    if (!source.part.starts_with("kernels/")) continue;
    hasher.add(source.part);
    hasher.add(source.digest);
  }
  return hex(hasher.digest());
}

std::vector<NamedSource> collect_sources(const std::string& path, const fs::path& kernel_dir) {
  Collector collector(kernel_dir);
  collector.add(path, "");
  return std::move(collector.files);
}

}  // namespace attend::cuda
