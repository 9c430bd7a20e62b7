// Types of nvcuda::wmma for rungs 09 to 11, which compute 16 x 16 x 16 products of 16-bit elements and sum them in
// float32. The layout of a fragment is undocumented. But the elements with number i of two accumulators belong to the
// same row and column.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include "../../common/config_enums.cuh"
#include "../../common/portable.cuh"

namespace attend {

constexpr int kWmmaTile = 16;  // number of rows, columns and depth steps of a product

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
template <class Element>  // operand B for a matrix that is stored by rows
using FragmentB = nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, Element, nvcuda::wmma::row_major>;
template <class Element>  // operand B for the transpose of a matrix that is stored by rows
using FragmentBTransposed =
    nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, Element, nvcuda::wmma::col_major>;
using FragmentC = nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float>;

}  // namespace attend
