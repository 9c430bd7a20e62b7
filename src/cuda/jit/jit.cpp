#include "cuda/jit/jit.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <string_view>

#include "attend/version.hpp"
#include "core/environment.hpp"
#include "cuda/driver/nvrtc.hpp"

namespace attend::cuda {
namespace {

namespace fs = std::filesystem;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Returns the processor time in seconds that this thread has used.
double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::string log_line(const KernelSpec& spec, const CompiledKernel& kernel, double seconds) {
  const Resources& r = kernel.resources;
  return fmt::format("{} {}: {} in {:.4f} s, {} registers, {} + {} bytes spilled, {} bytes stack, {} bytes of code",
                     kernel.key, describe(spec), kernel.from_disk ? "found on disk" : "compiled", seconds, r.registers,
                     r.spill_store_bytes, r.spill_load_bytes, r.stack_bytes, kernel.cubin.size());
}

/// Returns the compiler options, with the include folders of the CUDA toolkit if the program needs them. The cache key
/// does not include these folders, because they differ from machine to machine.
std::vector<std::string> options_of(const Program& program, const Nvrtc& nvrtc) {
  std::vector<std::string> options = program.options;
  if (!program.toolkit_headers) return options;
  for (const std::string& folder : nvrtc.toolkit_include_folders()) options.push_back("--include-path=" + folder);
  return options;
}

}  // namespace

JitOptions jit_options_from_environment() {
  JitOptions options;
  options.cache_root = cache_root_from_environment();
  options.cache_limit = cache_limit_from_environment();
  if (const char* folder = core::environment("ATTEND_KERNEL_DIR")) options.kernel_dir = folder;
  constexpr std::string_view kLogs[] = {"compile"};
  options.log_compiles = !core::environment_list("ATTEND_LOG", kLogs).empty();
  constexpr std::string_view kFlags[] = {"0", "1"};
  options.line_info = core::environment_choice("ATTEND_LINE_INFO", kFlags) == std::size_t{1};
  return options;
}

Jit& Jit::instance() {
  // Never destroyed, because other threads may still launch kernels while the process exits.
  static auto* instance = new Jit(jit_options_from_environment());
  return *instance;
}

Jit::Jit(JitOptions options)
    : options_(std::move(options)),
      disk_(options_.cache_root, ATTEND_VERSION_STRING, options_.cache_limit,
            [this](const std::string& message) { warn(message.substr(0, message.find('(')), message); }) {
  if (!options_.print) {
    options_.print = [](const std::string& line) { std::fputs(("attend: " + line + "\n").c_str(), stderr); };
  }
}

std::shared_ptr<const CompiledKernel> Jit::compile(const KernelSpec& spec) {
  return compiled_.get(identity(spec), [&] { return make(spec); });
}

std::shared_ptr<const Kernel> Jit::load(const KernelSpec& spec, int device) {
  return loaded_.get(fmt::format("{}\n{}", device, identity(spec)), [&] {
    const auto code = compile(spec);
    return std::make_shared<const Kernel>(device, code->cubin, code->entry, describe(spec), spec.dynamic_smem_bytes);
  });
}

std::shared_ptr<const CompiledKernel> Jit::make(const KernelSpec& spec) {
  const auto start = std::chrono::steady_clock::now();
  Program program = make_program(spec, options_.kernel_dir);
  if (options_.line_info) program.options.emplace_back("--generate-line-info");
  const Nvrtc& nvrtc = Nvrtc::instance();
  auto kernel = std::make_shared<CompiledKernel>();
  kernel->key = program_key(program, nvrtc.version_major(), nvrtc.version_minor(), ATTEND_VERSION_STRING);
  kernel->entry = program.entry;
  const std::string file_name = fmt::format("{}-{}-{}.bin", spec.name, spec.arch, kernel->key);
  std::optional<CacheEntry> entry = disk_.load(file_name, kernel->key);
  kernel->from_disk = entry.has_value();
  if (!entry) {
    if (options_.cache_root.empty()) {
      warn("no cache", "no folder for compiled kernels (set HOME or ATTEND_CACHE_DIR): they stay in memory only");
    }
    try {
      const double begun = thread_seconds();
      CompileOutput output = nvrtc.compile(program.name, program.text, program.headers, options_of(program, nvrtc));
      entry = {std::move(output.log), std::move(output.cubin), thread_seconds() - begun};
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", describe(spec), error.what()));
    }
    disk_.store(file_name, kernel->key, *entry);
    if (options_.log_compiles) disk_.leave_text(file_name.substr(0, file_name.rfind('.')) + ".cu", program.text);
  }
  kernel->resources = parse_ptxas_log(entry->log, kernel->entry);
  kernel->log = std::move(entry->log);
  kernel->cubin = std::move(entry->cubin);
  kernel->seconds = entry->seconds;
  kernel->ready_seconds = seconds_since(start);
  if (options_.log_compiles) options_.print(log_line(spec, *kernel, kernel->ready_seconds));
  return kernel;
}

void Jit::warn(const std::string& kind, const std::string& message) {
  const std::lock_guard lock(warned_mutex_);
  if (warned_.insert(kind).second) options_.print(message);
}

}  // namespace attend::cuda
