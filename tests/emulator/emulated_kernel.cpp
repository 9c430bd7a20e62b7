#include "emulator/emulated_kernel.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include "support/host_compiler.hpp"

namespace attend::test {
namespace {

namespace fs = std::filesystem;

/// An asm statement's parts: its text, then the results and operands, then all behind them.
struct Statement {
  std::string text;
  std::vector<std::string> values;
  std::size_t end = 0;  ///< behind the closing parenthesis
};

/// What is in the parentheses that begin at `at`, which moves behind them.
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
    } else if (source[at] == '#') {  // a line of the preprocessor
      while (source.at(at) != '\n') ++at;
    } else {
      if (source[at] == ':') ++section;
      ++at;
    }
  }
  statement.end = at + 1;
  return statement;
}

/// Of the first instruction that is neither a declaration nor a move, as a name: dots and colons become underscores.
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

void* load(const TemporaryFolder& folder, const std::string& text) {
  return compiled(folder, text, {ATTEND_EMULATOR_DIR});
}

/// Whether there is a compiler, C++20, float16 and fibers.
constexpr const char* kSmallestProgram =
    "#include <bit>\n#include <ucontext.h>\n"
    "void call() {}\n"
    "bool fits(short bits, ucontext_t* context) {\n"
    "  makecontext(context, &call, 0);\n"
    "  return static_cast<float>(std::bit_cast<_Float16>(bits)) > 1;\n}\n";

/// Shared memory by another name than `smem` is `smem`, too.
std::string with_one_shared_memory(std::string text) {
  constexpr std::string_view kBegin = "extern __shared__", kOfBytes = "unsigned char ";
  for (std::size_t at = 0; (at = text.find(kBegin, at)) != std::string::npos; ++at) {
    const std::size_t end = text.find(';', at), name = text.find(kOfBytes, at), bracket = text.find('[', at);
    if (name > end || bracket > end) continue;
    const std::size_t begin = name + kOfBytes.size();
    text.replace(at, end - at,
                 fmt::format("static unsigned char* const {} = reinterpret_cast<unsigned char*>(attend::smem)",
                             text.substr(begin, bracket - begin)));
  }
  return text;
}

/// What runs the blocks of a kernel.
std::string launcher(const cuda::KernelSpec& spec, const std::string& entry) {
  return fmt::format(
      "static const attend::{0}* args_of_launch;\n"
      "static void entry() {{ {1}(*args_of_launch); }}\n"
      "extern \"C\" __attribute__((visibility(\"default\"))) bool emulated_launch(\n"
      "    const void* args, unsigned blocks, unsigned threads, unsigned seed, emulated::LateArrays late) {{\n"
      "  args_of_launch = static_cast<const attend::{0}*>(args);\n"
      "  emulated::grid = {{blocks, 1, 1}};\n"
      "  emulated::late_arrays = late;\n"
      "  for (unsigned b = 0; b < blocks; ++b) {{\n"
      "    std::memset(attend::smem, 0xff, sizeof(attend::smem));\n"
      "    emulated::put_late_arrays(&emulated::LateArray::early);\n"
      "    emulated::Block(static_cast<int>(threads), {{b, 0, 0}}, seed + b).run(entry);\n"
      "    for (std::size_t at = {2}; at < sizeof(attend::smem); ++at) {{\n"
      "      if (attend::smem[at] != '\\xff') return false;\n"
      "    }}\n"
      "  }}\n  return true;\n}}\n",
      spec.args, entry, spec.dynamic_smem_bytes);
}

}  // namespace

const std::string& why_no_emulation() {
  static const std::string why = [] {
    try {
      load(TemporaryFolder(), kSmallestProgram);
      return std::string();
    } catch (const std::exception& error) {
      return std::string("no C++20 compiler with _Float16 and makecontext() ($CXX, else c++): ") + error.what();
    }
  }();
  return why;
}

EmulatedKernel::EmulatedKernel(const cuda::KernelSpec& spec)
    : name_(describe(spec)), threads_(static_cast<unsigned>(threads_of(spec))) {
  const cuda::Program program = make_program(spec, {});
  const std::string known = read_text(fs::path(ATTEND_EMULATOR_DIR) / "ptx.hpp");
  const TemporaryFolder folder;
  for (const cuda::NamedSource& header : program.headers) {
    write_text(folder.path() / header.name, with_one_shared_memory(without_asm(std::string(header.text), known)));
  }
  // Their instructions are made by macros, which are no calls yet
  const std::string wgmma = read_text(fs::path(ATTEND_EMULATOR_DIR) / "wgmma.hpp");
  write_text(folder.path() / "isa/wgmma.cuh", wgmma);
  write_text(folder.path() / "isa/wgmma_widths.cuh", "#pragma once\n#include \"wgmma.cuh\"\n");
  const std::string text = "#include \"ptx.hpp\"\n" + std::string(program.text) + launcher(spec, program.entry);
  launch_ = reinterpret_cast<Launch>(dlsym(load(folder, text), "emulated_launch"));
}

void EmulatedKernel::launch(const void* args, unsigned blocks, unsigned seed,
                            const std::vector<emulated::LateArray>& late) const {
  if (!launch_(args, blocks, threads_, seed, {late.data(), late.size()})) {
    throw std::runtime_error(name_ + ": writes behind the shared memory that it asked for");
  }
}

}  // namespace attend::test
