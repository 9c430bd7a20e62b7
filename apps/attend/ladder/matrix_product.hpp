// A matrix product computed by cuBLAS. `attend ladder` compares the speed of kernels with the speed of this product.
#pragma once

#include <memory>

#include "attend/tensor.hpp"
#include "cuda/driver/stream.hpp"
#include "workload/timing.hpp"

namespace attend::cli {

/// A product of two square matrices of random numbers, computed by cuBLAS. Products of f32 matrices are computed in
/// float32, not in TF32.
class MatrixProduct {
 public:
  static constexpr int kSize = 8192;  // number of rows and of columns

  /// Returns a product on GPU 0, whose context must be current. Returns null if cuBLAS is not installed.
  /// @param dtype  f32, f16 or bf16
  [[nodiscard]] static std::unique_ptr<MatrixProduct> make(DType dtype);

  ~MatrixProduct();
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  /// Returns a sampler that measures the time of one product with CUDA events.
  [[nodiscard]] Sampler sampler();

  /// Returns the rate of a product that takes `ms` milliseconds, in 10^12 operations per second.
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
