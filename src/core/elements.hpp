// Loads and stores of single elements of any dtype. They are simple, but slow.
#pragma once

#include <cstdint>

#include "core/eight_bits.hpp"
#include "core/half.hpp"
#include "core/problem.hpp"

namespace attend::core {

[[nodiscard]] inline double load(const void* data, DType dtype, std::int64_t at) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[at];
    case DType::kF16:
      return to_float(static_cast<const Half*>(data)[at]);
    case DType::kBF16:
      return to_float(static_cast<const BFloat16*>(data)[at]);
    case DType::kF64:
      return static_cast<const double*>(data)[at];
    case DType::kBool:
      return static_cast<const std::uint8_t*>(data)[at] != 0;
    case DType::kF8E4M3:
    case DType::kI8:
      return load_eight_bits(data, dtype, at);
    case DType::kI32:
      return static_cast<const std::int32_t*>(data)[at];
    case DType::kI64:
      return static_cast<double>(static_cast<const std::int64_t*>(data)[at]);
  }
  return 0;
}

inline void store(void* data, DType dtype, std::int64_t at, double value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[at] = static_cast<float>(value);
      break;
    case DType::kF16:
      static_cast<Half*>(data)[at] = to_half(static_cast<float>(value));
      break;
    case DType::kBF16:
      static_cast<BFloat16*>(data)[at] = to_bfloat16(static_cast<float>(value));
      break;
    case DType::kF64:
      static_cast<double*>(data)[at] = value;
      break;
    case DType::kBool:
      static_cast<std::uint8_t*>(data)[at] = value != 0;
      break;
    case DType::kF8E4M3:
    case DType::kI8:
      store_eight_bits(data, dtype, at, static_cast<float>(value));
      break;
    case DType::kI32:
      static_cast<std::int32_t*>(data)[at] = static_cast<std::int32_t>(value);
      break;
    case DType::kI64:
      static_cast<std::int64_t*>(data)[at] = static_cast<std::int64_t>(value);
      break;
  }
}

/// Returns x rounded to the dtype if that has 16 or 8 bits. Otherwise returns x unchanged.
[[nodiscard]] inline float round_to(DType dtype, float x) {
  switch (dtype) {
    case DType::kF16:
      return to_float(to_half(x));
    case DType::kBF16:
      return to_float(to_bfloat16(x));
    case DType::kF8E4M3:
      return to_float(to_e4m3(x));
    case DType::kI8:
      return to_int8(x);
    case DType::kF32:
    case DType::kF64:
    case DType::kBool:
    case DType::kI32:
    case DType::kI64:
      return x;
  }
  return x;
}

[[nodiscard]] inline double load(const Matrix& m, std::int64_t row, std::int64_t col) {
  return load(m.data, m.dtype, row * m.row_stride + col);
}

inline void store(const Matrix& m, std::int64_t row, std::int64_t col, double value) {
  store(m.data, m.dtype, row * m.row_stride + col, value);
}

/// Returns element (batch, head, row, col) of a tensor.
[[nodiscard]] inline double load(const Tensor& t, std::int64_t batch, std::int64_t head, std::int64_t row,
                                 std::int64_t col) {
  return load(element(t, batch, head, row), t.dtype, col);
}

inline void store(const Tensor& t, std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t col,
                  double value) {
  store(element(t, batch, head, row), t.dtype, col, value);
}

}  // namespace attend::core
