#include "ladder/matrix_product.hpp"

#include <fmt/format.h>
#include <cstring>
#include <string>
#include <vector>

#include "attend/error.hpp"
#include "cuda/driver/shared_library.hpp"
#include "io/host_tensor.hpp"
#include "io/random_normal.hpp"

namespace attend::cli {
namespace {

// Constants of the binary interface of cuBLAS that are used here, from cublas_api.h and library_types.h of CUDA 12 and
// 13.
constexpr int kOpN = 0;
constexpr int kCompute32F = 68;
constexpr int kDefaultAlgorithm = -1;

int data_type(DType dtype) {
  constexpr int kReal32F = 0;
  constexpr int kReal16F = 2;
  constexpr int kReal16BF = 14;
  switch (dtype) {
    case DType::kF32:
      return kReal32F;
    case DType::kF16:
      return kReal16F;
    case DType::kBF16:
      return kReal16BF;
    case DType::kF64:
    case DType::kBool:
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kI32:
    case DType::kI64:
      break;
  }
  throw Error(ErrorCode::kInternal, fmt::format("matrix product: dtype {}, allowed f32, f16, bf16", dtype_name(dtype)));
}

std::size_t matrix_bytes(DType dtype) {
  return std::size_t{MatrixProduct::kSize} * MatrixProduct::kSize * static_cast<std::size_t>(dtype_bytes(dtype));
}

void fill(cuda::Scratch& matrix, DType dtype, io::NormalStream stream, cuda::StreamHandle on) {
  constexpr std::size_t kFresh = std::size_t{1} << 20;
  io::HostTensor values(DType::kF32, {1, 1, 1, kFresh});
  io::fill_normal({static_cast<float*>(values.view().data), kFresh}, 42, stream, 0);
  if (dtype != DType::kF32) values = values.converted(dtype);
  std::vector<std::byte> all(matrix.bytes());
  const auto fresh = values.bytes();
  for (std::size_t at = 0; at < all.size(); at += fresh.size())
    std::memcpy(all.data() + at, fresh.data(), fresh.size());
  matrix.copy_from_host(all.data(), all.size());
  cuda::synchronize(on);
}

}  // namespace

struct MatrixProduct::Blas {
  explicit Blas(const cuda::SharedLibrary& library) {
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.require(name));
    };
    load(create, "cublasCreate_v2");
    load(destroy, "cublasDestroy_v2");
    load(set_stream, "cublasSetStream_v2");
    load(gemm, "cublasGemmEx");
    check(create(&handle), "cublasCreate");
  }
  ~Blas() { destroy(handle); }
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  static void check(int status, const char* call) {
    if (status != 0) throw Error(ErrorCode::kInternal, std::string(call) + ": status " + std::to_string(status));
  }

  int (*create)(void**);
  int (*destroy)(void*);
  int (*set_stream)(void*, cuda::StreamHandle);
  int (*gemm)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*,
              void*, int, int, int, int);
  void* handle = nullptr;
};

std::unique_ptr<MatrixProduct> MatrixProduct::make(DType dtype) {
  try {
    const cuda::SharedLibrary library("cuBLAS",
                                      {"libcublas.so.13", "libcublas.so.12", "/usr/local/cuda/lib64/libcublas.so"}, "");
    return std::unique_ptr<MatrixProduct>(new MatrixProduct(std::make_unique<Blas>(library), dtype));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kMissingHardware) throw;
    return nullptr;
  }
}

MatrixProduct::MatrixProduct(std::unique_ptr<Blas> blas, DType dtype)
    : blas_(std::move(blas)),
      dtype_(dtype),
      a_(matrix_bytes(dtype), stream_.get()),
      b_(matrix_bytes(dtype), stream_.get()),
      c_(matrix_bytes(dtype), stream_.get()) {
  Blas::check(blas_->set_stream(blas_->handle, stream_.get()), "cublasSetStream");
  fill(a_, dtype, io::NormalStream::kQ, stream_.get());
  fill(b_, dtype, io::NormalStream::kK, stream_.get());
}

MatrixProduct::~MatrixProduct() = default;

void MatrixProduct::multiply() {
  const float one = 1;
  const float zero = 0;
  const auto at = [](const cuda::Scratch& m) {
    return reinterpret_cast<void*>(m.data());  // NOLINT(performance-no-int-to-ptr)
  };
  const int type = data_type(dtype_);
  Blas::check(blas_->gemm(blas_->handle, kOpN, kOpN, kSize, kSize, kSize, &one, at(a_), type, kSize, at(b_), type,
                          kSize, &zero, at(c_), type, kSize, kCompute32F, kDefaultAlgorithm),
              "cublasGemmEx");
}

Sampler MatrixProduct::sampler() {
  return [this] {
    cuda::Event start(cuda::Event::Timing::kOn);
    cuda::Event stop(cuda::Event::Timing::kOn);
    start.record(stream_.get());
    multiply();
    stop.record(stream_.get());
    stop.synchronize();
    return static_cast<double>(stop.milliseconds_since(start));
  };
}

double MatrixProduct::tflops(double ms) {
  return 2.0 * kSize * kSize * kSize / (ms / 1000) / 1e12;
}

}  // namespace attend::cli
