// Types of nvcuda::wmma for rungs 09 to 11: 16 x 16 x 16 products of 16-bit elements, summed in float32. The layout of
// a fragment is undocumented. But element i of two accumulators belongs to the same row and column.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include "../../common/config_enums.cuh"
#include "../../common/portable.cuh"

namespace attend {

constexpr int kWmmaTile = 16;  // rows, columns and depth of a product

template <ElementType kElement>
struct WmmaElement;
template <>
struct WmmaElement<ElementType::kF16> {
  using Type = __half;
};
template <>
struct WmmaElement<ElementType::kBF16> {
  using Type = __nv_bfloat16;
};

template <class Element>
using FragmentA = nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, Element, nvcuda::wmma::row_major>;
template <class Element>  // operand B of a matrix stored by rows
using FragmentB = nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, Element, nvcuda::wmma::row_major>;
template <class Element>  // operand B of the transpose of a matrix stored by rows
using FragmentBTransposed =
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, Element, nvcuda::wmma::col_major>;
using FragmentC = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float>;

}  // namespace attend
