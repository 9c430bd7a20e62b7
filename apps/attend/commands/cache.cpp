// attend cache: shows the folder of compiled kernels, clears it, or limits its size.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "commands/commands.hpp"
#include "core/environment.hpp"
#include "cuda/jit/cache_folder.hpp"

namespace attend::cli {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const cuda::CacheInfo& info) {
  Json object = {{"folder", info.root.empty() ? Json() : Json(info.root.string())},
                 {"limit_bytes", info.limit == core::kUnlimitedBytes ? Json() : Json(info.limit)},
                 {"files", info.totals.files},
                 {"bytes", info.totals.bytes},
                 {"kernels", Json::array()}};
  for (const cuda::CachedKernel& kernel : info.kernels) {
    object["kernels"].push_back({{"name", kernel.name},
                                 {"arch", kernel.arch},
                                 {"files", kernel.totals.files},
                                 {"bytes", kernel.totals.bytes},
                                 {"last_used", std::chrono::duration<double>(kernel.last_used).count()}});
  }
  return object;
}

}  // namespace

int cache(const CacheOptions& options) {
  const cuda::CacheInfo info = cuda::cache_info();
  if (options.action == CacheOptions::Action::kClear) {
    if (info.root.empty()) throw Error(ErrorCode::kIo, "cache: no folder, set HOME or ATTEND_CACHE_DIR");
    const auto [removed, left] = cuda::clear_cache(info.root);
    fmt::print("removed {} in {} file{} from {}\n", core::bytes_text(removed.bytes), removed.files,
               removed.files == 1 ? "" : "s", info.root.string());
    if (left.files == 0) return kExitDone;
    throw Error(ErrorCode::kIo, fmt::format("{}: {} files cannot be removed", info.root.string(), left.files));
  }
  if (options.json) {
    fmt::print("{}\n", to_json(info).dump(2));
  } else if (options.action == CacheOptions::Action::kLimit) {
    fmt::print("{}", cuda::describe_limit(info));
  } else {
    fmt::print("{}", cuda::describe(info));
  }
  return kExitDone;
}

}  // namespace attend::cli
