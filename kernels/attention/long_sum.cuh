// Sums over very many keys. Tensor cores truncate sums to 24 bits instead of rounding them. Each product of depth 16
// loses about 2^-24 of o, always towards zero. After 10^5 keys, the loss exceeds the rounding error of float16. So
// kernels save o after every kKeysOfSum keys, and add the partial sums in float32.
#pragma once

#include "../common/element_info.cuh"
#include "../common/portable.cuh"

namespace attend {

constexpr int kKeysOfSum = 8192;

// Returns the value of Config::kPutsAside, which states whether kernels must save partial sums. This is so if
// truncation over seqlen_k keys loses more than the rounding of the element type.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool puts_sums_aside(ElementType element, int64 seqlen_k) {
  return seqlen_k > element_info(element).most_keys_of_sum;
}

}  // namespace attend
