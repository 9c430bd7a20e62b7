#include "cuda/jit/kernel_spec.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attend/error.hpp"
#include "cuda/driver/arch.hpp"
#include "cuda/jit/hash.hpp"
#include "cuda/jit/sources.hpp"

namespace attend::cuda {
namespace {

/// Compiler options of every kernel. With -v, ptxas reports registers and spills.
constexpr const char* kCommonOptions[] = {"--std=c++20", "--ptxas-options=-v", "--extra-device-vectorization"};

bool is_identifier(std::string_view text) {
  const auto is_word = [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  return !text.empty() && (text[0] < '0' || text[0] > '9') && std::all_of(text.begin(), text.end(), is_word);
}

void require_identifier(const char* what, const std::string& text) {
  if (!is_identifier(text)) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: '{}', allowed an identifier", what, text));
  }
}

/// The C++ type and the value of a constant, e.g. "int" and "128".
struct TypedText {
  std::string type, value;
};

TypedText typed_text(const Constant& constant) {
  struct Visitor {
    TypedText operator()(std::int64_t number) const {
      const bool fits = number >= INT32_MIN && number <= INT32_MAX;
      return {fits ? "int" : "long long", fmt::format("{}", number)};
    }
    TypedText operator()(bool flag) const { return {"bool", flag ? "true" : "false"}; }
    TypedText operator()(const EnumConstant& e) const {
      require_identifier("Config: type", e.type);
      require_identifier("Config: value", e.value);
      return {e.type, fmt::format("{}::{}", e.type, e.value)};
    }
  };
  require_identifier("Config: name", constant.name);
  return std::visit(Visitor(), constant.value);
}

/// Adds a kernel header and all headers that it includes to `headers`, unless they are already there.
void add_header(std::vector<NamedSource>& headers, const char* name, const std::filesystem::path& kernel_dir) {
  for (NamedSource& header : collect_sources(name, kernel_dir)) {
    const bool is_there = std::any_of(headers.begin(), headers.end(),
                                      [&](const NamedSource& other) { return other.name == header.name; });
    if (!is_there) headers.push_back(std::move(header));
  }
}

void replace_custom_score(std::vector<NamedSource>& headers, const KernelSpec& spec,
                          const std::filesystem::path& kernel_dir) {
  const auto found = std::find_if(headers.begin(), headers.end(), [](const NamedSource& header) {
    return header.name == "attention/custom_score.cuh";
  });
  if (found == headers.end()) return;  // the kernel does not evaluate a score function
  found->text = spec.custom_score;
  add_header(headers, "attention/score_math.cuh", kernel_dir);  // the replaced text may include this header
}

}  // namespace

std::int64_t threads_of(const KernelSpec& spec) {
  for (const Constant& constant : spec.config) {
    if (constant.name != "kThreads") continue;
    if (const auto* threads = std::get_if<std::int64_t>(&constant.value)) return *threads;
  }
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: no integer kThreads in its Config", spec.name));
}

std::string config_text(const KernelSpec& spec) {
  std::string text;
  for (const Constant& constant : spec.config) {
    const TypedText typed = typed_text(constant);
    text += fmt::format("  static constexpr {} {} = {};\n", typed.type, constant.name, typed.value);
  }
  return text;
}

std::string value_text(const Constant& constant) {
  const std::string value = typed_text(constant).value;
  const std::size_t scope = value.rfind("::");
  return scope == std::string::npos ? value : value.substr(scope + 2);
}

std::string describe(const KernelSpec& spec) {
  std::string constants;
  for (const Constant& constant : spec.config) {
    constants += fmt::format("{}{}={}", constants.empty() ? "" : ", ", constant.name, value_text(constant));
  }
  return fmt::format("{}<{}> {}", spec.name, constants, spec.arch);
}

std::string identity(const KernelSpec& spec) {
  // A newline marks the end of each field, so no field may contain a newline. Each compiler option is a separate field.
  std::string text = fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n", spec.name, spec.source, spec.function, spec.args,
                                 spec.arch, spec.dynamic_smem_bytes, spec.min_blocks);
  text += config_text(spec);
  for (const std::string& option : spec.options) text += option + "\n";
  return text + spec.custom_score;  // must be the last field, because it may contain newlines
}

Program make_program(const KernelSpec& spec, const std::filesystem::path& kernel_dir) {
  const Arch& arch = find_arch(spec.arch);
  require_identifier("kernel name", spec.name);
  require_identifier("kernel function", spec.function);
  require_identifier("kernel args", spec.args);
  (void)threads_of(spec);  // throws early if kThreads is missing
  Program program;
  program.name = spec.name + ".cu";
  program.toolkit_headers = spec.toolkit_headers;
  program.entry = "attend_" + spec.name;
  program.headers = collect_sources(spec.source, kernel_dir);
  if (!spec.custom_score.empty()) replace_custom_score(program.headers, spec, kernel_dir);
  constexpr const char* kEnums = "common/config_enums.cuh";
  add_header(program.headers, kEnums, kernel_dir);
  program.text = fmt::format(
      "#include \"{}\"\n\nnamespace attend {{\nstruct Config {{\n{}}};\n}}  // namespace attend\n\n#include \"{}\"\n\n"
      "extern \"C\" __global__ void __launch_bounds__(attend::Config::kThreads, {})\n"
      "{}(const __grid_constant__ attend::{} args) {{\n  attend::{}<attend::Config>(args);\n}}\n",
      kEnums, config_text(spec), spec.source, spec.min_blocks, program.entry, spec.args, spec.function);
  program.options.emplace_back(fmt::format("--gpu-architecture={}", arch.target));
  program.options.insert(program.options.end(), std::begin(kCommonOptions), std::end(kCommonOptions));
  program.options.insert(program.options.end(), spec.options.begin(), spec.options.end());
  return program;
}

std::string program_key(const Program& program, int nvrtc_major, int nvrtc_minor, const std::string& library_version) {
  Hasher hasher;
  hasher.add(std::string_view(program.name));
  hasher.add(std::string_view(program.text));
  hasher.add(std::uint64_t{program.headers.size()});
  for (const NamedSource& header : program.headers) {
    hasher.add(std::string_view(header.name));
    hasher.add(std::string_view(header.text));
  }
  hasher.add(std::uint64_t{program.options.size()});
  for (const std::string& option : program.options) hasher.add(std::string_view(option));
  hasher.add(static_cast<std::uint64_t>(nvrtc_major));
  hasher.add(static_cast<std::uint64_t>(nvrtc_minor));
  hasher.add(std::string_view(library_version));
  return hex(hasher.digest());
}

}  // namespace attend::cuda
