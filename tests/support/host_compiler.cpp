#include "support/host_compiler.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include <unistd.h>

namespace attend::test {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error(path.string() + ": cannot be read");
  return text.str();
}

void write_text(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TemporaryFolder::TemporaryFolder() : path_((fs::temp_directory_path() / "attend_compiled_XXXXXX").string()) {
  if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error(path_ + ": cannot be created");
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (std::getenv("ATTEND_TEST_KEEP_COMPILED") == nullptr) fs::remove_all(path_, ignored);
}

void* compiled(const TemporaryFolder& folder, const std::string& text, const std::vector<fs::path>& include_folders) {
  const fs::path place = folder.path(), library = place / "program.so", log = place / "log";
  write_text(place / "program.cpp", text);
  std::string includes;
  for (const fs::path& include : include_folders) includes += fmt::format(" -I'{}'", include.string());
  const char* wish = std::getenv("CXX");
  // Fortification (_FORTIFY_SOURCE) is off because it reports longjmp() between fibers as an error. ccache is off
  // because it would store each generated program.
  const std::string command = fmt::format(
      "CCACHE_DISABLE=1 TMPDIR='{0}' {1} -std=c++20 -O1 -ffp-contract=off -w -U_FORTIFY_SOURCE -fvisibility=hidden "
      "-fPIC -shared -I'{0}'{2} '{0}/program.cpp' -o '{3}' > '{4}' 2>&1",
      place.string(), wish != nullptr && *wish != '\0' ? wish : "c++", includes, library.string(), log.string());
  if (std::system(command.c_str()) != 0) throw std::runtime_error(read_text(log).substr(0, 4000));
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  return handle;
}

}  // namespace attend::test
