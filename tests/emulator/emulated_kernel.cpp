#include "emulator/emulated_kernel.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <stdexcept>
#include <utility>
#include <vector>

#include "emulator/program_text.hpp"

namespace attend::test {
namespace {

void* load(const TemporaryFolder& folder, const std::string& text) {
  return compiled(folder, text, {ATTEND_EMULATOR_DIR});
}

/// Program that checks whether the compiler supports C++20, float16 and fibers.
constexpr const char* kSmallestProgram =
    "#include <bit>\n#include <ucontext.h>\n"
    "void call() {}\n"
    "bool fits(short bits, ucontext_t* context) {\n"
    "  makecontext(context, &call, 0);\n"
    "  return static_cast<float>(std::bit_cast<_Float16>(bits)) > 1;\n}\n";

/// Returns C++ code that runs the blocks of a kernel.
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
  const TemporaryFolder folder;
  std::vector<std::pair<std::string, std::string>> headers;
  for (const cuda::NamedSource& header : program.headers) headers.emplace_back(header.name, header.text);
  write_headers(folder, headers);
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
