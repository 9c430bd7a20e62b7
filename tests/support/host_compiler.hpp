// Compiles programs that a test generates with the machine's compiler, and loads them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace attend::test {

[[nodiscard]] std::string read_text(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, const std::string& text);

/// A folder that the destructor removes with its contents, unless ATTEND_TEST_KEEP_COMPILED is set.
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

/// Compiles a C++20 program as a shared library, loads it and returns dlopen()'s handle. The compiler is $CXX, or c++
/// if unset. Products and sums are rounded separately, without fused multiply-add. @throws std::runtime_error with the
/// compiler's messages.
[[nodiscard]] void* compiled(const TemporaryFolder& folder, const std::string& text,
                             const std::vector<std::filesystem::path>& include_folders);

}  // namespace attend::test
