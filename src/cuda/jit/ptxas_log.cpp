#include "cuda/jit/ptxas_log.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

namespace attend::cuda {
namespace {

/// Returns the integer directly before `unit` in `line`. For "Used 40 registers" and " registers", the integer is 40.
std::optional<int> number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return std::nullopt;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int number = 0;
  const auto [stop, error] = std::from_chars(line.data() + begin, line.data() + end, number);
  if (error != std::errc() || stop != line.data() + end) return std::nullopt;
  return number;
}

void take(std::string_view line, std::string_view unit, int& target) {
  if (const auto number = number_before(line, unit)) target = *number;
}

bool is_warning(std::string_view line) {
  if (line.find("deprecated and may be removed") != std::string_view::npos)
    // This warning is about old GPUs, not about the kernel.
    return false;
  return line.find("warning") != std::string_view::npos || line.find("(C75") != std::string_view::npos;
}

}  // namespace

Resources parse_ptxas_log(std::string_view log, std::string_view entry) {
  Resources resources;
  // For each function, ptxas writes the line "Function properties for NAME" before the stack frame and the spills.
  // Device functions that were not inlined have such a line too, so their values must be skipped.
  bool ours = false;
  while (!log.empty()) {
    const std::size_t length = std::min(log.find('\n'), log.size());
    const std::string_view line = log.substr(0, length);
    log.remove_prefix(std::min(length + 1, log.size()));
    if (is_warning(line)) resources.warnings.emplace_back(line);
    constexpr std::string_view kProperties = "Function properties for ";
    if (const std::size_t at = line.find(kProperties); at != std::string_view::npos) {
      ours = line.substr(at + kProperties.size()).starts_with(entry);
    }
    if (ours) {
      take(line, " bytes stack frame", resources.stack_bytes);
      take(line, " bytes spill stores", resources.spill_store_bytes);
      take(line, " bytes spill loads", resources.spill_load_bytes);
      take(line, " registers", resources.registers);
      take(line, " barriers", resources.barriers);
      take(line, " bytes smem", resources.static_smem_bytes);
    }
  }
  return resources;
}

}  // namespace attend::cuda
