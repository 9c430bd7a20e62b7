#include "emulator/program_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <vector>

namespace attend::test {
namespace {

namespace fs = std::filesystem;

/// An asm statement: its text, the expressions of its results and operands, and the position of its end.
struct Statement {
  std::string text;
  std::vector<std::string> values;
  std::size_t end = 0;  ///< position after the closing parenthesis
};

/// Returns the text inside the parentheses that begin at `at`, and moves `at` past the closing one.
std::string in_parentheses(const std::string& source, std::size_t& at) {
  const std::size_t begin = ++at;
  for (int depth = 1; depth > 0; ++at) {
    if (source.at(at) == '(') ++depth;
    if (source.at(at) == ')') --depth;
  }
  return source.substr(begin, at - 1 - begin);
}

std::string in_quotes(const std::string& source, std::size_t& at) {
  std::string text;
  for (++at; source.at(at) != '"'; ++at) {
    if (source[at] == '\\' && source.at(at + 1) == 'n') {
      text += '\n';
      ++at;
    } else {
      text += source[at];
    }
  }
  ++at;
  return text;
}

Statement parse(const std::string& source, std::size_t at) {
  Statement statement;
  int section = 0;
  for (++at; source.at(at) != ')';) {
    if (source[at] == '"') {
      const std::string quoted = in_quotes(source, at);
      if (section == 0) statement.text += quoted;
    } else if (source[at] == '(') {
      const std::string value = in_parentheses(source, at);
      if (section == 1 || section == 2) statement.values.push_back(value);
    } else if (source[at] == '#') {  // skips preprocessor lines
      while (source.at(at) != '\n') ++at;
    } else {
      if (source[at] == ':') ++section;
      ++at;
    }
  }
  statement.end = at + 1;
  return statement;
}

/// Returns the function name for an asm statement. The name is made from the first instruction that is neither a
/// declaration nor a move. Dots and colons become underscores.
std::string function_of(const std::string& text) {
  std::string first;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line, ';');) {
    const std::size_t begin = line.find_first_not_of(" \n\t{}");
    if (begin == std::string::npos || line[begin] == '.') continue;
    std::string word = line.substr(begin, line.find_first_of(" \n", begin) - begin);
    if (first.empty()) first = word;
    if (word.rfind("mov.", 0) == 0) continue;
    first = word;
    break;
  }
  for (char& c : first) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return "ptx_" + first;
}

}  // namespace

std::string without_asm(const std::string& text, const std::string& known) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t at = text.find("asm"); at != std::string::npos; at = text.find("asm", at + 1)) {
    std::size_t open = at + 3;
    if (text.compare(open, 9, " volatile") == 0) open += 9;
    const bool is_word = at > 0 && std::isspace(static_cast<unsigned char>(text[at - 1])) != 0;
    if (!is_word || open >= text.size() || text[open] != '(') continue;
    const Statement statement = parse(text, open);
    const std::string function = function_of(statement.text);
    result += text.substr(done, at - done);
    if (known.find(" " + function + "(") == std::string::npos) {
      result += fmt::format("::emulated::unsupported(\"{}\")", function);
    } else {
      result += fmt::format("{}({})", function, fmt::join(statement.values, ", "));
    }
    done = at = statement.end;
  }
  return result + text.substr(done);
}

namespace {

/// Replaces declarations of shared memory. Dynamic shared memory of any name becomes an alias of `smem`. A static
/// shared variable becomes one variable for all threads.
std::string with_shared_memory(std::string text) {
  constexpr std::string_view kWord = "__shared__", kExtern = "extern ", kOfBytes = "unsigned char ";
  for (std::size_t at = 0; (at = text.find(kWord, at)) != std::string::npos; ++at) {
    if (at < kExtern.size() || text.compare(at - kExtern.size(), kExtern.size(), kExtern) != 0) {
      text.replace(at, kWord.size(), "static");
      continue;
    }
    const std::size_t end = text.find(';', at), name = text.find(kOfBytes, at), bracket = text.find('[', at);
    if (name > end || bracket > end) continue;
    const std::size_t begin = name + kOfBytes.size(), from = at - kExtern.size();
    text.replace(from, end - from,
                 fmt::format("static unsigned char* const {} = reinterpret_cast<unsigned char*>(attend::smem)",
                             text.substr(begin, bracket - begin)));
  }
  return text;
}

}  // namespace

void write_headers(const TemporaryFolder& folder, const std::vector<std::pair<std::string, std::string>>& headers) {
  const fs::path emulator = ATTEND_EMULATOR_DIR;
  const std::string known = read_text(emulator / "ptx.hpp");
  for (const auto& [name, text] : headers) {
    write_text(folder.path() / name, with_shared_memory(without_asm(text, known)));
  }
  // The original headers generate instructions in macros, where the rewriter cannot find them. Replacement headers are
  // written instead.
  write_text(folder.path() / "isa/wgmma.cuh", read_text(emulator / "wgmma.hpp"));
  write_text(folder.path() / "isa/wgmma_widths.cuh", "#pragma once\n#include \"wgmma.cuh\"\n");
  write_text(folder.path() / "isa/wgmma_e4m3.cuh", read_text(emulator / "wgmma_e4m3.hpp"));
  write_text(folder.path() / "isa/wgmma_fresh.cuh", read_text(emulator / "wgmma_fresh.hpp"));
  write_text(folder.path() / "isa/wgmma_transposed.cuh", read_text(emulator / "wgmma_transposed.hpp"));
}

}  // namespace attend::test
