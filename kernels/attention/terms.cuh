// The terms are the bias: numbers that are read from memory for each row and key, and added to scores. dterms is the
// gradient of the terms.
#pragma once

#include "../common/args.cuh"
#include "../common/element.cuh"

namespace attend {

template <class Config>
constexpr ElementType kTermsElement = Config::kBiasElement;

template <class Config>
using TermsElementOf = typename ElementTraits<kTermsElement<Config>>::Type;

template <class Config>
using DtermsElementOf = typename ElementTraits<Config::kDbiasElement>::Type;

// Returns the strides of the terms, in elements. They are 0 in dimensions along which the terms are broadcast.
[[nodiscard]] ATTEND_HOST_DEVICE constexpr const TensorStrides& terms_stride(const OptionArgs& options) {
  return options.bias_stride;
}

}  // namespace attend
