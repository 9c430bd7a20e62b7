// attend compile: compiles kernels to machine code for given architectures. Needs no GPU.
#include <fmt/format.h>

#include <atomic>
#include <future>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <thread>

#include "commands/commands.hpp"
#include "cuda/driver/nvrtc.hpp"
#include "cuda/examples/examples.hpp"
#include "cuda/jit/jit.hpp"
#include "cuda/launch/family.hpp"
#include "cuda/serving/append.hpp"
#include "cuda/serving/merge.hpp"
#include "io/file.hpp"
#include "process/progress.hpp"
#include "process/system.hpp"
#include "ring/engine/ring_rows.hpp"

namespace attend::cli {
namespace {

using cuda::CompiledKernel;
using cuda::Family;
using cuda::KernelSpec;

/// One line of the table that the command prints.
struct Row {
  const char* compute;  ///< name of the kernel family, or of the component that runs the kernel
  KernelSpec spec;
  std::shared_ptr<const CompiledKernel> code;

  /// Returns true if the kernel has no register spills and no stack frame, and if the compiler does not serialise its
  /// wgmma instructions.
  [[nodiscard]] bool is_clean() const {
    const cuda::Resources& r = code->resources;
    return r.spill_store_bytes == 0 && r.spill_load_bytes == 0 && r.stack_bytes == 0 && r.warnings.empty();
  }
};

std::string config_of(const KernelSpec& spec) {
  const std::string text = cuda::describe(spec);  // for example "NAME<CONFIG> ARCH"
  const std::size_t begin = text.find('<') + 1;
  return text.substr(begin, text.rfind('>') - begin);
}

nlohmann::ordered_json to_json(const Row& row) {
  const cuda::Resources& r = row.code->resources;
  return {{"compute", row.compute},
          {"kernel", row.spec.name},
          {"config", config_of(row.spec)},
          {"arch", row.spec.arch},
          {"registers", r.registers},
          {"spill_store_bytes", r.spill_store_bytes},
          {"spill_load_bytes", r.spill_load_bytes},
          {"stack_bytes", r.stack_bytes},
          {"static_smem_bytes", r.static_smem_bytes},
          {"dynamic_smem_bytes", row.spec.dynamic_smem_bytes},
          {"barriers", r.barriers},
          {"code_bytes", row.code->cubin.size()},
          {"seconds", row.code->seconds},
          {"from_disk", row.code->from_disk},
          {"ready_seconds", row.code->ready_seconds},
          {"key", row.code->key},
          {"warnings", r.warnings},
          {"passed", row.is_clean()}};
}

void print_header() {
  fmt::print("{:<18} {:<28} {:<8} {:>5} {:>6} {:>6} {:>13} {:>8} {:>8}  {}\n", "compute", "kernel", "arch", "regs",
             "spills", "stack", "smem (st+dyn)", "code", "seconds", "config");
}

void print_row(const Row& row) {
  const cuda::Resources& r = row.code->resources;
  fmt::print("{:<18} {:<28} {:<8} {:>5} {:>6} {:>6} {:>13} {:>8} {:>8}  {}{}\n", row.compute, row.spec.name,
             row.spec.arch, r.registers, r.spill_store_bytes + r.spill_load_bytes, r.stack_bytes,
             fmt::format("{}+{}", r.static_smem_bytes, row.spec.dynamic_smem_bytes), row.code->cubin.size(),
             row.code->from_disk ? "cached" : fmt::format("{:.2f}", row.code->seconds), config_of(row.spec),
             row.is_clean() ? "" : "  FAIL");
  for (const std::string& warning : r.warnings) fmt::print("  {}\n", warning);
}

/// Returns the kernels to compile, in the order of the table. Prints a line for each unsupported architecture.
std::vector<Row> rows_for(const CompileOptions& options) {
  std::vector<Row> rows;
  for (const Family* family : cuda::families()) {
    if (options.compute != "all" && options.compute != family->name) continue;
    std::vector<KernelSpec> specs;
    for (const std::string& target : options.archs) {
      const cuda::Arch& arch = cuda::find_arch(target);
      if (!family->supports(arch)) {
        fmt::print("{:<18} not for {}\n", family->name, arch.target);
        continue;
      }
      for (KernelSpec& spec : cuda::example_specs(*family, arch)) specs.push_back(std::move(spec));
    }
    if (options.cover) specs = cuda::covering_specs(std::move(specs));
    for (KernelSpec& spec : specs) rows.push_back({family->name, std::move(spec), nullptr});
  }
  if (options.compute != "all") return rows;
  for (const std::string& target : options.archs) {  // adds kernels that belong to no family
    const auto add = [&](const char* compute, std::vector<KernelSpec> specs) {
      for (KernelSpec& spec : specs) rows.push_back({compute, std::move(spec), nullptr});
    };
    const char* arch = cuda::find_arch(target).target;
    add("ring", cuda::ring_rows_specs(arch));
    add("append", cuda::append_specs(arch));
    add("merge", cuda::merge_specs(arch));
  }
  return rows;
}

/// Starts to compile the kernels of all rows, on all cores. The result of a row is available as soon as its kernel is
/// compiled.
std::vector<std::future<std::shared_ptr<const CompiledKernel>>> start(const std::vector<Row>& rows,
                                                                      std::vector<std::jthread>& workers) {
  using Task = std::packaged_task<std::shared_ptr<const CompiledKernel>()>;
  auto tasks = std::make_shared<std::vector<Task>>();
  std::vector<std::future<std::shared_ptr<const CompiledKernel>>> results;
  for (const Row& row : rows) {
    tasks->emplace_back([&spec = row.spec] { return cuda::Jit::instance().compile(spec); });
    results.push_back(tasks->back().get_future());
  }
  auto next = std::make_shared<std::atomic<std::size_t>>(0);
  for (int i = 0; i < usable_cores(); ++i) {
    workers.emplace_back([tasks, next](const std::stop_token& stop) {
      for (std::size_t at = (*next)++; at < tasks->size() && !stop.stop_requested(); at = (*next)++) (*tasks)[at]();
    });
  }
  return results;
}

}  // namespace

int compile(const CompileOptions& options) {
  (void)cuda::Nvrtc::instance();  // called first because it throws if NVRTC is missing
  io::FileTransaction files;
  std::optional<io::FileTransaction::Handle> json;
  if (!options.json.empty()) json = files.create(options.json);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  bool all_pass = true;
  std::vector<Row> rows = rows_for(options);
  // Declared after the rows, so that the compiling threads end before the rows are destroyed, even if a compilation
  // fails.
  std::vector<std::jthread> workers;
  auto results = start(rows, workers);
  print_header();
  Progress progress("compile", static_cast<std::int64_t>(rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    row.code = results[i].get();
    progress.hide();
    print_row(row);
    progress.advance();
    list.push_back(to_json(row));
    all_pass &= row.is_clean();
  }
  if (json) {
    files.append(*json, list.dump(2) + "\n");
    files.commit();
  }
  return all_pass ? kExitDone : kExitCheckFailed;
}

}  // namespace attend::cli
