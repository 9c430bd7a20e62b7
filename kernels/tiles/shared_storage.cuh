// The dynamic shared memory of a block as a struct.
#pragma once

namespace attend {

// Returns the storage. The host allocates Config::kSmemBytes bytes, which must equal the size of Storage.
template <class Storage, class Config>
[[nodiscard]] __device__ __forceinline__ Storage& shared_storage() {
  static_assert(sizeof(Storage) == Config::kSmemBytes, "the table of steps and the kernel disagree");
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  return *reinterpret_cast<Storage*>(shared_bytes);
}

}  // namespace attend
