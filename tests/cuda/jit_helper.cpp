// jit_helper KERNEL_DIR CACHE_DIR VALUE: compiles one variant of the tests' small kernel in a separate process. Prints
// whether the kernel was compiled or read from disk, its digest, and every warning.
#include <fmt/format.h>

#include <cstdlib>
#include <exception>

#include "cuda/jit/hash.hpp"
#include "cuda/jit/jit.hpp"

int main(int argc, char** argv) {
  using namespace attend::cuda;
  if (argc != 4) return 2;
  try {
    Jit jit({.cache_root = argv[2], .kernel_dir = argv[1], .print = [](const std::string& line) {
               fmt::print("warning {}\n", line);
             }});
    const auto kernel =
        jit.compile({.name = "tiny",
                     .source = "tiny.cuh",
                     .function = "tiny",
                     .args = "TinyArgs",
                     .config = {{"kThreads", std::int64_t{32}}, {"kValue", std::int64_t{std::atoi(argv[3])}}},
                     .arch = "sm_90a"});
    Hasher hasher;
    hasher.add(kernel->cubin);
    fmt::print("{} {}\n", kernel->from_disk ? "disk" : "compiled", hex(hasher.digest()));
    return 0;
  } catch (const std::exception& error) {
    fmt::print("error {}\n", error.what());
    return 1;
  }
}
