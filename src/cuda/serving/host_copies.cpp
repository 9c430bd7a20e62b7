#include "cuda/serving/host_copies.hpp"

#include "cuda/driver/driver.hpp"
#include "cuda/driver/stream.hpp"

namespace attend::cuda {

const void* HostCopies::fetch(const void* device, std::size_t bytes) {
  if (device == nullptr) return nullptr;
  // The buffer has one extra byte, so that the pointer to an empty array is not null.
  std::vector<std::byte>& host = arrays_.emplace_front(bytes + 1);
  if (bytes != 0) {
    check_call(driver().copy_to_host(host.data(), reinterpret_cast<DevicePointer>(device), bytes, stream_),
               "cuMemcpyDtoHAsync", "reading arrays for ATTEND_CHECK=1");
  }
  return host.data();
}

void HostCopies::replace_arrays(core::CacheLayout& layout, std::int64_t num_sequences) {
  CacheIndex& cache = layout.cache;
  cache.seqlens_k = of(cache.seqlens_k, num_sequences);
  cache.cache_batch_idx = of(cache.cache_batch_idx, num_sequences);
  cache.cache_leftpad = of(cache.cache_leftpad, num_sequences);
  if (!cache.page_table) return;
  PageTable& table = *cache.page_table;
  const bool has_entries = table.num_rows > 0 && table.pages_per_row > 0;
  table.pages = of(table.pages, has_entries ? (table.num_rows - 1) * table.row_stride + table.pages_per_row : 0);
}

void HostCopies::wait() const {
  synchronize(stream_);
}

}  // namespace attend::cuda
