// Programs that a test writes, compiled by the machine's compiler and loaded.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace attend::test {

[[nodiscard]] std::string read_text(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, const std::string& text);

/// Removed with all that is in it, unless ATTEND_TEST_KEEP_COMPILED is set.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] std::filesystem::path path() const { return path_; }

 private:
  std::string path_;
};

/// A C++20 program as a library in this process: what dlopen() gives. The compiler is $CXX, else c++. Products and sums
/// are rounded one by one. @throws std::runtime_error with the compiler's words.
[[nodiscard]] void* compiled(const TemporaryFolder& folder, const std::string& text,
                             const std::vector<std::filesystem::path>& include_folders);

}  // namespace attend::test
