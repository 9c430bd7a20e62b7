// Tests that the program accepts the commands that the README and the pages in docs/ show.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "io/attend_program.hpp"
#include "io/temp_folder.hpp"
#include "parser/footers.hpp"
#include "parser/parse.hpp"

namespace attend::test {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = ATTEND_SOURCE_DIR;

/// Returns the arguments after the program's name in a shell line, or nothing if the line does not call the program.
/// Ignores the words before the name (mpirun, variables), comments, and everything after a pipe. Words in single quotes
/// form one argument.
std::optional<std::vector<std::string>> call_in(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  bool is_call = false;
  for (std::string word; stream >> std::quoted(word, '\'') && !word.starts_with('#') && word != "|" && word != "&&";) {
    if (is_call) words.push_back(word);
    if (word == "attend" || word.ends_with("/attend")) is_call = true;
    const bool may_precede = word == "mpirun" || word.find('=') != std::string::npos || word.starts_with('-') ||
                             word.find_first_not_of("0123456789") == std::string::npos;
    if (!is_call && !may_precede) return std::nullopt;
  }
  return is_call ? std::optional(words) : std::nullopt;
}

/// Returns the lines that call the program. In Markdown only code blocks are searched.
std::vector<std::string> calls(const std::string& text, bool is_markdown) {
  std::vector<std::string> found;
  bool in_code = !is_markdown;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (is_markdown && line.starts_with("```")) in_code = line.starts_with("```sh");
    const bool is_indented = line.starts_with("    ");
    if ((in_code || is_indented) && call_in(line)) found.push_back(line);
  }
  return found;
}

void expect_understood(const std::string& line, const std::string& where) {
  std::vector<std::string> words = call_in(line).value();
  std::replace(words.begin(), words.end(), std::string("COMMAND"), std::string("run"));
  try {
    (void)cli::parse(words);
  } catch (const Error& error) {
    ADD_FAILURE() << where << ": " << line << "\n  " << error.what();
  }
}

TEST(Readme, EveryLineThatCallsTheProgramIsUnderstood) {
  std::vector<fs::path> pages = {kRoot / "README.md"};
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "docs")) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  }
  std::size_t in_readme = 0;
  for (const fs::path& page : pages) {
    const std::vector<std::string> lines = calls(read_file(page), true);
    if (page == kRoot / "README.md") in_readme = lines.size();
    for (const std::string& line : lines) expect_understood(line, page.string());
  }
  EXPECT_GE(in_readme, 7U) << "the lines were not found";
}

TEST(Readme, EveryExampleOfTheHelpIsUnderstood) {
  for (const char* footer :
       {cli::kMainFooter, cli::kGenerateFooter, cli::kRunFooter, cli::kBenchFooter, cli::kCompileFooter,
        cli::kLadderFooter, cli::kSweepFooter, cli::kRingFooter, cli::kCacheFooter, cli::kInfoFooter}) {
    const std::string text = footer;
    const std::vector<std::string> lines = calls(text.substr(text.find("Examples:")), false);
    EXPECT_GE(lines.size(), 2U) << text;
    for (const std::string& line : lines) expect_understood(line, "--help");
  }
}

// The output must match the page word for word, except for the program's path. The output must be the same on any
// machine, for any user and any number of cores.
TEST(Readme, ItsRingRunsAsShown) {
  const TempFolder folder;
  std::size_t ran = 0;
  for (const std::string& line : calls(read_file(kRoot / "README.md"), true)) {
    const std::vector<std::string> words = call_in(line).value();
    if (words.front() != "generate" && line.find("--ring") == std::string::npos) continue;
    const ProgramResult result = run_attend(words, [&folder] {
      if (::chdir(folder.path().c_str()) != 0) ::_exit(127);
    });
    EXPECT_EQ(result.status, 0) << line << "\n" << result.out << result.err;
    EXPECT_TRUE(line.starts_with("attend ")) << "it has to run as it stands: " << line;
    ++ran;
  }
  EXPECT_GE(ran, 2U) << "generate, run --ring";
}

}  // namespace
}  // namespace attend::test
