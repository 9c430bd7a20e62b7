// Tensors that a user's score function captures. The code generated from the function (src/expr/print.hpp) reads their
// elements.
//
//   const Captures<Captured<CapturedF32, true, true>, Captured<CapturedBool, true, false>> captures =
//       {args.options.captured};
//   captures.load<0, 5>(i, j);     // element (i, j) of the first tensor, read by the function's load number 5
//   captures.extent<1, 0>();       // extent of dimension 0 of the second tensor
//
// Subscripts must lie within the tensor's extents.
#pragma once

#include "../common/args.cuh"
#include "../common/element.cuh"

namespace attend {

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)

// Storage type of a tensor's elements, and their conversion to numbers.
struct CapturedF32 {
  using Storage = float;
  static __device__ __forceinline__ float number(float x) { return x; }
};
struct CapturedF16 {
  using Storage = Bits16;
  static __device__ __forceinline__ float number(Bits16 x) { return Float16::to_float(x); }
};
struct CapturedBF16 {
  using Storage = Bits16;
  static __device__ __forceinline__ float number(Bits16 x) { return BFloat16::to_float(x); }
};
struct CapturedF64 {
  using Storage = double;
  static __device__ __forceinline__ float number(double x) { return static_cast<float>(x); }
};
struct CapturedI32 {
  using Storage = int;
  static __device__ __forceinline__ int number(int x) { return x; }
};
struct CapturedI64 {  // keeps the lower half, because integers wrap around
  using Storage = int64;
  static __device__ __forceinline__ int number(int64 x) { return static_cast<int>(static_cast<uint32>(x)); }
};
struct CapturedBool {
  using Storage = unsigned char;
  static __device__ __forceinline__ bool number(unsigned char x) { return x != 0; }
};

// kIsNear is set if all elements lie within 2^31 elements of the first. kIsUnit is set if the last dimension is
// contiguous.
template <class Number, bool kNear, bool kUnit>
struct Captured : Number {
  static constexpr bool kIsNear = kNear, kIsUnit = kUnit;
};

template <int kNumber, class First, class... Others>
struct CapturedType {
  using Type = typename CapturedType<kNumber - 1, Others...>::Type;
};
template <class First, class... Others>
struct CapturedType<0, First, Others...> {
  using Type = First;
};

// The captured tensors. Types are their types, in order.
template <class... Types>
struct Captures {
  const CapturedTensor* tensors;

  template <int kNumber, int /*kLoad*/, class... Subscripts>
  [[nodiscard]] __device__ __forceinline__ auto load(Subscripts... subscripts) const {
    using Type = typename CapturedType<kNumber, Types...>::Type;
    const CapturedTensor& tensor = tensors[kNumber];
    const auto* first = static_cast<const typename Type::Storage*>(tensor.data);
    if constexpr (Type::kIsNear) return Type::number(__ldg(first + place<int, Type::kIsUnit>(tensor, subscripts...)));
    return Type::number(__ldg(first + place<int64, Type::kIsUnit>(tensor, subscripts...)));
  }
  template <int kNumber, int kDimension>
  [[nodiscard]] __device__ __forceinline__ int extent() const {
    return tensors[kNumber].extent[kDimension];
  }

 private:
  // Returns the offset of an element from the tensor's first element, in elements.
  template <class Int, bool kIsUnit, class... Subscripts>
  [[nodiscard]] static __device__ __forceinline__ Int place(const CapturedTensor& tensor, Subscripts... subscripts) {
    constexpr int kLast = int{sizeof...(subscripts)} - 1;
    Int sum = 0;
    int dimension = 0;
    const auto add = [&](int subscript) {
      const bool is_unit = kIsUnit && dimension == kLast;
      sum += is_unit ? Int{subscript} : static_cast<Int>(tensor.stride[dimension]) * subscript;
      ++dimension;
    };
    (add(subscripts), ...);
    return sum;
  }
};

#endif

}  // namespace attend
