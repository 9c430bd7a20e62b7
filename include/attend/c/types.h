// Types that all functions of attend/attend.h share: status, error, tensor and version. Include attend/attend.h.
#ifndef ATTEND_C_TYPES_H_
#define ATTEND_C_TYPES_H_

#include <stddef.h>  // NOLINT(modernize-deprecated-headers): C
#include <stdint.h>  // NOLINT(modernize-deprecated-headers)

#include "attend/export.hpp"
#include "attend/version.hpp"

/// Version of these headers as one number. For example, 1203 is version 0.12.3.
#define ATTEND_VERSION_NUMBER (ATTEND_VERSION_MAJOR * 10000 + ATTEND_VERSION_MINOR * 100 + ATTEND_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/// Results of functions, and values of attend_error::code. Later versions may add numbers.
enum {
  ATTEND_OK = 0,
  ATTEND_INVALID_ARGUMENT = 1,  ///< a shape, stride, dtype or parameter for which attention is not defined
  ATTEND_UNSUPPORTED = 2,       ///< a valid call that the chosen backend or this library does not support
  ATTEND_MISSING_HARDWARE = 3,  ///< the chosen backend needs a device or driver that is missing
  ATTEND_IO = 4,                ///< a file is missing, malformed, or cannot be written
  ATTEND_INTERNAL = 5,          ///< a defect of the library, or a failure of a GPU or another rank
  ATTEND_OUT_OF_MEMORY = 6      ///< host memory is exhausted
};
/// A status number.
typedef int32_t attend_status;

/// Receives the description of an error. The caller owns the memory, which may be on the stack. Later versions do not
/// change this struct.
typedef struct attend_error {
  int32_t code;  ///< an attend_status, which is ATTEND_OK after a call that succeeded
  /// One line of UTF-8, terminated by 0: the argument, the value found and the allowed values. A longer text is
  /// truncated.
  char message[1020];
} attend_error;

/// Element types. Only the backend `reference` supports ATTEND_F64. ATTEND_BOOL (one byte, 0 or 1) is allowed only for
/// masks. ATTEND_F8E4M3 (float8_e4m3fn) and ATTEND_I8 are allowed only for caches of keys and values.
enum {
  ATTEND_F32 = 0,
  ATTEND_F16 = 1,
  ATTEND_BF16 = 2,
  ATTEND_F64 = 3,
  ATTEND_BOOL = 4,
  ATTEND_F8E4M3 = 5,
  ATTEND_I8 = 6
};

enum { ATTEND_CPU = 0, ATTEND_CUDA = 1 };  ///< values of attend_tensor::device_type

/// A view of memory that the caller owns. Dimensions are always (batch, heads, seqlen, head_dim). A BSHD buffer is the
/// same view with other strides. Strides are in elements and >= 0, and the last stride is 1. Inputs may have stride 0
/// (broadcast); outputs may not. Later versions do not change this struct.
typedef struct attend_tensor {
  /// Address of the first element. The memory of an input is only read. It may be null if a dimension is 0.
  void* data;
  int64_t shape[4];      ///< number of elements in each dimension
  int64_t stride[4];     ///< distance in elements along each dimension
  int32_t dtype;         ///< ATTEND_F32 or another element type
  int32_t device_type;   ///< ATTEND_CPU or ATTEND_CUDA
  int32_t device_index;  ///< number of the GPU, or 0 for a CPU
  int32_t reserved;      ///< must be 0
} attend_tensor;

/// Sets `tensor` to a dense (batch, heads, seqlen, head_dim) view of `data` on the CPU.
/// @param tensor  output
/// @param data    address of the first element. The pointer is const so that it can also point to constant inputs. The
///   memory of an output must not be constant
/// @param dtype   type of every element
/// @param shape   sizes in the order (batch, heads, seqlen, head_dim). The calls that use the tensor check them. Null
///   means (0, 0, 0, 0)
ATTEND_API void attend_tensor_init(attend_tensor* tensor, const void* data, int32_t dtype, const int64_t shape[4]);

/// Sets `tensor` to a view of a dense (batch, seqlen, heads, head_dim) buffer. `shape` is still (batch, heads, seqlen,
/// head_dim).
ATTEND_API void attend_tensor_init_bshd(attend_tensor* tensor, const void* data, int32_t dtype, const int64_t shape[4]);

/// Returns the version of the library as "MAJOR.MINOR.PATCH". The string stays valid.
ATTEND_API const char* attend_version(void);

/// Returns the ATTEND_VERSION_NUMBER of the library.
ATTEND_API int32_t attend_version_number(void);

/// Returns the name of a status, such as "ok" or "invalid argument", or "unknown status" for other numbers. The string
/// stays valid.
ATTEND_API const char* attend_status_name(int32_t status);

/// Returns "f32", "f16", "bf16", "f64", "bool", "f8e4m3" or "i8", or "?" for other numbers. The string stays valid.
ATTEND_API const char* attend_dtype_name(int32_t dtype);

/// Returns the number of bytes of one element, or 0 for other numbers.
ATTEND_API int64_t attend_dtype_bytes(int32_t dtype);

#ifdef __cplusplus
}
#endif

#endif  // ATTEND_C_TYPES_H_
