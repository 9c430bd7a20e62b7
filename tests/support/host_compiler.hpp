// Compiles programs that a test generates, using the C++ compiler of the machine, and loads them.
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

/// Compiles a C++20 program as a shared library, loads the library and returns the handle from dlopen(). The compiler
/// is $CXX, or c++ if $CXX is unset. Each product and each sum is rounded separately, because fused multiply-add is
/// off.
/// @throws std::runtime_error with the compiler's messages if compilation fails.
[[nodiscard]] void* compiled(const TemporaryFolder& folder, const std::string& text,
                             const std::vector<std::filesystem::path>& include_folders);

}  // namespace attend::test
