// The fastest matrix product that this machine has at hand: what kernels are held against.
#pragma once

#include <memory>

#include "attend/tensor.hpp"
#include "cuda/driver/stream.hpp"
#include "workload/timing.hpp"

namespace attend::cli {

/// A square matrix product by cuBLAS on random numbers. Products of f32 are true float32, not TF32.
class MatrixProduct {
 public:
  static constexpr int kSize = 8192;  // rows and columns

  /// A product on GPU 0, whose context is current; null where cuBLAS is not installed.
  /// @param dtype  f32, f16 or bf16
  [[nodiscard]] static std::unique_ptr<MatrixProduct> make(DType dtype);

  ~MatrixProduct();
  MatrixProduct(const MatrixProduct&) = delete;
  MatrixProduct& operator=(const MatrixProduct&) = delete;

  /// Times one product by events.
  [[nodiscard]] Sampler sampler();

  /// 10^12 operations a second for a product of `ms`.
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
