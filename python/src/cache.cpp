#include "cache.hpp"

#include <nanobind/stl/string.h>

#include <string>

#include "attend/error.hpp"
#include "core/environment.hpp"
#include "cuda/jit/cache_folder.hpp"

namespace attend::python {
namespace {

void add_totals(nb::dict& entry, const cuda::CacheTotals& totals) {
  entry["files"] = totals.files;
  entry["bytes"] = totals.bytes;
}

nb::dict cache_info() {
  const cuda::CacheInfo info = cuda::cache_info();
  nb::dict result;
  result["folder"] = info.root.empty() ? nb::none() : nb::cast(info.root.string());
  result["limit_bytes"] = info.limit == core::kUnlimitedBytes ? nb::none() : nb::cast(info.limit);
  add_totals(result, info.totals);
  nb::list kernels;
  for (const cuda::CachedKernel& kernel : info.kernels) {
    nb::dict entry;
    entry["name"] = kernel.name;
    entry["arch"] = kernel.arch;
    add_totals(entry, kernel.totals);
    entry["last_used"] = std::chrono::duration<double>(kernel.last_used).count();
    kernels.append(entry);
  }
  result["kernels"] = kernels;
  return result;
}

nb::dict cache_clear() {
  const auto root = cuda::cache_root_from_environment();
  const auto [removed, left] = cuda::clear_cache(root);
  if (left.files > 0) {
    throw Error(ErrorCode::kIo, root.string() + ": " + std::to_string(left.files) + " files cannot be removed");
  }
  nb::dict result;
  add_totals(result, removed);
  return result;
}

std::string cache_text(bool limit_alone) {
  return limit_alone ? cuda::describe_limit(cuda::cache_info()) : cuda::describe(cuda::cache_info());
}

}  // namespace

void add_cache(nb::module_& m) {
  using namespace nb::literals;
  m.def("cache_info", &cache_info);
  m.def("cache_clear", &cache_clear);
  m.def("cache_text", &cache_text, "limit_alone"_a);
}

}  // namespace attend::python
