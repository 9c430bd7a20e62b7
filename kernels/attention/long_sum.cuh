// Sums over very many keys. The tensor cores cut what does not fit into 24 bits of a sum where an addition would round
// it: each product of depth 16 loses some 2^-24 of o, always towards zero, which after 10^5 keys is more than the
// rounding of float16. So kernels put o aside every kKeysOfSum keys, and add the pieces in float32.
#pragma once

#include "../common/element_info.cuh"
#include "../common/portable.cuh"

namespace attend {

constexpr int kKeysOfSum = 8192;

// Config::kPutsAside: sums over more keys lose more in the tensor cores than rounding does.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr bool puts_sums_aside(ElementType element, int64 seqlen_k) {
  return seqlen_k > element_info(element).most_keys_of_sum;
}

}  // namespace attend
