// Sums over very many keys. The tensor cores truncate additions to 24 bits instead of rounding. Each product of depth
// 16 loses about 2^-24 of o, always towards zero. After 10^5 keys the loss exceeds the rounding of float16. So kernels
// save o every kKeysOfSum keys, and add the partial sums in float32.
#pragma once

#include "../common/element_info.cuh"
#include "../common/portable.cuh"

namespace attend {

constexpr int kKeysOfSum = 8192;

// Returns the value of Config::kPutsAside: whether sums over this many keys lose more in the tensor cores than by
// rounding.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool puts_sums_aside(ElementType element, int64 seqlen_k) {
  return seqlen_k > element_info(element).most_keys_of_sum;
}

}  // namespace attend
