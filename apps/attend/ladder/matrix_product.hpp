// The matrix product of cuBLAS, with which the kernels' speed is compared.
#pragma once

#include <memory>

#include "attend/tensor.hpp"
#include "cuda/driver/stream.hpp"
#include "workload/timing.hpp"

namespace attend::cli {

/// A square matrix product by cuBLAS of random numbers. Products of f32 compute in true float32, not TF32.
class MatrixProduct {
 public:
  static constexpr int kSize = 8192;  // rows and columns

  /// Returns a product on GPU 0, whose context must be current, or null if cuBLAS is not installed.
  /// @param dtype  f32, f16 or bf16
  [[nodiscard]] static std::unique_ptr<MatrixProduct> make(DType dtype);

  ~MatrixProduct();
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  /// Returns a sampler that times one product with events.
  [[nodiscard]] Sampler sampler();

  /// Returns the 10^12 operations per second of a product that takes `ms`.
  [[nodiscard]] static double tflops(double ms);

 private:
  struct Blas;
  MatrixProduct(std::unique_ptr<Blas> blas, DType dtype);
  void multiply();

  std::unique_ptr<Blas> blas_;
  DType dtype_;
  cuda::OwnStream stream_;
  cuda::Scratch a_, b_, c_;
};

}  // namespace attend::cli
